"""Objects as files in HDFS.

An object is written as a draft beside the others, made durable, closed, and moved to its name, which is one
transaction of the NameNode: replacing for a put, failing for all but the first for a create. A writer killed
in the middle leaves a draft; those that are a day old are swept.

Durable is what `hsync` promises: every DataNode that holds a copy has it on its disk, not only in its memory
(`close` alone promises no more than that). It speaks for the last block of a file only, so an object is one
block, and therefore has a greatest size. Names are durable when the NameNode has answered: its log is synced.

A client that finds nobody to talk to tries for a minute by itself, and one whose NameNode is stopped waits
for ever. The first is shortened here; the second is what `patience.py` is for.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, final

from outlast.errors import (
    ConfigError,
    ObjectDamaged,
    ObjectMissing,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageUnavailable,
    UsageError,
)
from outlast.state.storage import giving_up
from outlast.state.storage.keys import check_key, check_prefix, is_key
from outlast.state.storage.seam import Bytes, Stored

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader

_DRAFTS = ".writing"
_STALE_AFTER_S = 24 * 3600.0
_PIECE_BYTES = 4 << 20
_BLOCK_BYTES = 128 << 20
_LARGEST_BYTES = 1 << 30

_SETTINGS = {
    "dfs.client.failover.max.attempts": "1",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}

# Parts of the names of Java's exceptions, which is what the client tells.
# The last one is what is said when nobody has room; when DataNodes are down or were tried in vain, it is not.
_FULL = re.compile(
    r"QuotaExceededException|DiskOutOfSpaceException"
    r"|could only be \w+ to 0 .*There are [1-9]\d* datanode\(s\) running and (no|0) node\(s\) are excluded"
)
_DENIED = ("AccessControlException", "AuthorizationException", "SASLError", "GSSAPIError", "InvalidToken")


@final
class Hdfs:
    def __init__(self, authority: str, path: str = "/") -> None:
        """`authority` is host:port of the NameNode, or the name of a service that HADOOP_CONF_DIR
        describes."""
        try:
            import hdfs_native
        except ImportError:
            raise ConfigError(
                "For hdfs:// the package hdfs-native is needed: pip install 'outlast[hdfs]'"
            ) from None
        self._hdfs_native = hdfs_native
        self._root = "/" + path.strip("/")
        self.url = f"hdfs://{authority}{self._root}"
        self._server = f"hdfs://{authority}"
        self._connected: Client | None = None
        # Folders that are there, as far as we know.
        self._made: set[str] = set()

    def put(self, key: str, data: Bytes) -> None:
        path = self._path(key)
        with self._explained(key, "written"):
            self._make_folder_of(path)
            with self._draft(data) as draft:
                self._move(draft, path, overwrite=True)

    def create(self, key: str, data: Bytes) -> bool:
        path = self._path(key)
        with self._explained(key, "written"):
            # Asking first spares the writing, and is no more than that: the move decides.
            if self._exists(path):
                return False
            self._make_folder_of(path)
            try:
                with self._draft(data) as draft:
                    self._move(draft, path, overwrite=False)
            except FileExistsError:
                return False
        return True

    def get(self, key: str, most_bytes: int) -> bytes:
        with self._explained(key, "read"):
            file = self._open(key)
            if len(file) > most_bytes:
                raise self._damaged(
                    key, f"it has {len(file)} bytes, where at most {most_bytes} were expected"
                )
            data = bytearray(len(file))
            self._fill(key, file, memoryview(data))
            return bytes(data)

    def read_into(self, key: str, out: memoryview) -> None:
        with self._explained(key, "read"):
            file = self._open(key)
            if len(file) != out.nbytes:
                raise self._damaged(key, f"it has {len(file)} bytes, where {out.nbytes} were expected")
            self._fill(key, file, out.cast("B"))

    def list(self, prefix: str) -> Iterator[Stored]:
        return self._listed(check_prefix(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            with self._explained(key, "deleted"):
                self._client.delete(path)
        with self._explained(_DRAFTS, "swept"):
            self._sweep()

    @property
    def _client(self) -> Client:
        # Made at the first call, since it looks its server up.
        if self._connected is None:
            self._connected = self._hdfs_native.Client(self._server, dict(_SETTINGS))
        return self._connected

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{check_key(key)}"

    def _exists(self, path: str) -> bool:
        try:
            status = self._client.get_file_info(path)
        except FileNotFoundError:
            return False
        if status.isdir:
            raise FileExistsError(f"{path} is a folder")
        return True

    def _make_folder_of(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            self._client.mkdirs(folder, create_parent=True)
            self._made.add(folder)

    @contextlib.contextmanager
    def _draft(self, data: Bytes) -> Iterator[str]:
        """The path of a file with these bytes, already durable. Afterwards no draft is left."""
        memory = memoryview(data).cast("B")
        if len(memory) > _LARGEST_BYTES:
            raise UsageError(
                f"An object of {len(memory)} bytes is too large for {self.url}, where it has at most "
                f"{_LARGEST_BYTES} bytes; write it in several."
            )
        path = f"{self._root.rstrip('/')}/{_DRAFTS}/{secrets.token_hex(12)}"
        block_bytes = max(_BLOCK_BYTES, -(-len(memory) // _PIECE_BYTES) * _PIECE_BYTES)
        options = self._hdfs_native.WriteOptions(block_size=block_bytes, overwrite=False, create_parent=True)
        try:
            file = self._client.create(path, options)
            for start in range(0, len(memory), _PIECE_BYTES):
                file.write(memory[start : start + _PIECE_BYTES])
            if memory:
                file.hsync()
            file.close()
            giving_up.check()
            yield path
        except BaseException:
            with contextlib.suppress(Exception):
                self._client.delete(path)
            raise

    def _move(self, draft: str, path: str, *, overwrite: bool) -> None:
        try:
            self._client.rename(draft, path, overwrite)
        except FileNotFoundError as error:
            # Somebody removed the folder; or the client lost its connection, asked again, and was told that
            # the draft is gone, because the first time had worked. Whoever tries again finds out.
            self._made.clear()
            raise StorageUnavailable(
                f"{self._server}{path} may or may not have been written ({_first_line(error)}). Try again."
            ) from None

    def _open(self, key: str) -> FileReader:
        try:
            return self._client.read(self._path(key))
        except FileNotFoundError:
            raise ObjectMissing(f"There is no object {key} in {self.url}.") from None

    def _fill(self, key: str, file: FileReader, out: memoryview) -> None:
        done = 0
        for piece in file.read_range_stream(0, len(out)) if out else ():
            giving_up.check()
            out[done : done + len(piece)] = piece
            done += len(piece)
        if done != len(out):
            raise self._damaged(key, f"it ended after {done} of {len(out)} bytes")

    def _listed(self, prefix: str) -> Iterator[Stored]:
        root = self._root.rstrip("/") + "/"
        found = []
        with self._explained(prefix, "listed"), contextlib.suppress(FileNotFoundError):
            for status in self._client.list_status((root + prefix).rstrip("/") or "/", recursive=True):
                key = status.path.removeprefix(root)
                # A file where a folder was expected lists itself.
                if not status.isdir and is_key(key) and key.startswith(prefix):
                    found.append(Stored(key, status.length))
        yield from sorted(found)

    def _sweep(self) -> None:
        folder = f"{self._root.rstrip('/')}/{_DRAFTS}"
        with contextlib.suppress(FileNotFoundError):
            for status in list(self._client.list_status(folder)):
                if time.time() - status.modification_time / 1000 > _STALE_AFTER_S:
                    self._client.delete(status.path)

    @contextlib.contextmanager
    def _explained(self, key: str, done: str) -> Iterator[None]:
        try:
            yield
        except (StorageError, UsageError):
            raise
        except Exception as error:
            # The client raises OSError, RuntimeError and some of its own.
            raise self._explain(error, f"{self.url.rstrip('/')}/{key} could not be {done}") from error

    def _explain(self, error: Exception, what: str) -> StorageError:
        text = _first_line(error)
        what = f"{what} ({text[:300]})"
        if _FULL.search(text):
            return StorageFull(
                f"{what}. What was saved before is unharmed. Free some space, add DataNodes or raise the "
                "quota; the next save then works again."
            )
        if isinstance(error, PermissionError) or any(word in text for word in _DENIED):
            return StorageDenied(f"{what}. Check who you are to HDFS, and the permissions of the folder.")
        if isinstance(error, FileExistsError | NotADirectoryError) or "must both be" in text:
            return StorageDenied(
                f"{what}. Something else lies where the object or its folder belongs: move it away, or "
                "choose another path."
            )
        return StorageUnavailable(f"{what}. Try again later, and check the NameNode and the DataNodes.")

    def _damaged(self, key: str, how: str) -> ObjectDamaged:
        return ObjectDamaged(
            f"The object {key} in {self.url} is not what was written: {how}. Use another checkpoint."
        )


def _first_line(error: Exception) -> str:
    """Java's stack trace follows it."""
    return str(error).split("\\n")[0].split("\n")[0] or type(error).__name__
