"""The lock that keeps a second process out of a store's directory.

Two processes that append to one log would each believe that they decide alone. The kernel holds this lock for
as long as the process lives and not a moment longer, so `kill -9` needs no cleaning up, and whoever gets the
lock knows that the previous holder is dead. The holder's pid in the file only serves the error message.
"""

import fcntl
import os
from pathlib import Path
from typing import final

from outlast.coordinator.store.disk import explain
from outlast.errors import StoreLocked


@final
class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        path = directory / "lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise explain(error, path) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The pid has a fixed width, so that writing it anew needs no space on a full disk.
            os.pwrite(self._file, f"{os.getpid():<10}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StoreLocked(
                f"The store in {directory} is in use by process {holder or '(unknown)'}. Stop that process, "
                "or choose another directory for this one."
            ) from None
        except OSError as error:
            os.close(self._file)
            raise explain(error, path) from error

    def release(self) -> None:
        # The file stays: removing it would let two processes hold locks on two files of the same name.
        os.close(self._file)
