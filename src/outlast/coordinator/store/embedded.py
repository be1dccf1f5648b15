"""The embedded store: the seam on top of one log on local disk, for a coordinator that runs alone.

It is the default on one machine and needs no service beside it. The whole state is in memory, and the log
makes it durable. A commit waits for its turn, is checked against the state, goes to the disk, and only then
becomes visible. The disk is used from a single thread of its own, so the event loop stays responsive however
slow it is.

A commit that has begun runs to its end even if its caller is cancelled: half a commit is no outcome that the
next one could build on. Should the disk fail in a way that leaves a commit's outcome unknown, the store
refuses everything from then on, reads included, because a read would answer a question whose answer is only
on the disk.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, final

from outlast.coordinator.store.disk import Disk
from outlast.coordinator.store.keyspace import Keyspace
from outlast.coordinator.store.leases import Leases
from outlast.coordinator.store.log import Log, Recovered
from outlast.coordinator.store.records import Change
from outlast.coordinator.store.seam import (
    Commit,
    Compare,
    Event,
    Put,
    Snapshot,
    Write,
    check_transaction,
    check_ttl,
)
from outlast.errors import StoreError

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

COMPACT_ABOVE_BYTES = 1 << 20
COMPACT_RATIO = 4
HISTORY_EVENTS = 4096
HISTORY_BYTES = 16 << 20
EXPIRY_RETRY_S = 0.25


@final
class EmbeddedStore:
    """Made by `open`. `dropped_bytes` says how much of a torn tail the log lost when it was opened."""

    reads_newest = True
    comes_back = False

    def __init__(
        self,
        log: Log,
        keyspace: Keyspace,
        writer: ThreadPoolExecutor,
        clock: Callable[[], float],
        compact_above_bytes: int,
    ) -> None:
        self.dropped_bytes = 0
        self._log = log
        self._keyspace = keyspace
        self._writer = writer
        self._clock = clock
        self._compact_above_bytes = self._compact_next_bytes = compact_above_bytes
        self._leases = Leases()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._lease_granted = asyncio.Event()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._expiry = asyncio.create_task(self._expire_in_time())

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        disk: Disk | None = None,
        compact_above_bytes: int = COMPACT_ABOVE_BYTES,
        history_events: int = HISTORY_EVENTS,
        history_bytes: int = HISTORY_BYTES,
    ) -> "EmbeddedStore":
        """Opens the store in a directory, or begins one; deletes the keys of earlier sessions' leases."""

        def recover() -> tuple[Log, Recovered, Keyspace]:
            log, recovered = Log.open(directory, disk)
            try:
                keyspace = Keyspace(
                    recovered.revision,
                    recovered.state,
                    history_events=history_events,
                    history_bytes=history_bytes,
                )
                for transaction in recovered.transactions:
                    keyspace.apply(transaction.changes)
                orphans = keyspace.deletions_of(keyspace.leases())
                if orphans:
                    log.append(keyspace.revision + 1, orphans)
                    keyspace.apply(orphans)
            except BaseException:
                log.close()
                raise
            return log, recovered, keyspace

        writer = ThreadPoolExecutor(1, thread_name_prefix="outlast-store")
        opening = writer.submit(recover)
        try:
            log, recovered, keyspace = await asyncio.wrap_future(opening)
        except BaseException:
            # If this call was cancelled, the log may have been opened, and nobody else will close it.
            writer.shutdown(wait=True)
            if not opening.cancelled() and opening.exception() is None:
                opening.result()[0].close()
            raise
        store = cls(log, keyspace, writer, clock, compact_above_bytes)
        store.dropped_bytes = recovered.dropped_bytes
        if recovered.dropped_bytes:
            _logger.warning(
                "The log in %s ended in %d bytes of an unfinished record, as a crash leaves them; they were "
                "dropped.",
                directory,
                recovered.dropped_bytes,
            )
        return store

    async def read(self, prefix: str) -> Snapshot:
        self._refuse_unless_usable()
        return self._keyspace.select(prefix)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        compares, writes = tuple(compares), tuple(writes)
        check_transaction(compares, writes)
        return await self._to_its_end(self._commit(compares, writes))

    async def grant(self, ttl_s: float) -> int:
        check_ttl(ttl_s)
        self._refuse_unless_usable()
        lease = self._leases.grant(ttl_s, self._clock())
        self._lease_granted.set()
        return lease

    async def renew(self, lease: int) -> bool:
        self._refuse_unless_usable()
        return self._leases.renew(lease, self._clock())

    async def revoke(self, lease: int) -> None:
        await self._to_its_end(self._end([lease]))

    async def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        while True:
            self._refuse_unless_usable()
            # Nothing is awaited between taking the signal and looking at the history, so no change is missed.
            changed = self._changed
            batch = self._keyspace.history.following(after)
            if batch is None:
                await changed.wait()
                continue
            after = batch[0].revision
            for event in batch:
                if event.key.startswith(prefix):
                    yield event

    async def expire(self) -> None:
        """Ends all leases whose time is up. The store does so by itself, unless a test stops its clock."""
        due = self._leases.due(self._clock())
        if due:
            await self._to_its_end(self._end(due))

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._start(self._close())
        await asyncio.shield(self._closing)

    async def _commit(self, compares: tuple[Compare, ...], writes: tuple[Write, ...]) -> Commit:
        async with self._turn:
            self._refuse_unless_usable()
            if not all(self._keyspace.holds(compare) for compare in compares):
                return Commit(False, self._keyspace.revision)
            now = self._clock()
            for put in (write for write in writes if isinstance(write, Put)):
                if put.lease and not self._leases.alive(put.lease, now):
                    raise StoreError(
                        f"Key {put.key!r} was to be bound to lease {put.lease}, which is gone. Nothing was "
                        "written. Ask for a new lease."
                    )
            await self._make_durable(self._keyspace.changes_of(writes))
            return Commit(True, self._keyspace.revision)

    async def _end(self, leases: list[int]) -> None:
        async with self._turn:
            self._refuse_unless_usable()
            for lease in leases:
                await self._make_durable(self._keyspace.deletions_of([lease]))
                self._leases.drop(lease)

    async def _make_durable(self, changes: tuple[Change, ...]) -> None:
        """Writes the next revision, then makes it visible. The caller holds the turn."""
        if not changes:
            return
        try:
            await self._on_disk(self._log.append, self._keyspace.revision + 1, changes)
        except StoreError:
            # A log that has failed for good ends the watches too, which would otherwise wait for ever.
            if self._log.failure:
                self._wake_watchers()
            raise
        self._keyspace.apply(changes)
        self._wake_watchers()
        if self._compaction_is_due():
            self._start(self._compact())

    def _compaction_is_due(self) -> bool:
        size_bytes = self._log.size_bytes
        return size_bytes > max(self._compact_next_bytes, COMPACT_RATIO * self._keyspace.live_bytes)

    async def _compact(self) -> None:
        async with self._turn:
            if self._closed or self._log.failure or not self._compaction_is_due():
                return
            try:
                await self._on_disk(self._log.compact, self._keyspace.revision, self._keyspace.kept())
            except StoreError as error:
                # The commits are all safe in the old log, so this is no caller's error. The next try waits
                # until the log has grown by half, so that a full disk is not asked again with every commit.
                self._compact_next_bytes = self._log.size_bytes * 3 // 2
                _logger.warning("The store's log could not be compacted. %s", error)
                self._wake_watchers()
            else:
                self._compact_next_bytes = self._compact_above_bytes

    async def _expire_in_time(self) -> None:
        while True:
            self._lease_granted.clear()
            deadline = self._leases.next_deadline()
            wait_s = None if deadline is None else max(0.0, deadline - self._clock())
            try:
                async with asyncio.timeout(wait_s):
                    await self._lease_granted.wait()
            except TimeoutError:
                try:
                    await self.expire()
                except StoreError as error:
                    if self._closed or self._log.failure:
                        return
                    _logger.warning("The keys of an ended lease could not be deleted yet. %s", error)
                    await asyncio.sleep(EXPIRY_RETRY_S)

    async def _close(self) -> None:
        self._closed = True
        self._expiry.cancel()
        self._wake_watchers()
        async with self._turn:
            await self._on_disk(self._log.close)
        self._writer.shutdown(wait=True)

    async def _on_disk(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, call, *arguments)
        except asyncio.CancelledError:
            # Only a loop that is being torn down cancels here. The disk may get ahead of the memory, so that
            # nothing may be built on this memory any more.
            self._log.failure = self._log.failure or "its event loop ended in the middle of a commit"
            raise

    async def _to_its_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs the work in a task of its own, which goes on even if the caller is cancelled."""
        return await asyncio.shield(self._start(work))

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        # A cancelled caller no longer asks how it ended, which asyncio would report as a forgotten error.
        if not task.cancelled():
            task.exception()

    def _wake_watchers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _refuse_unless_usable(self) -> None:
        if self._closed:
            raise StoreError("The store is closed. Open it again.")
        if self._log.failure:
            raise StoreError(f"The store cannot be used any more: {self._log.failure}. Open it again.")
