"""Disks that fail on demand, to stand in for the real one behind the log's `Disk` seam.

`FaultyDisk` returns errors and runs out of space. `PowerCutDisk` knows what is on the platter and what is
only in the page cache, stops the world at any call, and shows each directory that could be found afterwards.
"""

import errno
import itertools
import os
import stat
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from outlast.coordinator.store.disk import LocalDisk
from patience import PATIENCE_S


class FaultyDisk:
    """A real disk whose calls fail as told: `failures["write"] = [errno.EIO]` fails the next such call."""

    def __init__(self) -> None:
        self.failures: dict[str, list[int]] = defaultdict(list)
        self.space_bytes: int | None = None
        self.full_errno = errno.ENOSPC
        self.calls: list[str] = []
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncing = threading.Event()
        self._disk = LocalDisk()

    def open(self, path: Path, flags: int) -> int:
        self._called("open")
        return self._disk.open(path, flags)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        self._called("write")
        if self.space_bytes is None:
            return self._disk.write(file, data, offset)
        if self.space_bytes == 0:
            raise OSError(self.full_errno, os.strerror(self.full_errno))
        written = self._disk.write(file, data[: self.space_bytes], offset)
        self.space_bytes -= written
        return written

    def sync_data(self, file: int) -> None:
        self._called("sync_data")
        self.syncing.set()
        assert self.may_sync.wait(PATIENCE_S)
        self._disk.sync_data(file)

    def sync_all(self, file: int) -> None:
        self._called("sync_all")
        self._disk.sync_all(file)

    def truncate(self, file: int, size_bytes: int) -> None:
        self._called("truncate")
        self._disk.truncate(file, size_bytes)

    def rename(self, old: Path, new: Path) -> None:
        self._called("rename")
        self._disk.rename(old, new)

    def remove(self, path: Path) -> None:
        self._called("remove")
        self._disk.remove(path)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failures[name]:
            number = self.failures[name].pop(0)
            raise OSError(number, os.strerror(number))


class PowerCut(BaseException):
    """Raised instead of the call at which the power goes."""


class PowerCutDisk:
    """A real disk that remembers, for one directory, what a power cut would leave.

    Content becomes durable when its file is synced, and names when the directory is. As on Linux, a sync that
    fails forgets what it should have written: the next sync succeeds without it. Since its syncs only
    pretend, it is also the disk for tests that open a great many logs.
    """

    def __init__(self, directory: Path, cut_at_call: int | None = None) -> None:
        self.calls = 0
        self.failing_syncs = 0
        self._directory = directory
        self._cut_at_call = cut_at_call
        self._disk = LocalDisk()
        self._pending: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
        self._content: dict[int, bytearray] = defaultdict(bytearray)
        self._names: dict[str, int] = {}

    def open(self, path: Path, flags: int) -> int:
        self._cut()
        file = self._disk.open(path, flags)
        if flags & os.O_TRUNC:
            self._pending[os.fstat(file).st_ino].append((0, None))
        return file

    def write(self, file: int, data: memoryview, offset: int) -> int:
        # A cut in a write leaves half of it in the page cache.
        cut = self.calls + 1 == self._cut_at_call
        part = data[: len(data) // 2] if cut else data
        self._disk.write(file, part, offset)
        self._pending[os.fstat(file).st_ino].append((offset, bytes(part)))
        self._cut()
        return len(part)

    def sync_data(self, file: int) -> None:
        self._sync(file)

    def sync_all(self, file: int) -> None:
        self._sync(file)

    def truncate(self, file: int, size_bytes: int) -> None:
        self._cut()
        self._disk.truncate(file, size_bytes)
        self._pending[os.fstat(file).st_ino].append((size_bytes, None))

    def rename(self, old: Path, new: Path) -> None:
        self._cut()
        self._disk.rename(old, new)

    def remove(self, path: Path) -> None:
        self._cut()
        self._disk.remove(path)

    def survivors(self, beside: Path) -> Iterator[Path]:
        """Every combination of old or new names with durable or cached content, each as a directory."""
        cached_names = {path.name: path.stat().st_ino for path in self._directory.iterdir()}
        cached = {path.stat().st_ino: path.read_bytes() for path in self._directory.iterdir()}
        for names, keep_cached in itertools.product((self._names, cached_names), (False, True)):
            found = beside / f"found-{self.calls}-{names is cached_names}-{keep_cached}"
            found.mkdir(parents=True)
            for name, inode in names.items():
                content = cached.get(inode, b"") if keep_cached else b""
                (found / name).write_bytes(content or bytes(self._content[inode]))
            yield found

    def _sync(self, file: int) -> None:
        self._cut()
        inode = os.fstat(file).st_ino
        if stat.S_ISDIR(os.fstat(file).st_mode):
            if self._directory.exists() and inode == self._directory.stat().st_ino:
                self._names = {path.name: path.stat().st_ino for path in self._directory.iterdir()}
            return
        pending = self._pending.pop(inode, [])
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        content = self._content[inode]
        for offset, data in pending:
            if data is None:
                del content[offset:]
            else:
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data

    def _cut(self) -> None:
        self.calls += 1
        if self.calls == self._cut_at_call:
            raise PowerCut
