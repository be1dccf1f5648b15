"""From a URL to a storage.

Nothing is created and nobody is asked before the first call: a wrong password shows when the storage is used.
"""

import os
import re
import threading
from urllib.parse import unquote, urlsplit

from outlast.errors import ConfigError
from outlast.state.storage import clouds
from outlast.state.storage.files import Files
from outlast.state.storage.hdfs import Hdfs
from outlast.state.storage.objects import Objects
from outlast.state.storage.patience import Patience, Patient
from outlast.state.storage.seam import Storage

_SCHEMES = (
    "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or "
    "hdfs://host:port/path"
)
# What all object stores take and no URL has to escape.
_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*(/[A-Za-z0-9_-][A-Za-z0-9._=-]*)*")

_MISSPELT = re.compile(f"({'|'.join([*clouds.SCHEMES, 'hdfs', 'file'])}):", re.IGNORECASE)


def open_storage(
    url: str | os.PathLike[str], *, patience: Patience | None = None, stopped: threading.Event | None = None
) -> Storage:
    """Tries again where that helps, and never hangs; once `stopped` is set it does not even wait."""
    return Patient(open_bare(url), patience, stopped=stopped)


def is_remote(url: str) -> bool:
    """Whether a storage with this URL is a server's, rather than a file system of this machine."""
    return "://" in url


def open_bare(url: str | os.PathLike[str]) -> Storage:
    """The storage itself: every failure is raised at once, and a call may hang for as long as its server."""
    text = os.fspath(url)
    if "://" not in text:
        if not text:
            raise ConfigError(f"The URL of the storage is empty; it must be {_SCHEMES}.")
        if _MISSPELT.match(text):
            # As a path it would be a folder of that name here, and nobody would look for checkpoints there.
            raise ConfigError(
                f"{text} is a path that looks like a URL; it must be {_SCHEMES}. If you mean a folder of "
                f"that name, say ./{text}."
            )
        return Files(text)
    parts = urlsplit(text)
    if "@" in parts.netloc:
        # Not repeated, since it may hold a password.
        raise ConfigError(
            f"A storage's URL holds no user and no password; {parts.scheme}:// takes them from the "
            "environment."
        )
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Files(unquote(parts.path))
    path = parts.path.strip("/")
    sound = parts.netloc and (not path or _PREFIX.fullmatch(path)) and not parts.query and not parts.fragment
    if parts.scheme in clouds.SCHEMES and sound:
        return Objects(parts.scheme, parts.netloc, path)
    if parts.scheme == "hdfs" and sound:
        return Hdfs(parts.netloc, path)
    raise ConfigError(
        f"{parts.scheme}://{parts.netloc}{parts.path} is no URL of a storage; it must be {_SCHEMES}."
    )
