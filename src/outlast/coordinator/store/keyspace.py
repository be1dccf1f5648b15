"""The embedded store's memory: the entries at the newest revision, and the recent history of how they came.

This is the pure half of the embedded store. It neither waits nor writes: it answers whether a compare holds,
works out what a list of writes would change, and applies changes that somebody else has made durable.

The history is one shared list of recent revisions. Watchers read from it at their own pace, each remembering
only how far it has come, so a slow watcher costs nothing; one that falls behind the oldest revision kept is
told so (`Compacted`) and reads the state anew.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import final

from outlast.coordinator.store.records import Change, Kept, State
from outlast.coordinator.store.seam import (
    Absent,
    Compare,
    Entry,
    Event,
    ModifiedAt,
    Put,
    Snapshot,
    Write,
)
from outlast.errors import Compacted

_ENTRY_OVERHEAD_BYTES = 32
"""About what an entry's revisions and lease add to its key and value on disk."""


@final
class History:
    """The events of the newest revisions, without gaps, bounded in number and in bytes."""

    def __init__(self, revision: int, max_events: int, max_bytes: int) -> None:
        self._floor = revision
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._batches: deque[tuple[Event, ...]] = deque()
        self._events = 0
        self._bytes = 0

    def add(self, batch: tuple[Event, ...]) -> None:
        """Takes the events of the next revision and forgets the oldest ones that no longer fit."""
        self._batches.append(batch)
        self._events += len(batch)
        self._bytes += _size_bytes(batch)
        # The newest revision stays, however large, since otherwise no watcher could ever get past it.
        while len(self._batches) > 1 and (self._events > self._max_events or self._bytes > self._max_bytes):
            oldest = self._batches.popleft()
            self._floor = oldest[0].revision
            self._events -= len(oldest)
            self._bytes -= _size_bytes(oldest)

    def following(self, after: int) -> tuple[Event, ...] | None:
        """All events of the first revision after this one; None when it has not happened yet."""
        if after < self._floor:
            raise Compacted(
                f"The history after revision {after} is gone; it begins after revision {self._floor}. Read "
                "the state anew and watch from the revision of that read."
            )
        index = after - self._floor
        return self._batches[index] if index < len(self._batches) else None


@final
class Keyspace:
    def __init__(self, revision: int, state: State, *, history_events: int, history_bytes: int) -> None:
        self.revision = revision
        self.live_bytes = 0
        self.history = History(revision, history_events, history_bytes)
        self._entries: dict[str, Entry] = {}
        for kept in state.entries:
            self._set(Entry(kept.key, kept.value, kept.created, kept.modified, kept.lease))

    def select(self, prefix: str) -> Snapshot:
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(self.revision, {key: self._entries[key] for key in keys})

    def holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        if isinstance(compare, Absent):
            return entry is None
        if entry is None:
            return False
        return compare.revision == (entry.modified if isinstance(compare, ModifiedAt) else entry.created)

    def changes_of(self, writes: Sequence[Write]) -> tuple[Change, ...]:
        """What the writes would really change: deleting a key that does not exist is no change."""
        return tuple(
            Change(write.key, write.value, write.lease) if isinstance(write, Put) else Change(write.key, None)
            for write in writes
            if isinstance(write, Put) or write.key in self._entries
        )

    def deletions_of(self, leases: Iterable[int]) -> tuple[Change, ...]:
        """What the end of these leases changes: every key bound to one of them goes."""
        # Lease 0 stands for none, and the end of none must not take the keys that are bound to none.
        ended = set(leases) - {0}
        return tuple(Change(key, None) for key in sorted(self._entries) if self._entries[key].lease in ended)

    def leases(self) -> set[int]:
        """All leases that some key is bound to."""
        return {entry.lease for entry in self._entries.values()} - {0}

    def apply(self, changes: tuple[Change, ...]) -> None:
        """Makes durable changes visible, as the next revision."""
        self.revision += 1
        for change in changes:
            previous = self._entries.get(change.key)
            if previous is not None:
                self._forget(previous)
            if change.value is not None:
                created = previous.created if previous is not None else self.revision
                self._set(Entry(change.key, change.value, created, self.revision, change.lease))
        self.history.add(tuple(Event(self.revision, change.key, change.value) for change in changes))

    def kept(self) -> tuple[Kept, ...]:
        """The whole state, as a compacted log begins with it."""
        return tuple(Kept(e.key, e.value, e.created, e.modified, e.lease) for e in self._entries.values())

    def _set(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        self.live_bytes += len(entry.key) + len(entry.value) + _ENTRY_OVERHEAD_BYTES

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self.live_bytes -= len(entry.key) + len(entry.value) + _ENTRY_OVERHEAD_BYTES


def _size_bytes(batch: tuple[Event, ...]) -> int:
    return sum(len(event.key) + len(event.value or b"") + _ENTRY_OVERHEAD_BYTES for event in batch)
