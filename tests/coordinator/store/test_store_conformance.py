"""What every store promises, whatever it is made of: the seam's docstrings as tests.

Nothing here assumes where revisions begin, how long a store takes, or that leases end with a session.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
from store_factories import StoreFactory
from store_watching import DEADLINE_S, take

from outlast.coordinator.store.seam import (
    MAX_KEY_BYTES,
    MAX_OPERATIONS,
    MAX_VALUE_BYTES,
    Absent,
    Commit,
    Compare,
    CreatedAt,
    Delete,
    Event,
    ModifiedAt,
    Put,
    Store,
    Write,
)
from outlast.errors import StoreError, UsageError


def run(factory: StoreFactory, test: Callable[[Store], Awaitable[None]]) -> None:
    async def main() -> None:
        store = await factory.open()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await test(store)
        finally:
            await store.close()

    asyncio.run(main())


async def revision_of(store: Store) -> int:
    return (await store.read("")).revision


def test_an_entry_remembers_when_it_was_created_and_modified(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        first = await store.commit([], [Put("a", b"1")])
        second = await store.commit([], [Put("a", b"2")])
        entry = (await store.read("a")).entries["a"]
        assert (entry.value, entry.created, entry.modified) == (b"2", first.revision, second.revision)
        assert entry.lease == 0

        await store.commit([], [Delete("a")])
        again = await store.commit([], [Put("a", b"3")])
        entry = (await store.read("a")).entries["a"]
        assert (entry.created, entry.modified) == (again.revision, again.revision)

    run(store_factory, test)


def test_a_read_sees_the_prefix_only_and_in_order(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        keys = ["views/2", "views/1", "view", "viewsX", "other", "views/\N{SNOWMAN}"]
        done = await store.commit([], [Put(key, key.encode()) for key in keys])
        snapshot = await store.read("views/")
        assert list(snapshot.entries) == ["views/1", "views/2", "views/\N{SNOWMAN}"]
        assert snapshot.revision == done.revision
        assert set((await store.read("")).entries) == set(keys)
        assert (await store.read("nothing")).entries == {}

    run(store_factory, test)


def test_the_revision_grows_by_one_with_every_change_and_only_then(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        start = await revision_of(store)
        assert await store.commit([], [Put("a", b""), Put("b", b"")]) == Commit(True, start + 1)
        assert await store.commit([], [Put("a", b"")]) == Commit(True, start + 2)
        assert await store.commit([], []) == Commit(True, start + 2)
        assert await store.commit([], [Delete("no such key")]) == Commit(True, start + 2)
        assert await store.commit([Absent("a")], [Put("c", b"")]) == Commit(False, start + 2)
        assert await store.commit([], [Delete("a"), Delete("no such key")]) == Commit(True, start + 3)
        assert await revision_of(store) == start + 3

    run(store_factory, test)


def test_compares_hold_exactly_when_they_should(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        created = (await store.commit([], [Put("a", b"1")])).revision
        modified = (await store.commit([], [Put("a", b"2")])).revision

        async def holds(*compares: Compare) -> bool:
            return (await store.commit(compares, [])).succeeded

        assert await holds(ModifiedAt("a", modified), CreatedAt("a", created), Absent("b"))
        assert not await holds(ModifiedAt("a", created))
        assert not await holds(CreatedAt("a", modified))
        assert not await holds(Absent("a"))
        assert not await holds(ModifiedAt("b", modified))
        assert not await holds(CreatedAt("b", created))
        assert not await holds(Absent("b"), Absent("a"))

    run(store_factory, test)


def test_a_failed_compare_writes_nothing_at_all(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        await store.commit([], [Put("a", b"old")])
        before = await store.read("")
        failed = await store.commit([Absent("b"), Absent("a")], [Put("a", b"new"), Put("b", b"new")])
        assert not failed.succeeded
        assert await store.read("") == before

    run(store_factory, test)


@pytest.mark.parametrize(
    ("compares", "writes"),
    [
        ([], [Put("k" * (MAX_KEY_BYTES + 1), b"")]),
        ([], [Put("\N{SNOWMAN}" * (MAX_KEY_BYTES // 3 + 1), b"")]),
        ([], [Put("", b"")]),
        ([], [Put("\ud800", b"")]),
        ([], [Put("a", bytes(MAX_VALUE_BYTES + 1))]),
        ([], [Put("a", "text")]),  # type: ignore[arg-type]
        ([], [Put(f"{i}", b"") for i in range(MAX_OPERATIONS + 1)]),
        ([], [Put("a", b""), Delete("a")]),
        ([Absent("")], []),
        ([ModifiedAt("a", 0)], []),
        ([CreatedAt("a", 0)], []),
        ([Absent(f"{i}") for i in range(MAX_OPERATIONS + 1)], []),
    ],
    ids=[
        "a long key",
        "a key that is long in bytes",
        "an empty key",
        "a key that is no Unicode",
        "a large value",
        "a value that is no bytes",
        "many writes",
        "one key twice",
        "an empty key compared",
        "modified at revision 0",
        "created at revision 0",
        "many compares",
    ],
)
def test_what_not_every_store_could_take_is_refused(
    store_factory: StoreFactory, compares: list[Compare], writes: list[Write]
) -> None:
    async def test(store: Store) -> None:
        before = await store.read("")
        with pytest.raises(UsageError):
            await store.commit(compares, writes)
        assert await store.read("") == before

    run(store_factory, test)


def test_the_bounds_themselves_are_possible(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        await store.commit([], [Put("k" * MAX_KEY_BYTES, bytes(MAX_VALUE_BYTES))])
        await store.commit(
            [Absent(f"{i}") for i in range(MAX_OPERATIONS)], [Put(f"{i}", b"") for i in range(MAX_OPERATIONS)]
        )
        snapshot = await store.read("")
        assert len(snapshot.entries["k" * MAX_KEY_BYTES].value) == MAX_VALUE_BYTES
        assert len(snapshot.entries) == MAX_OPERATIONS + 1

    run(store_factory, test)


def test_concurrent_increments_lose_nothing(store_factory: StoreFactory) -> None:
    workers, each = 8, 10

    async def test(store: Store) -> None:
        await store.commit([], [Put("count", b"0")])

        async def work() -> None:
            done = 0
            while done < each:
                entry = (await store.read("count")).entries["count"]
                increment = Put("count", b"%d" % (int(entry.value) + 1))
                commit = await store.commit([ModifiedAt("count", entry.modified)], [increment])
                done += commit.succeeded

        await asyncio.gather(*(work() for _ in range(workers)))
        assert (await store.read("count")).entries["count"].value == b"%d" % (workers * each)

    run(store_factory, test)


def test_only_one_of_many_creates_a_key(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        attempts = (store.commit([Absent("leader")], [Put("leader", b"%d" % i)]) for i in range(20))
        outcomes = await asyncio.gather(*attempts)
        winners = [i for i, outcome in enumerate(outcomes) if outcome.succeeded]
        assert len(winners) == 1
        assert (await store.read("leader")).entries["leader"].value == b"%d" % winners[0]

    run(store_factory, test)


def test_everything_is_there_after_a_reopen(store_factory: StoreFactory) -> None:
    async def main() -> None:
        store = await store_factory.open()
        await store.commit([], [Put("a", b"1"), Put("b", b"1")])
        await store.commit([], [Put("a", b"2")])
        await store.commit([], [Delete("b"), Put("c", bytes(range(256)))])
        before = await store.read("")
        await store.close()

        store = await store_factory.open()
        assert await store.read("") == before
        assert (await store.commit([], [Put("d", b"")])).revision == before.revision + 1
        await store.close()

    asyncio.run(main())


def test_a_watch_replays_the_past_and_then_follows(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        start = await revision_of(store)
        await store.commit([], [Put("w/a", b"1"), Put("other", b""), Put("w/b", b"2")])
        await store.commit([], [Put("other", b"")])
        follower = asyncio.create_task(take(store, "w/", start, 5))
        assert await take(store, "w/", start, 2) == [
            Event(start + 1, "w/a", b"1"),
            Event(start + 1, "w/b", b"2"),
        ]
        await store.commit([], [Delete("w/a"), Delete("w/none")])
        await store.commit([Absent("w/b")], [Put("w/never", b"")])
        await store.commit([], [Put("w/a", b"3"), Delete("w/b")])
        assert await follower == [
            Event(start + 1, "w/a", b"1"),
            Event(start + 1, "w/b", b"2"),
            Event(start + 3, "w/a", None),
            Event(start + 4, "w/a", b"3"),
            Event(start + 4, "w/b", None),
        ]

    run(store_factory, test)


def test_a_watch_from_a_read_misses_nothing_and_repeats_nothing(store_factory: StoreFactory) -> None:
    """A copy that begins with a read and follows a watch equals the store, however the writers race."""

    async def test(store: Store) -> None:
        async def write(worker: int) -> None:
            for i in range(15):
                await store.commit([], [Put(f"k{(i + worker) % 4}", b"%d %d" % (worker, i))])

        async def follow() -> tuple[list[int], dict[str, bytes]]:
            snapshot = await store.read("")
            copy = {key: entry.value for key, entry in snapshot.entries.items()}
            revisions = [snapshot.revision]
            async with aclosing(store.watch("", snapshot.revision)) as events:
                async for event in events:
                    if event.key == "end":
                        return revisions, copy
                    assert event.value is not None
                    copy[event.key] = event.value
                    revisions.append(event.revision)
            raise AssertionError("a watch never ends by itself")

        followers = [asyncio.create_task(follow()) for _ in range(3)]
        await asyncio.gather(*(write(worker) for worker in range(3)))
        expected = {key: entry.value for key, entry in (await store.read("")).entries.items()}
        await store.commit([], [Put("end", b"")])
        for revisions, copy in await asyncio.gather(*followers):
            assert copy == expected
            assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))

    run(store_factory, test)


def test_a_broken_watch_resumes_where_it_was(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        start = await revision_of(store)
        for i in range(6):
            await store.commit([], [Put("w", b"%d" % i)])
        seen = await take(store, "w", start, 2)
        seen += await take(store, "w", seen[-1].revision, 4)
        assert [event.value for event in seen] == [b"%d" % i for i in range(6)]

    run(store_factory, test)


def test_a_watch_of_the_future_waits_for_it(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        start = await revision_of(store)
        watching = asyncio.create_task(take(store, "", start + 2, 1))
        for i in range(3):
            await store.commit([], [Put("a", b"%d" % i)])
        assert await watching == [Event(start + 3, "a", b"2")]

    run(store_factory, test)


def test_an_expired_lease_takes_its_keys_along_in_one_revision(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        lease = await store.grant(store_factory.shortest_ttl_s)
        done = await store.commit([], [Put("b", b"", lease), Put("a", b"", lease), Put("stays", b"")])
        assert (await store.read("a")).entries["a"].lease == lease
        first, second = await take(store, "", done.revision, 2)
        assert (first.key, second.key) == ("a", "b")
        assert first.value is second.value is None
        assert first.revision == second.revision == done.revision + 1
        assert list((await store.read("")).entries) == ["stays"]
        assert not await store.renew(lease)

    run(store_factory, test)


def test_a_renewed_lease_lives_on(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        ttl_s = store_factory.shortest_ttl_s * 4
        lease = await store.grant(ttl_s)
        await store.commit([], [Put("a", b"", lease)])
        end = asyncio.get_running_loop().time() + 2 * ttl_s
        while asyncio.get_running_loop().time() < end:
            assert await store.renew(lease)
            await asyncio.sleep(ttl_s / 10)
        assert "a" in (await store.read("")).entries

    run(store_factory, test)


def test_a_revoked_lease_is_gone_at_once(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        lease, other = await store.grant(60), await store.grant(60)
        assert lease != other
        done = await store.commit([], [Put("a", b"", lease), Put("b", b"", lease), Put("c", b"", other)])
        await store.revoke(lease)
        snapshot = await store.read("")
        assert list(snapshot.entries) == ["c"]
        assert snapshot.revision == done.revision + 1
        assert not await store.renew(lease)
        assert await store.renew(other)
        await store.revoke(lease)
        await store.revoke(other)
        assert (await store.read("")).entries == {}

    run(store_factory, test)


def test_a_lease_without_keys_ends_without_a_revision(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        before = await revision_of(store)
        await store.revoke(await store.grant(60))
        assert await revision_of(store) == before

    run(store_factory, test)


def test_the_last_put_decides_whether_a_key_has_a_lease(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        first, second = await store.grant(60), await store.grant(60)
        await store.commit([], [Put("freed", b"", first), Put("moved", b"", first)])
        await store.commit([], [Put("freed", b""), Put("moved", b"", second)])
        await store.revoke(first)
        assert set((await store.read("")).entries) == {"freed", "moved"}
        await store.revoke(second)
        assert set((await store.read("")).entries) == {"freed"}

    run(store_factory, test)


def test_a_put_with_a_lease_that_is_gone_is_refused(store_factory: StoreFactory) -> None:
    async def test(store: Store) -> None:
        lease = await store.grant(60)
        await store.revoke(lease)
        before = await store.read("")
        with pytest.raises(StoreError, match="lease"):
            await store.commit([], [Put("x", b""), Put("a", b"", lease)])
        assert not (await store.commit([Absent("x"), CreatedAt("x", 1)], [Put("a", b"", lease)])).succeeded
        assert await store.read("") == before

    run(store_factory, test)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_needs_a_time_that_can_work(store_factory: StoreFactory, ttl_s: float) -> None:
    async def test(store: Store) -> None:
        with pytest.raises(UsageError):
            await store.grant(ttl_s)

    run(store_factory, test)


def test_a_closed_store_refuses_and_ends_its_watches(store_factory: StoreFactory) -> None:
    async def main() -> None:
        store = await store_factory.open()
        done = await store.commit([], [Put("a", b"")])
        watching = asyncio.create_task(take(store, "", done.revision, 1))
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(StoreError):
                await watching
        for call in (
            store.read(""),
            store.commit([], [Put("a", b"")]),
            store.grant(1),
            store.renew(1),
            store.revoke(1),
            take(store, "", 0, 1),
        ):
            with pytest.raises(StoreError, match="closed"):
                await call

    asyncio.run(main())
