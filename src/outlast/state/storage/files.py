"""Objects as files: on a local disk, or on a shared one that behaves like it.

An object is written as a draft, made durable, and moved to its name in one step: `rename` for a put, which
replaces, and `link` for a create, which fails for all but the first. Then the folder is made durable, and
with it the name. Before the first object goes into a folder, the folders above it are made durable up to the
root, whoever made them. Folders that changed lately are made durable before they are listed, too: an object
whose writer was killed after the rename is then not counted upon before it can be.

A file that is replaced while somebody reads it stays what it was for that reader. Symbolic links among the
objects are neither followed nor listed; the root itself, and what lies above it, may be one.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import final

from outlast.errors import (
    ObjectDamaged,
    ObjectMissing,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from outlast.state.storage import giving_up
from outlast.state.storage.direct import read_around_cache
from outlast.state.storage.drafts import FOLDER, Drafts
from outlast.state.storage.keys import check_key, check_prefix, is_key
from outlast.state.storage.seam import Bytes, Stored

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENAMETOOLONG})
_NO_LINKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

# How a draft takes its place.
_Place = Callable[[str, str], None]

# So the kernel reads the next ones ahead while it copies this one; asking for all at once is slower.
_READ_BYTES = 1 << 20

# Without being asked, every kernel writes a changed folder to its disk far sooner than this.
_SETTLED_AFTER_S = 600.0


@final
class Files:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.url = os.path.abspath(root)
        self._drafts = Drafts(os.path.join(self.url, FOLDER))
        # Folders whose own names are durable. Only ever added to, so threads need no lock for it.
        self._settled: set[str] = set()

    def put(self, key: str, data: Bytes) -> None:
        self._write(key, data, os.replace)

    def create(self, key: str, data: Bytes) -> bool:
        path = self._path(key)
        # Asking first spares the writing, and is no more than that: the link decides.
        if not os.path.lexists(path):
            with contextlib.suppress(_Taken):
                self._write(key, data, _link)
                return True
        with _explained(path, "written"), contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise OSError(errno.EEXIST, "something that is no file has this name")
            # What made us lose must not be lost itself when the machine loses its power.
            _sync_folder(os.path.dirname(path))
        return False

    def get(self, key: str, most_bytes: int) -> bytes:
        with self._opened(key) as (file, size_bytes):
            if size_bytes > most_bytes:
                raise self._damaged(
                    key, f"it has {size_bytes} bytes, where at most {most_bytes} were expected"
                )
            data = bytearray(size_bytes)
            self._fill(key, file, memoryview(data))
            return bytes(data)

    def read_into(self, key: str, out: memoryview) -> None:
        with self._opened(key) as (file, size_bytes):
            if size_bytes != out.nbytes:
                raise self._damaged(key, f"it has {size_bytes} bytes, where {out.nbytes} were expected")
            self._fill(key, file, out.cast("B"))

    def list(self, prefix: str) -> Iterator[Stored]:
        folder = os.path.join(self.url, check_prefix(prefix)).rstrip("/")
        return self._listed(folder, prefix)

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            with _explained(path, "deleted"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
                folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            with _explained(folder, "written"), contextlib.suppress(FileNotFoundError):
                _sync_folder(folder)
        self._drafts.sweep()

    def _path(self, key: str) -> str:
        return os.path.join(self.url, check_key(key))

    def _write(self, key: str, data: Bytes, place: _Place) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        with _explained(path, "written"):
            try:
                self._write_draft(path, folder, memoryview(data).cast("B"), place)
            except FileNotFoundError:
                # Somebody removed folders that we knew. Make them anew, once.
                self._settled.clear()
                self._write_draft(path, folder, memoryview(data).cast("B"), place)

    def _write_draft(self, path: str, folder: str, data: memoryview, place: _Place) -> None:
        if self._drafts.folder not in self._settled:
            self._settle(self._drafts.folder)
            self._drafts.sweep()
        self._settle(folder)
        with self._drafts.written(data) as draft:
            giving_up.check()
            place(draft, path)
        _sync_folder(folder)

    def _settle(self, folder: str) -> None:
        """Make a folder and what is missing above it, with names that survive a power cut."""
        if folder in self._settled:
            return
        # Whoever made the root, and what is above it, answers for that; unless it is us.
        if len(folder) > len(self.url) or not os.path.isdir(folder):
            parent = os.path.dirname(folder)
            self._settle(parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            _sync_folder(parent)
        self._settled.add(folder)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """The file of an object, and its size."""
        path = self._path(key)
        with _explained(path, "read"):
            try:
                file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectMissing(f"There is no object {key} in {self.url}.") from None
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectMissing(
                        f"There is no object {key} in {self.url}, but something that is no file."
                    )
                yield file, status.st_size
            finally:
                os.close(file)

    def _fill(self, key: str, file: int, out: memoryview) -> None:
        done = read_around_cache(file, out)
        while done < len(out):
            count = os.preadv(file, [out[done : done + _READ_BYTES]], done)
            if count == 0:
                raise self._damaged(key, f"it ended after {done} of {len(out)} bytes")
            done += count

    def _damaged(self, key: str, how: str) -> ObjectDamaged:
        return ObjectDamaged(
            f"The object {key} in {self.url} is not what was written: {how}. Use another checkpoint, and "
            "check the disk."
        )

    def _listed(self, folder: str, prefix: str) -> Iterator[Stored]:
        with _explained(folder, "listed"):
            found = _entries(folder)
        for name, size_bytes in found:
            if size_bytes is None:
                yield from self._listed(os.path.join(folder, name[:-1]), prefix + name)
            else:
                yield Stored(prefix + name, size_bytes)


class _Taken(Exception):
    """Another one has created the object."""


def _link(draft: str, path: str) -> None:
    try:
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError:
        raise _Taken from None


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _entries(folder: str) -> list[tuple[str, int | None]]:
    """The objects in a folder with their sizes, and the folders in it with None and a '/' after the name: so
    sorted, what is in them comes in the order of the whole keys."""
    try:
        if time.time() - os.stat(folder).st_mtime < _SETTLED_AFTER_S:
            _sync_folder(folder)
        scan = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[tuple[str, int | None]] = []
    with scan:
        for entry in scan:
            if not is_key(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                found.append((entry.name + "/", None))
            elif entry.is_file(follow_symlinks=False):
                # What is deleted in this moment need not be listed.
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
    return sorted(found)


@contextlib.contextmanager
def _explained(path: str, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explain(error, path, done) from error


def _explain(error: OSError, path: str, done: str) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(
            f"There is no space left for {path} ({reason}). What was saved before is unharmed. Free some "
            "space or raise the quota; the next save then works again."
        )
    if error.errno in _DENIED:
        return StorageDenied(
            f"{path} could not be {done} ({reason}). Give this user access to it, or choose another folder."
        )
    if error.errno in _IN_THE_WAY:
        return StorageDenied(
            f"{path} could not be {done} ({reason}). Something else lies where the object or its folder "
            "belongs: move it away, or choose another folder."
        )
    if error.errno in _NO_LINKS:
        return StorageDenied(
            f"{path} could not be {done} ({reason}). Only one of several writers may win, for which this "
            "disk would need hard links: choose a folder on another one."
        )
    return StorageUnavailable(
        f"{path} could not be {done} ({reason}). Check the disk, or choose another folder."
    )
