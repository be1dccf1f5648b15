"""What tests of an etcd cluster in trouble do alike: insist on a value, count, and follow."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from store_watching import DEADLINE_S

from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.store.seam import Absent, ModifiedAt, Put
from outlast.errors import Compacted, OutcomeUnknown, StoreError
from servers.etcd import Etcd

AGAIN_S = 0.05


def run(server: Etcd, test: Callable[[EtcdStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = await EtcdStore.open(server.address("job"))
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                await test(store)
        finally:
            await store.close()

    asyncio.run(main())


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> None:
    """It may fail while the cluster is in trouble."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if await holds():
                    return
            except StoreError:
                pass
            # What it waits for is in other processes.
            await asyncio.sleep(0.02)


async def insist(store: EtcdStore, key: str, value: bytes) -> None:
    """Write it, however often that takes."""

    async def written() -> bool:
        found = (await store.read(key)).entries.get(key)
        if found is not None and found.value == value:
            return True
        unchanged = ModifiedAt(key, found.modified) if found is not None else Absent(key)
        await store.commit([unchanged], [Put(key, value)])
        return False

    await wait_until(written)


class Counters:
    """Several count up one number in the store, for as long as the block lasts.

    Afterwards it must have grown by at least what surely went well, and at most by what perhaps did, too.
    """

    def __init__(self, store: EtcdStore, workers: int = 3) -> None:
        self._store = store
        self._workers = workers
        self._stop = asyncio.Event()
        self._sure = self._perhaps = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Counters":
        await insist(self._store, "count", b"0")
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        final = -1

        async def read() -> bool:
            nonlocal final
            final = await self._counted()
            return True

        await wait_until(read)
        assert self._sure <= final <= self._sure + self._perhaps

    async def go_on(self, by: int) -> None:
        """Until so many more are counted."""
        goal = -1

        async def reached() -> bool:
            nonlocal goal
            counted = await self._counted()
            goal = counted + by if goal < 0 else goal
            return counted >= goal

        await wait_until(reached)

    async def _counted(self) -> int:
        return int((await self._store.read("count")).entries["count"].value)

    async def _work(self) -> None:
        while not self._stop.is_set():
            try:
                entry = (await self._store.read("count")).entries["count"]
                counted = Put("count", b"%d" % (int(entry.value) + 1))
                done = await self._store.commit([ModifiedAt("count", entry.modified)], [counted])
                self._sure += done.succeeded
            except OutcomeUnknown:
                self._perhaps += 1
            except StoreError:
                await asyncio.sleep(AGAIN_S)


class Follower:
    """Follows a key until its value is `end`, and goes on elsewhere when its watch breaks."""

    def __init__(self, store: EtcdStore, key: str, after: int) -> None:
        self.seen: list[bytes | None] = []
        self.breaks = 0
        self._store = store
        self._key = key
        self._after = after
        self._following = asyncio.create_task(self._follow())

    async def saw(self, value: bytes) -> None:
        async def seen() -> bool:
            return value in self.seen

        await wait_until(seen)

    async def broke(self) -> None:
        async def broken() -> bool:
            return self.breaks > 0

        await wait_until(broken)

    async def end(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._following

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._store.watch(self._key, self._after)) as events:
                    async for event in events:
                        self.seen.append(event.value)
                        self._after = event.revision
                        if event.value == b"end":
                            return
            except Compacted:
                raise
            except StoreError:
                self.breaks += 1
                await asyncio.sleep(AGAIN_S)
