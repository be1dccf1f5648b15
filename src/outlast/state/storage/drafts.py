"""Files that are being written, and what is left of those whose writers died.

A draft gets its own name in a folder beside the objects, is written and made durable there, and only then
takes its place by a rename or a link. Its writer holds a lock on it, which the kernel drops when the writer
dies, by whatever death, and on whichever machine it ran if the disk is shared and keeps locks. So whoever can
lock a draft knows that nobody writes it any more, and throws it away. Neither clocks nor process numbers are
asked.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from typing import final

from outlast.state.storage.direct import write_around_cache

FOLDER = ".writing"

# Disks without locks keep what dead writers left, since nobody can tell it from what living ones write.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_ATTEMPTS = 16


@final
class Drafts:
    """Raises OSError, as the operating system does."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def written(self, data: memoryview) -> Iterator[str]:
        """The path of a file with these bytes, already durable. Afterwards no draft is left."""
        path, file = self._open()
        try:
            rest = data[write_around_cache(file, data) :]
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
            yield path
        finally:
            # A draft that was renamed is gone; one that cannot be removed is swept later.
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(file)

    def sweep(self) -> None:
        """Remove what dead writers left. What cannot be removed is in nobody's way."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return
        for name in names:
            path = os.path.join(self.folder, name)
            with contextlib.suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(file)

    def _open(self) -> tuple[str, int]:
        """A new file with our lock on it. A sweeper may come between the opening and the locking and take it
        for a dead writer's: then there is another one."""
        for _ in range(_ATTEMPTS):
            path = os.path.join(self.folder, secrets.token_hex(12))
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                if _locked(file) and os.fstat(file).st_nlink:
                    return path, file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
        raise OSError(errno.EAGAIN, "somebody keeps removing what is being written", self.folder)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True
