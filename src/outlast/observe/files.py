"""Events as lines of JSON in the run's directory: `events/SOURCE.jsonl`, one object a line.

A file has one writer at a time, which appends a whole batch with one write. When the file has grown large it
is put aside under a number (`SOURCE.17.jsonl`, numbers grow), and the oldest of those is removed: a run of a
year fills no disk. Whoever is killed in the middle of a line leaves it torn; the next one begins a line of
its own, and readers leave the torn one out.

The files are for their owner alone, and are opened from the descriptor of the run's own directory: should
another one be found in its place, nothing is written there. A full disk costs events, never a run: what
cannot be written is kept up to a bound and then left out, and the next line says how many are missing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

import msgspec

from outlast.errors import OutlastError
from outlast.observe.queue import Events, Sink
from outlast.observe.written import Written
from outlast.wire.rundir import RunDirectory

FILE_MOST_BYTES = 4 << 20
FILES_MOST = 8
"""Of one source, with the one that is being written."""
WAITING_MOST_BYTES = 1 << 20
NAME = re.compile(r"(?P<source>.+?)(?:\.(?P<number>\d+))?\.jsonl")

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def open_events(directory: RunDirectory, source: str, *more: Sink) -> Events:
    """The events of one process of a run: to its file, and to what else is given. Nothing is opened before
    the first event comes."""
    return Events(source, [EventFile(directory, source), *more])


class EventFile:
    """The sink that writes them."""

    def __init__(
        self,
        directory: RunDirectory,
        source: str,
        *,
        file_most_bytes: int = FILE_MOST_BYTES,
        files_most: int = FILES_MOST,
    ) -> None:
        self._directory = directory
        self._source = source.replace("/", "-")
        self._name = f"{self._source}.jsonl"
        self._file_most_bytes = file_most_bytes
        self._files_most = files_most
        self._encoder = msgspec.json.Encoder()
        self._folder: int | None = None
        self._fd: int | None = None
        self._waiting = bytearray()
        self._left_out = 0

    def __repr__(self) -> str:
        return f"events/{self._name}"

    def write(self, batch: Sequence[Written]) -> None:
        if len(self._waiting) > WAITING_MOST_BYTES:
            self._left_out += len(batch)
        else:
            self._waiting += self._encoded(batch)
        self._flush()

    def _encoded(self, batch: Sequence[Written]) -> bytes:
        if self._left_out:
            first = msgspec.structs.replace(batch[0], dropped=batch[0].dropped + self._left_out)
            batch, self._left_out = [first, *batch[1:]], 0
        try:
            return self._encoder.encode_lines(batch)
        except UnicodeEncodeError:
            # A file name in somebody's error need not be text. What is said with it is left out, and no more.
            if len(batch) > 1:
                return b"".join(self._encoded([one]) for one in batch)
            self._left_out += 1 + batch[0].dropped
            return b""

    def close(self) -> None:
        self._flush()
        for fd in (self._fd, self._folder):
            if fd is not None:
                os.close(fd)
        self._fd = self._folder = None

    def _flush(self) -> None:
        """On a full disk the rest stays for the next time."""
        with contextlib.suppress(OSError, OutlastError):
            while self._waiting:
                fd = self._opened()
                if os.fstat(fd).st_size >= self._file_most_bytes:
                    fd = self._put_aside()
                del self._waiting[: os.write(fd, self._waiting)]

    def _opened(self) -> int:
        if self._fd is not None:
            return self._fd
        if self._folder is None:
            with self._directory.held() as run:
                with contextlib.suppress(FileExistsError):
                    os.mkdir("events", 0o700, dir_fd=run)
                self._folder = os.open("events", _DIRECTORY, dir_fd=run)
                # The umask may have taken permissions from us.
                os.fchmod(self._folder, 0o700)
        fd = os.open(self._name, _APPEND, 0o600, dir_fd=self._folder)
        os.fchmod(fd, 0o600)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            self._waiting[:0] = b"\n"
        self._fd = fd
        return fd

    def _put_aside(self) -> int:
        assert self._folder is not None and self._fd is not None
        names = (NAME.fullmatch(name) for name in os.listdir(self._folder))
        numbers = sorted(
            int(match["number"])
            for match in names
            if match is not None and match["source"] == self._source and match["number"] is not None
        )
        number = numbers[-1] + 1 if numbers else 1
        os.rename(self._name, self._aside(number), src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.close(self._fd)
        self._fd = None
        for old in [*numbers, number][: -(self._files_most - 1)]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._aside(old), dir_fd=self._folder)
        return self._opened()

    def _aside(self, number: int) -> str:
        return f"{self._source}.{number}.jsonl"
