"""The events of a run, read from its files and merged by time, also while they are written.

Within a file the order is that of the lines, whatever the wall clock did; between files it is that of the
clock. While a run goes on, what is read is held back for one look: what another process did before may still
be on its way to its file, and comes with the next one.

A file that is put aside keeps what was read of it: it is known by its descriptor, not by its name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from outlast.errors import ProtocolError
from outlast.observe.files import NAME
from outlast.observe.queue import FLUSH_EVERY_S
from outlast.observe.written import Written, decode

CHUNK_BYTES = 1 << 20
LOOK_EVERY_S = 2 * FLUSH_EVERY_S
"""Longer than an event may take to its file."""


class Entry(NamedTuple):
    at: float
    """Where it belongs among others: its time, or that of a line before it in its file, if that is later."""
    line: bytes
    written: Written


class EventLog:
    """All events files of one run directory."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "events"
        self._open: dict[int, _File] = {}
        self._held: list[Entry] = []

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read_all(self) -> list[Entry]:
        """All that is there and was not read before, in order."""
        found, self._held = [*self._held, *self._new()], []
        return sorted(found, key=lambda entry: entry.at)

    def read_settled(self) -> list[Entry]:
        """The same while events are still written, to be called every `LOOK_EVERY_S`: the newest ones are
        kept for the next call."""
        until = max((entry.at for entry in self._held), default=float("-inf"))
        found = sorted([*self._held, *self._new()], key=lambda entry: entry.at)
        self._held = [entry for entry in found if entry.at > until]
        return [entry for entry in found if entry.at <= until]

    def _new(self) -> Iterator[Entry]:
        present = {}
        at: dict[str, float] = {}
        for source, path in _in_order(self._folder):
            file = self._opened(path)
            if file is not None:
                present[file.inode] = file
                file.at = max(file.at, at.get(source, file.at))
                yield from file.entries()
                at[source] = file.at
        for inode, file in self._open.items():
            if inode in present:
                continue
            # Removed meanwhile, or put aside in this very moment; what is in it is still to be had.
            yield from file.entries()
            if file.removed:
                file.close()
            else:
                present[inode] = file
        self._open = present

    def _opened(self, path: Path) -> _File | None:
        # It may be put aside, or removed, while we look.
        with contextlib.suppress(FileNotFoundError):
            known = self._open.get(os.stat(path).st_ino)
            return known if known is not None else _File(path)
        return None


class _File:
    """One file, read from wherever it was left."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self.inode = os.fstat(self._file.fileno()).st_ino
        self.at = 0.0
        self._partial = b""

    @property
    def removed(self) -> bool:
        return os.fstat(self._file.fileno()).st_nlink == 0

    def close(self) -> None:
        self._file.close()

    def entries(self) -> Iterator[Entry]:
        """Of complete lines. What is no event was torn by a kill."""
        while chunk := self._file.read(CHUNK_BYTES):
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            for line in whole:
                with contextlib.suppress(ProtocolError):
                    written = decode(line)
                    self.at = max(self.at, written.time)
                    yield Entry(self.at, line, written)


def _in_order(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files by source, those that were put aside first."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if (match := NAME.fullmatch(name)) is not None:
                number = int(match["number"]) if match["number"] is not None else float("inf")
                found.append((match["source"], number, folder / name))
    for source, _, path in sorted(found):
        yield source, path
