"""What the replicas of a run have printed, from their log files, and what they print from now on."""

import re
from collections.abc import Iterator
from pathlib import Path

from outlast.wire.rundir import RunDirectory

CHUNK_BYTES = 1 << 16


class LogFile:
    """One replica's log, read from wherever it was left."""

    def __init__(self, replica: int, path: Path) -> None:
        self.replica = replica
        self._path = path
        self._at = 0
        self._partial = b""

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Complete lines that have come since the last call. `last`: nothing more will come, so what is
        there of a line is one."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._at)
            while chunk := file.read(CHUNK_BYTES):
                self._at += len(chunk)
                *whole, self._partial = (self._partial + chunk).split(b"\n")
                for line in whole:
                    yield _text(line)
        if last and self._partial:
            partial, self._partial = self._partial, b""
            yield _text(partial)


def log_files(directory: RunDirectory, replica: int | None = None) -> list[LogFile]:
    """Those that there are by now, in the order of the replicas."""
    found = {
        int(match[1]): path
        for path in (directory.path / "logs").glob("replica-*.log")
        if (match := re.fullmatch(r"replica-(\d+)\.log", path.name)) is not None
    }
    return [LogFile(one, found[one]) for one in sorted(found) if replica is None or one == replica]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
