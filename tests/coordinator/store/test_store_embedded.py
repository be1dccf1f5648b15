"""What the embedded store promises beyond the seam: its log, its memory, its leases, its disk thread."""

import asyncio
import errno
import itertools
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from store_faults import FaultyDisk
from store_watching import DEADLINE_S, take

from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.seam import Absent, Commit, Delete, Event, ModifiedAt, Put
from outlast.errors import Compacted, OutcomeUnknown, StoreError, StoreFull, StoreLocked
from patience import PATIENCE_S


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(in_time())


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what happens in the disk's thread, which has no asyncio event to wait on."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_leases_of_an_earlier_session_take_their_keys_along(tmp_path: Path) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path)
        lease, other = await store.grant(60), await store.grant(60)
        await store.commit([], [Put("b", b"", lease), Put("a", b"", other), Put("stays", b"")])
        before = await store.read("")
        await store.close()

        store = await EmbeddedStore.open(tmp_path)
        snapshot = await store.read("")
        assert list(snapshot.entries) == ["stays"]
        assert snapshot.revision == before.revision + 1
        assert await take(store, "", before.revision, 2) == [
            Event(before.revision + 1, "a", None),
            Event(before.revision + 1, "b", None),
        ]
        assert not await store.renew(lease)
        await store.close()

        store = await EmbeddedStore.open(tmp_path)
        assert await store.read("") == snapshot
        await store.close()

    run(main)


def test_a_lease_ends_by_the_stores_clock(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        store = await EmbeddedStore.open(tmp_path, clock=clock)
        lease = await store.grant(10)
        await store.commit([], [Put("a", b"", lease)])
        clock.now += 9
        assert await store.renew(lease)
        clock.now += 9
        await store.expire()
        assert "a" in (await store.read("")).entries
        clock.now += 1
        assert not await store.renew(lease)
        with pytest.raises(StoreError, match="lease"):
            await store.commit([], [Put("b", b"", lease)])
        await store.expire()
        assert (await store.read("")).entries == {}
        await store.close()

    run(main)


def test_the_end_of_a_lease_waits_for_space_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        lease = await store.grant(0.02)
        done = await store.commit([], [Put("a", b"", lease)])
        disk.space_bytes = 0
        await until(lambda: "could not be deleted yet" in caplog.text)
        assert not await store.renew(lease)
        assert "a" in (await store.read("")).entries
        disk.space_bytes = None
        assert await take(store, "", done.revision, 1) == [Event(done.revision + 1, "a", None)]
        await store.close()

    run(main)


def test_revoking_no_lease_deletes_no_key(tmp_path: Path) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path)
        await store.commit([], [Put("a", b"")])
        await store.revoke(0)
        assert "a" in (await store.read("")).entries
        await store.close()

    run(main)


def test_nothing_is_visible_before_it_is_durable_and_the_loop_stays_responsive(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        before = await store.read("")
        disk.may_sync.clear()
        watching = asyncio.create_task(take(store, "", before.revision, 1))
        committing = asyncio.create_task(store.commit([], [Put("a", b"1")]))
        await until(disk.syncing.is_set)
        for _ in range(50):
            await asyncio.sleep(0)
        assert await store.read("") == before
        assert not watching.done()
        assert not committing.done()
        disk.may_sync.set()
        assert (await committing).revision == before.revision + 1
        assert await watching == [Event(before.revision + 1, "a", b"1")]
        await store.close()

    run(main)


def test_a_commit_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        disk.may_sync.clear()
        first = asyncio.create_task(store.commit([], [Put("a", b"1")]))
        second = asyncio.create_task(store.commit([Absent("b")], [Put("b", b"1")]))
        await until(disk.syncing.is_set)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.cancelled()
        disk.may_sync.set()
        assert (await store.commit([], [Put("c", b"1")])).revision == 3
        assert list((await store.read("")).entries) == ["a", "b", "c"]
        await store.close()
        store = await EmbeddedStore.open(tmp_path)
        assert list((await store.read("")).entries) == ["a", "b", "c"]
        await store.close()

    run(main)


def test_an_error_that_no_caller_waits_for_any_more_is_not_reported_as_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        forgotten: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        disk.may_sync.clear()
        disk.failures["truncate"] = [errno.EIO]
        holding = asyncio.create_task(store.commit([], [Put("a", b"1")]))
        await until(disk.syncing.is_set)
        cancelled = asyncio.create_task(store.commit([], [Put("b", b"1")]))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        disk.space_bytes = 0
        disk.may_sync.set()
        await holding
        await store.close()
        assert forgotten == []

    run(main)


def test_a_close_lets_the_commit_under_way_finish(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        disk.may_sync.clear()
        under_way = asyncio.create_task(store.commit([], [Put("a", b"1")]))
        await until(disk.syncing.is_set)
        waiting = asyncio.create_task(store.commit([], [Put("b", b"1")]))
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        disk.may_sync.set()
        assert (await under_way).succeeded
        with pytest.raises(StoreError, match="closed"):
            await waiting
        await closing
        store = await EmbeddedStore.open(tmp_path)
        assert list((await store.read("")).entries) == ["a"]
        await store.close()

    run(main)


def test_a_full_disk_decides_nothing_and_the_store_goes_on_later(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        await store.commit([], [Put("a", b"1")])
        before = await store.read("")
        disk.space_bytes = 15
        for _ in range(2):
            with pytest.raises(StoreFull):
                await store.commit([], [Put("a", b"2"), Delete("a2")])
            assert await store.read("") == before
        disk.space_bytes = None
        assert await store.commit([ModifiedAt("a", 1)], [Put("a", b"2")]) == Commit(True, 2)
        assert await take(store, "", 1, 1) == [Event(2, "a", b"2")]
        await store.close()

    run(main)


def test_after_an_unknown_outcome_the_store_answers_nothing_until_it_is_opened_anew(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, disk=disk)
        await store.commit([], [Put("a", b"1")])
        watching = asyncio.create_task(take(store, "", 1, 1))
        await asyncio.sleep(0)
        disk.failures["sync_data"] = [errno.EIO]
        with pytest.raises(OutcomeUnknown):
            await store.commit([], [Put("a", b"2")])
        for refused in (
            store.read(""),
            store.commit([], [Put("a", b"3")]),
            store.grant(1),
            store.renew(1),
            store.revoke(1),
            watching,
        ):
            with pytest.raises(StoreError, match="Open it again"):
                await refused
        await store.close()

        store = await EmbeddedStore.open(tmp_path)
        snapshot = await store.read("")
        assert (snapshot.revision, snapshot.entries["a"].value) in ((1, b"1"), (2, b"2"))
        await store.close()

    run(main)


def test_the_log_is_compacted_once_it_is_mostly_history(tmp_path: Path) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path, compact_above_bytes=10_000)
        await store.commit([], [Put("first", b"1")])
        sizes = []
        for i in range(200):
            await store.commit([], [Put(f"key{i % 3}", b"%d" % i * 100)])
            sizes.append((tmp_path / "log").stat().st_size)
        assert max(sizes) < 12_000
        assert sum(later < earlier for earlier, later in itertools.pairwise(sizes)) >= 3
        assert len(await take(store, "", 0, 201)) == 201
        before = await store.read("")
        await store.close()

        store = await EmbeddedStore.open(tmp_path)
        assert await store.read("") == before
        with pytest.raises(Compacted, match="Read the state anew"):
            await take(store, "", 0, 1)
        assert before.entries["first"].created == 1
        assert (await store.commit([], [Put("a", b"")])).revision == before.revision + 1
        assert len(await take(store, "", before.revision, 1)) == 1
        await store.close()

    run(main)


def test_a_large_state_is_not_compacted_again_and_again(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, compact_above_bytes=1000, disk=disk)
        for i in range(100):
            await store.commit([], [Put(f"key{i}", bytes(100))])
        await store.close()
        # One rename made the log; with nothing but live state in it, there was nothing to compact.
        assert disk.calls.count("rename") == 1

    run(main)


def test_a_compaction_that_fails_is_no_callers_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = FaultyDisk()
        store = await EmbeddedStore.open(tmp_path, compact_above_bytes=2000, disk=disk)
        opens = disk.calls.count("open")
        disk.failures["sync_all"] = [errno.ENOSPC] * 2
        for i in range(150):
            assert (await store.commit([], [Put("key", b"%d" % i * 20)])).succeeded
        assert caplog.text.count("could not be compacted") == 2
        assert disk.calls.count("open") - opens > 2
        assert (tmp_path / "log").stat().st_size < 5000
        await store.close()
        store = await EmbeddedStore.open(tmp_path)
        assert (await store.read("")).revision == 150
        await store.close()

    run(main)


def test_the_history_survives_a_reopen(tmp_path: Path) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path)
        for i in range(5):
            await store.commit([], [Put("a", b"%d" % i)])
        before = await take(store, "", 0, 5)
        await store.close()
        store = await EmbeddedStore.open(tmp_path)
        assert await take(store, "", 0, 5) == before
        await store.close()

    run(main)


@pytest.mark.parametrize(("events", "size_bytes"), [(10, 1 << 20), (1000, 2000)], ids=["events", "bytes"])
def test_the_history_is_bounded_and_says_when_it_is_gone(
    tmp_path: Path, events: int, size_bytes: int
) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path, history_events=events, history_bytes=size_bytes)
        async with aclosing(store.watch("", 0)) as slow:
            await store.commit([], [Put("a", b"first"), Put("b", b"first")])
            assert (await anext(slow)).key == "a"
            for i in range(40):
                await store.commit([], [Put("a", b"%d" % i * 100)])
            # A revision that has begun is handed out whole, however far behind the watcher is.
            assert (await anext(slow)).key == "b"
            with pytest.raises(Compacted):
                await anext(slow)
        newest = (await store.read("")).revision
        assert len(await take(store, "", newest - 5, 5)) == 5
        with pytest.raises(Compacted):
            await take(store, "", newest - 30, 1)
        await store.close()

    run(main)


def test_a_torn_tail_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path)
        await store.commit([], [Put("a", b"1")])
        assert store.dropped_bytes == 0
        await store.close()
        with (tmp_path / "log").open("ab") as file:
            file.write(b"torn")
        with caplog.at_level(logging.WARNING):
            store = await EmbeddedStore.open(tmp_path)
        assert store.dropped_bytes == 4
        assert "4 bytes of an unfinished record" in caplog.text
        assert list((await store.read("")).entries) == ["a"]
        await store.close()

    run(main)


def test_only_one_store_has_the_directory_and_a_cancelled_opening_gives_it_back(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.create_task(EmbeddedStore.open(tmp_path))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        store = await EmbeddedStore.open(tmp_path)
        with pytest.raises(StoreLocked):
            await EmbeddedStore.open(tmp_path)
        await store.close()

    run(main)


def test_a_loop_that_ends_in_the_middle_of_a_commit_leaves_a_good_log(tmp_path: Path) -> None:
    disk = FaultyDisk()
    stores: list[EmbeddedStore] = []

    async def main() -> None:
        stores.append(await EmbeddedStore.open(tmp_path, disk=disk))
        await stores[0].commit([], [Put("a", b"")])
        disk.syncing.clear()
        disk.may_sync.clear()
        abandoned = asyncio.create_task(stores[0].commit([], [Put("b", b"")]))
        await until(disk.syncing.is_set)
        assert not abandoned.done()

    run(main)
    disk.may_sync.set()

    async def again() -> None:
        with pytest.raises(StoreError, match="Open it again"):
            await stores[0].read("")
        await stores[0].close()
        store = await EmbeddedStore.open(tmp_path)
        assert list((await store.read("")).entries) == ["a", "b"]
        await store.close()

    run(again)


def test_importing_the_store_is_light() -> None:
    code = (
        "import sys, outlast.coordinator.store.embedded; print({'torch', 'rich', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert run.stdout.strip() == "set()"
