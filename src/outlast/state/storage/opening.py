"""From a URL to a storage.

Nothing is created and nobody is asked before the first call: a wrong password shows when the storage is used.
"""

import os
from urllib.parse import unquote, urlsplit

from outlast.errors import ConfigError
from outlast.state.storage.files import Files
from outlast.state.storage.seam import Storage

_SCHEMES = "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or hdfs://host:port/path"


def open_bare(url: str | os.PathLike[str]) -> Storage:
    """The storage itself: every failure is raised at once, and a call may hang for as long as its server."""
    text = os.fspath(url)
    if "://" not in text:
        if not text:
            raise ConfigError(f"The URL of the storage is empty; it must be {_SCHEMES}.")
        return Files(text)
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Files(unquote(parts.path))
    raise ConfigError(f"{text!r} is no URL of a storage; it must be {_SCHEMES}.")
