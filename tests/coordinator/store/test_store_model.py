"""Random histories of commits, leases and reopenings, compared with a model of a few lines."""

import asyncio
import tempfile
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from store_faults import PowerCutDisk
from store_watching import take

from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.seam import (
    Absent,
    Compare,
    CreatedAt,
    Delete,
    Entry,
    Event,
    ModifiedAt,
    Put,
    Write,
)

keys = st.sampled_from(["a", "a/b", "a/c", "b"])
revisions = st.integers(1, 8)
compares = st.lists(
    st.one_of(
        st.builds(Absent, keys), st.builds(ModifiedAt, keys, revisions), st.builds(CreatedAt, keys, revisions)
    ),
    max_size=2,
)
# The lease here is 0 or 1, where 1 stands for whatever lease the session has.
puts = st.builds(Put, keys, st.binary(max_size=60), st.integers(0, 1))
writes = st.lists(st.one_of(puts, st.builds(Delete, keys)), max_size=3, unique_by=lambda write: write.key)
operations = st.lists(
    st.one_of(st.tuples(compares, writes), st.sampled_from(["reopen", "revoke"])), min_size=1, max_size=25
)


Operation = Literal["reopen", "revoke"] | tuple[list[Compare], list[Write]]


class Model:
    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self.events: list[Event] = []

    def commit(self, compares: list[Compare], writes: list[Write]) -> bool:
        if not all(self._holds(compare) for compare in compares):
            return False
        writes = [write for write in writes if isinstance(write, Put) or write.key in self.entries]
        self.revision += bool(writes)
        for write in writes:
            if isinstance(write, Put):
                created = self.entries[write.key].created if write.key in self.entries else self.revision
                self.entries[write.key] = Entry(write.key, write.value, created, self.revision, write.lease)
                self.events.append(Event(self.revision, write.key, write.value))
            else:
                del self.entries[write.key]
                self.events.append(Event(self.revision, write.key, None))
        return True

    def end_leases(self) -> None:
        self.commit([], [Delete(key) for key in sorted(self.entries) if self.entries[key].lease])

    def _holds(self, compare: Compare) -> bool:
        entry = self.entries.get(compare.key)
        match compare:
            case Absent():
                return entry is None
            case ModifiedAt():
                return entry is not None and entry.modified == compare.revision
            case CreatedAt():
                return entry is not None and entry.created == compare.revision


async def follow(operations: list[Operation], directory: Path) -> None:
    model = Model()
    disk = PowerCutDisk(directory)
    store = await EmbeddedStore.open(directory, disk=disk, compact_above_bytes=600)
    first = 0
    lease = await store.grant(600)
    for operation in operations:
        if operation == "reopen":
            await store.close()
            store = await EmbeddedStore.open(directory, disk=disk, compact_above_bytes=600)
            # A compaction may have taken the history of the session before, but not of this one.
            first = model.revision
            model.end_leases()
            lease = await store.grant(600)
        elif operation == "revoke":
            await store.revoke(lease)
            model.end_leases()
            lease = await store.grant(600)
        else:
            compares, wanted = operation
            writes = [Put(w.key, w.value, w.lease * lease) if isinstance(w, Put) else w for w in wanted]
            done = await store.commit(compares, writes)
            assert done.succeeded == model.commit(compares, writes)
            assert done.revision == model.revision
        snapshot = await store.read("")
        assert snapshot.revision == model.revision
        assert snapshot.entries == model.entries
        assert set((await store.read("a/")).entries) == {key for key in model.entries if key.startswith("a/")}
    events = [event for event in model.events if event.revision > first]
    if events:
        assert await take(store, "", first, len(events)) == events
    await store.close()


@settings(max_examples=40, deadline=None)
@given(operations)
def test_the_store_does_what_the_model_does(
    operations: list[Operation],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(follow(operations, Path(directory)))
