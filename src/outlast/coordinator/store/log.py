"""The append-only log on local disk: what makes a decision survive.

A directory holds three names: `log`; `log.new`, while a fresh log is being written; and `lock`, which keeps
other processes out. A record is appended and synced before anybody hears of it. When the log has grown much
longer than the state that it describes, a fresh one that begins with that state takes its name in one rename,
so a crash at any point leaves the old log or the new one.

Three kinds of trouble are told apart, because they call for three different things:

- **No space**: the half-written record is cut off again, the caller hears `StoreFull`, and the log goes on as
  soon as there is space.
- **A failed sync**: the kernel may have dropped the data and will not say so again, so nobody knows what is
  on the disk. The caller hears `OutcomeUnknown`, and this log refuses everything until it is opened anew.
- **A bad file** at opening: see `frames` for what is repaired and what is refused.

Nothing here knows asyncio: the calls block, and one thread at a time makes them.
"""

import os
from pathlib import Path
from typing import NoReturn, final

from msgspec import Struct

from outlast.coordinator.store.disk import NO_SPACE, Disk, LocalDisk, explain, write_all
from outlast.coordinator.store.frames import (
    SALT_BYTES,
    Frame,
    decode_log,
    encode_frame,
    encode_header,
)
from outlast.coordinator.store.lock import DirectoryLock
from outlast.coordinator.store.records import Change, Kept, State, Transaction, decode_records, encode_record
from outlast.errors import OutcomeUnknown, StoreError


class Recovered(Struct, frozen=True):
    """What an opened log held, and how many bytes of a torn tail were cut off."""

    revision: int
    state: State
    transactions: list[Transaction]
    dropped_bytes: int


@final
class Log:
    """One open log. `size_bytes` is the length of its file."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.size_bytes = 0
        self.failure: str | None = None
        self._disk = disk
        self._path = directory / "log"
        self._fresh_path = directory / "log.new"
        self._salt = b""
        self._revision = 0
        self._file = -1
        self._names = -1
        self._closed = False
        self._lock = DirectoryLock(directory)

    @classmethod
    def open(cls, directory: Path, disk: Disk | None = None) -> tuple["Log", Recovered]:
        """Opens the log in a directory, or begins one, and returns what it held."""
        disk = disk or LocalDisk()
        _make_directory(directory, disk)
        log = cls(directory, disk)
        try:
            try:
                return log, log._recover(directory)
            except OSError as error:
                raise explain(error, log._path) from error
        except BaseException:
            log.close()
            raise

    def append(self, revision: int, changes: tuple[Change, ...]) -> None:
        """Makes one revision durable, or raises and leaves the log as it was."""
        self._refuse_after_failure()
        if revision != self._revision + 1:
            raise ValueError(f"revision {revision} cannot follow revision {self._revision}")
        frame = encode_frame(self._salt, revision, encode_record(Transaction(changes)))
        try:
            write_all(self._disk, self._file, frame, self.size_bytes)
        except OSError as error:
            self._cut_back(error)
        try:
            self._disk.sync_data(self._file)
        except OSError as error:
            # Some file systems find out only here that there is no space; all other failures say nothing
            # about what reached the disk.
            if error.errno not in NO_SPACE:
                raise self._fail(error) from error
            self._cut_back(error)
        self.size_bytes += len(frame)
        self._revision = revision

    def compact(self, revision: int, entries: tuple[Kept, ...]) -> None:
        """Replaces the log by one that begins with this state, the state of its newest revision."""
        self._refuse_after_failure()
        if revision != self._revision:
            raise ValueError(f"revision {revision} is not the log's newest, {self._revision}")
        try:
            file, salt, size_bytes = self._write_fresh(revision, State(entries))
        except OSError as error:
            raise explain(error, self._fresh_path) from error
        try:
            self._disk.rename(self._fresh_path, self._path)
            self._disk.sync_all(self._names)
        except OSError as error:
            # After a power cut the name may stand for either log, so a record in only one could be missed.
            os.close(file)
            raise self._fail(error) from error
        os.close(self._file)
        self._file, self._salt, self.size_bytes = file, salt, size_bytes

    def close(self) -> None:
        """Gives the files and the lock back; closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self.failure = self.failure or "it is closed"
        for file in (self._file, self._names):
            if file >= 0:
                os.close(file)
        self._lock.release()

    def _recover(self, directory: Path) -> Recovered:
        self._names = self._disk.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._disk.remove(self._fresh_path)
        try:
            self._file = self._disk.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            self._file, self._salt, self.size_bytes = self._write_fresh(0, State())
            self._disk.rename(self._fresh_path, self._path)
            self._disk.sync_all(self._names)
            return Recovered(0, State(), [], 0)
        data = self._path.read_bytes()
        self._salt, frames = decode_log(data, self._path)
        state, transactions = decode_records(frames, self._path)
        self.size_bytes = frames[-1].end
        self._revision = frames[-1].revision
        dropped_bytes = len(data) - self.size_bytes
        if dropped_bytes:
            self._disk.truncate(self._file, self.size_bytes)
        self._settle(frames)
        return Recovered(frames[0].revision, state, transactions, dropped_bytes)

    def _settle(self, frames: list[Frame]) -> None:
        """Makes what was just read durable, before anybody acts on it.

        The last record may have been read from the page cache without ever having reached the disk: its
        writer was killed before the sync, or the sync failed, after which the kernel takes the page for
        clean. Writing the same bytes once more makes the sync include them. All earlier records were synced
        before it.
        """
        if len(frames) > 1:
            last = frames[-1]
            write_all(
                self._disk, self._file, encode_frame(self._salt, last.revision, last.payload), last.start
            )
        self._disk.sync_all(self._file)
        self._disk.sync_all(self._names)

    def _write_fresh(self, revision: int, state: State) -> tuple[int, bytes, int]:
        """Writes a whole new log beside the present one; returns its open file, its salt and its size."""
        salt = os.urandom(SALT_BYTES)
        data = encode_header(salt) + encode_frame(salt, revision, encode_record(state))
        file = self._disk.open(self._fresh_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._disk, file, data, 0)
            self._disk.sync_all(file)
        except OSError:
            os.close(file)
            self._disk.remove(self._fresh_path)
            raise
        return file, salt, len(data)

    def _cut_back(self, error: OSError) -> NoReturn:
        """Removes whatever an append left behind and raises the error as the caller should see it."""
        try:
            self._disk.truncate(self._file, self.size_bytes)
            self._disk.sync_all(self._file)
        except OSError as second:
            raise self._fail(second) from error
        raise explain(error, self._path) from error

    def _fail(self, error: OSError) -> OutcomeUnknown:
        self.failure = f"the disk failed ({error.strerror or error}), so nobody knows what is on it"
        return OutcomeUnknown(
            f"{self._path}: {self.failure}. The last change may or may not be there. Check the disk and "
            "start the coordinator again; it then reads what is there."
        )

    def _refuse_after_failure(self) -> None:
        if self.failure:
            raise StoreError(f"{self._path} takes no more changes: {self.failure}. Open the store again.")


def _make_directory(directory: Path, disk: Disk) -> None:
    """Makes the directory and those above it, each one's name durable, for their owner only."""
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            parent = disk.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                disk.sync_all(parent)
            finally:
                os.close(parent)
    except OSError as error:
        raise explain(error, directory) from error
