"""Carries out what the coordinator's core asks of the store, and turns whatever comes back into an event.

Two keys are all there is: `leader`, which says where the leader is and lives as long as its lease, and
`membership`, the agreed document.
Each request runs as a task of its own and ends in exactly one event, so the core never waits and never has to
know what can go wrong with a disk or a network.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from outlast.coordinator.store.seam import (
    MAX_VALUE_BYTES,
    Absent,
    Compare,
    CreatedAt,
    Entry,
    ModifiedAt,
    Put,
    Snapshot,
    Store,
)
from outlast.errors import Compacted, OutcomeUnknown, StoreDamaged, StoreError, StoreFull
from outlast.protocol.coordinator import Commit, Committed, Loaded, LoadFailed, NotStored, Refused, Unknown
from outlast.protocol.election import (
    Campaigned,
    CampaignFailed,
    Renewed,
    RenewFailed,
    WatchBroken,
    WatchProgress,
)
from outlast.protocol.views import Membership

LEADER = "leader"
MEMBERSHIP = "membership"
FORMAT = 1

log = logging.getLogger(__name__)


class Document(msgspec.Struct, frozen=True):
    """How the membership is written: readable, and with the number of its format."""

    format: int
    membership: Membership


class Storekeeper:
    def __init__(
        self,
        store: Store,
        address: str,
        lease_s: float,
        *,
        deliver: Callable[[Any], None],
        on_damage: Callable[[StoreDamaged], None],
    ) -> None:
        self._store = store
        self._address = address
        self._lease_s = lease_s
        self._deliver = deliver
        self._on_damage = on_damage
        self._lease = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    def campaign(self) -> None:
        self._begin(self._campaign, CampaignFailed())

    def renew(self) -> None:
        self._begin(self._renew, RenewFailed())

    def load(self) -> None:
        self._begin(self._load, LoadFailed())

    def commit(self, commit: Commit) -> None:
        self._begin(lambda: self._commit(commit), Unknown(commit.ticket))

    def watch(self, after: int) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._watching = self._begin(lambda: self._watch(after), WatchBroken())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Callable[[], Awaitable[Any]], otherwise: object) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                event = await work()
            except StoreDamaged as damage:
                self._on_damage(damage)
                return
            except StoreError as error:
                log.warning("the store did not answer: %s", error)
                event = otherwise
            self._deliver(event)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _campaign(self) -> Campaigned:
        self._lease = await self._store.grant(self._lease_s)
        put = Put(LEADER, self._address.encode(), lease=self._lease)
        result = await self._store.commit([Absent(LEADER)], [put])
        if result.succeeded:
            return Campaigned(True, result.revision, result.revision)
        await self._store.revoke(self._lease)
        leader = (await self._store.read(LEADER)).entries.get(LEADER)
        return Campaigned(False, result.revision, result.revision, _address(leader))

    async def _renew(self) -> Renewed:
        return Renewed(await self._store.renew(self._lease))

    async def _load(self) -> Loaded:
        snapshot = await self._store.read("")
        leader = snapshot.entries.get(LEADER)
        term = leader.created if leader is not None else 0
        return Loaded(agreed(snapshot), _revision(snapshot), term, proven=self._store.reads_newest)

    async def _commit(self, commit: Commit) -> Committed | Refused | Unknown | NotStored:
        at = commit.revision
        unchanged: Compare = ModifiedAt(MEMBERSHIP, at) if at else Absent(MEMBERSHIP)
        value = msgspec.json.encode(Document(FORMAT, commit.membership))
        if len(value) > MAX_VALUE_BYTES:
            return NotStored(commit.ticket, _too_large(commit.membership, len(value)))
        try:
            result = await self._store.commit(
                [CreatedAt(LEADER, commit.term), unchanged], [Put(MEMBERSHIP, value)]
            )
        except OutcomeUnknown:
            return Unknown(commit.ticket)
        except StoreFull as full:
            return NotStored(commit.ticket, str(full))
        return Committed(commit.ticket, result.revision) if result.succeeded else Refused(commit.ticket)

    async def _watch(self, after: int) -> WatchProgress | WatchBroken:
        try:
            async with aclosing(self._store.watch(LEADER, after)) as events:
                async for event in events:
                    if event.value is None:
                        return WatchProgress(event.revision, True)
                    self._deliver(WatchProgress(event.revision, False, event.value.decode()))
        except Compacted:
            # The history is gone; what counts is whether the key is there now.
            snapshot = await self._store.read(LEADER)
            leader = snapshot.entries.get(LEADER)
            self._deliver(WatchProgress(snapshot.revision, leader is None, _address(leader)))
        return WatchBroken()


def _address(leader: Entry | None) -> str:
    return leader.value.decode(errors="replace") if leader is not None else ""


def _too_large(membership: Membership, size_bytes: int) -> str:
    seats = max(1, len(membership.seats))
    return (
        f"what is agreed on about {seats} replicas takes {size_bytes} bytes, and the store takes "
        f"{MAX_VALUE_BYTES}: a job can have about {MAX_VALUE_BYTES * seats // size_bytes} of them"
    )


def _revision(snapshot: Snapshot) -> int:
    entry = snapshot.entries.get(MEMBERSHIP)
    return entry.modified if entry is not None else 0


def agreed(snapshot: Snapshot) -> Membership | None:
    """The membership in a snapshot of the store; None if nothing has been agreed on yet."""
    entry = snapshot.entries.get(MEMBERSHIP)
    if entry is None:
        return None
    try:
        document = msgspec.json.decode(entry.value, type=Document)
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"the agreed membership cannot be read: {error}") from None
    if document.format != FORMAT:
        raise StoreDamaged(
            f"the agreed membership has format {document.format}, this version of Outlast reads {FORMAT}: "
            "use the version that the run was started with"
        )
    return document.membership
