"""The storekeeper on a real store: each request ends in exactly one event, whatever the store does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.coordinator import storekeeper
from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.seam import Absent, ModifiedAt, Put
from outlast.coordinator.storekeeper import LEADER, MEMBERSHIP, Storekeeper
from outlast.errors import OutcomeUnknown, StoreDamaged, StoreError, StoreFull
from outlast.protocol.coordinator import Commit, Committed, Loaded, LoadFailed, NotStored, Refused, Unknown
from outlast.protocol.election import (
    Campaigned,
    CampaignFailed,
    Renewed,
    RenewFailed,
    WatchBroken,
    WatchProgress,
)
from outlast.protocol.views import JobSpec, Membership, Seat, Standing, View
from patience import PATIENCE_S

SPEC = JobSpec(name="job", replicas=2, shards=2)


class Desk:
    """A storekeeper whose events are kept, so that a test can ask and wait for the answer."""

    def __init__(self, store: Any, name: str = "me", lease_s: float = 60.0) -> None:
        self._events: asyncio.Queue[object] = asyncio.Queue()
        tell = self._events.put_nowait
        self.keeper = Storekeeper(store, name, lease_s, deliver=tell, on_damage=tell)

    async def answer(self) -> Any:
        return await asyncio.wait_for(self._events.get(), PATIENCE_S)

    async def ask(self, request: Callable[..., object], *arguments: object) -> Any:
        request(*arguments)
        event = await self.answer()
        assert self._events.empty(), "one request, one event"
        return event

    async def office(self) -> int:
        won = await self.ask(self.keeper.campaign)
        assert isinstance(won, Campaigned)
        assert won.won
        return won.term


def membership(number: int) -> Membership:
    return Membership(spec=SPEC, view=View(number=number))


def on_a_store(tmp_path: Path, work: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "store")
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_what_is_committed_is_loaded(tmp_path: Path) -> None:
    async def work(store: EmbeddedStore) -> None:
        desk = Desk(store)
        term = await desk.office()
        assert await desk.ask(desk.keeper.load) == Loaded(None, 0, term)
        first = await desk.ask(desk.keeper.commit, Commit(1, membership(1), 0, term))
        assert isinstance(first, Committed)
        assert await desk.ask(desk.keeper.load) == Loaded(membership(1), first.revision, term)
        second = await desk.ask(desk.keeper.commit, Commit(2, membership(2), first.revision, term))
        assert second == Committed(2, first.revision + 1)
        await desk.keeper.close()

    on_a_store(tmp_path, work)


def test_a_write_from_an_old_document_or_an_old_term_is_refused(tmp_path: Path) -> None:
    async def work(store: EmbeddedStore) -> None:
        desk = Desk(store)
        term = await desk.office()
        first = await desk.ask(desk.keeper.commit, Commit(1, membership(1), 0, term))
        for stale in (
            Commit(2, membership(7), 0, term),
            Commit(2, membership(7), first.revision - 1, term),
            Commit(2, membership(7), first.revision, term + 1),
        ):
            assert await desk.ask(desk.keeper.commit, stale) == Refused(2)
        assert (await desk.ask(desk.keeper.load)).membership == membership(1)

    on_a_store(tmp_path, work)


def test_one_leads_and_the_other_watches(tmp_path: Path) -> None:
    async def work(store: EmbeddedStore) -> None:
        one, other = Desk(store, "one"), Desk(store, "other")
        term = await one.office()
        lost = await other.ask(other.keeper.campaign)
        assert (lost.won, lost.revision, lost.leader) == (False, term, "one")
        assert await one.ask(one.keeper.renew) == Renewed(True)
        other.keeper.watch(term - 1)
        assert await other.answer() == WatchProgress(term, False, "one")
        # The leader's lease ends: its key goes, the other hears of it and wins.
        await store.revoke(one.keeper._lease)
        gone = await other.answer()
        assert gone.gone
        assert await one.ask(one.keeper.renew) == Renewed(False)
        assert await other.office() > term
        assert await one.ask(one.keeper.commit, Commit(1, membership(1), 0, term)) == Refused(1)
        await other.keeper.close()

    on_a_store(tmp_path, work)


class Failing:
    """A store that answers everything with one error."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> Any:
        async def fail(*_: object) -> None:
            raise self._error

        return fail

    async def watch(self, _prefix: str, _after: int) -> Any:
        if self._error:
            raise self._error
        yield


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (StoreFull("full"), NotStored(1, "full")),
        (OutcomeUnknown("lost"), Unknown(1)),
        (StoreError("gone"), Unknown(1)),
    ],
)
def test_whatever_fails_becomes_an_event(error: StoreError, answer: object) -> None:
    async def work() -> None:
        desk = Desk(Failing(error))
        assert await desk.ask(desk.keeper.commit, Commit(1, membership(1), 0, 1)) == answer
        assert await desk.ask(desk.keeper.load) == LoadFailed()
        assert await desk.ask(desk.keeper.campaign) == CampaignFailed()
        assert await desk.ask(desk.keeper.renew) == RenewFailed()
        assert await desk.ask(desk.keeper.watch, 0) == WatchBroken()

    asyncio.run(work())


@pytest.mark.parametrize("value", [b"{", b'{"format": 2, "membership": {}}', b'{"format": 1}', b"\xff"])
def test_a_document_that_cannot_be_read_is_not_taken_for_none(value: bytes, tmp_path: Path) -> None:
    """Taking it for none would begin the job anew, under numbers that have been used."""

    async def work(store: EmbeddedStore) -> None:
        assert (await store.commit([Absent(MEMBERSHIP)], [Put(MEMBERSHIP, value)])).succeeded
        desk = Desk(store)
        term = await desk.office()
        assert isinstance(await desk.ask(desk.keeper.load), StoreDamaged)
        assert await desk.ask(desk.keeper.commit, Commit(1, membership(1), 0, term)) == Refused(1)
        assert (await store.commit([ModifiedAt(MEMBERSHIP, 1)], [])).succeeded, "it is left as it was"
        assert LEADER in (await store.read("")).entries

    on_a_store(tmp_path, work)


def test_a_document_that_the_store_cannot_take_says_how_many_replicas_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storekeeper, "MAX_VALUE_BYTES", 1000)
    seats = {number: Seat(replica=number, standing=Standing.LEARNER) for number in range(40)}

    async def work(store: EmbeddedStore) -> None:
        desk = Desk(store)
        term = await desk.office()
        answer = await desk.ask(desk.keeper.commit, Commit(1, Membership(spec=SPEC, seats=seats), 0, term))
        assert isinstance(answer, NotStored)
        assert re.search(r"about 40 replicas takes \d+ bytes.*a job can have about \d of them", answer.reason)
        assert (await store.read("")).entries.keys() == {LEADER}

    on_a_store(tmp_path, work)
