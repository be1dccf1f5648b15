"""The handful of file-system calls that the log makes, so that a test can stand in for the disk.

What a log promises, it promises about full disks, failing disks and power cuts. None of these can be had on
demand from a real disk, so the calls whose failure or whose order matters go through this seam.
"""

import errno
import os
from pathlib import Path
from typing import Protocol

from outlast.errors import StoreError, StoreFull

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Disk(Protocol):
    """Every method raises `OSError`, as the operating system does."""

    def open(self, path: Path, flags: int) -> int: ...

    def write(self, file: int, data: memoryview, offset: int) -> int:
        """Writes at the offset and returns how many bytes it took, which may be fewer than were given."""

    def sync_data(self, file: int) -> None:
        """Makes what was written to a file survive a power cut."""

    def sync_all(self, file: int) -> None:
        """The same with all that belongs to a file; of a directory, the names in it."""

    def truncate(self, file: int, size_bytes: int) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """Removes a file; one that does not exist is no error."""


class LocalDisk:
    """The operating system's own calls. Files are for their owner only."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, 0o600)

    def write(self, file: int, data: memoryview, offset: int) -> int:
        return os.pwrite(file, data, offset)

    def sync_data(self, file: int) -> None:
        # This writes a changed size too; it only leaves out the times, which nobody needs after a crash.
        os.fdatasync(file)

    def sync_all(self, file: int) -> None:
        os.fsync(file)

    def truncate(self, file: int, size_bytes: int) -> None:
        os.ftruncate(file, size_bytes)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def write_all(disk: Disk, file: int, data: bytes, offset: int) -> None:
    """Writes every byte, however few the disk takes at a time."""
    rest = memoryview(data)
    while rest:
        written = disk.write(file, rest, offset)
        if written <= 0:
            raise OSError(errno.EIO, "the disk takes no more bytes and does not say why")
        rest = rest[written:]
        offset += written


def explain(error: OSError, path: Path) -> StoreError:
    """The store's own error for a call that failed on this path, with what the user can do."""
    reason = error.strerror or str(error)
    if error.errno in NO_SPACE:
        return StoreFull(
            f"There is no space left for {path} ({reason}). Nothing was lost and nothing was decided. "
            "Free some space or raise the quota; the store then goes on by itself."
        )
    if error.errno in NOT_ALLOWED:
        return StoreError(
            f"{path} may not be written ({reason}). Give this user write access to it, or choose another "
            "directory for the store."
        )
    return StoreError(f"{path} failed: {reason}. Check the disk, or choose another directory for the store.")
