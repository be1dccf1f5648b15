"""Where the storage tests put their objects: one fresh place of each kind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from outlast.state.storage.opening import open_bare
from outlast.state.storage.seam import Storage

KINDS = ("files", "s3", "hdfs")


@dataclass(frozen=True)
class Place:
    kind: str
    url: str
    environment: dict[str, str] = field(default_factory=dict)
    """What a process needs beside ours to reach it."""

    def open(self) -> Storage:
        return open_bare(self.url)

    @contextmanager
    def process(self, code: str) -> Iterator[subprocess.Popen[str]]:
        """A process that runs this code with `storage` open; it is killed at the end, whatever it does."""
        head = (
            "import os, signal, sys\n"
            "from outlast.kinship import die_with_parent\n"
            f"die_with_parent({os.getpid()})\n"
            "from outlast.state.storage.opening import open_bare\n"
            f"storage = open_bare({self.url!r})\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", head + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()
