"""What a replica is given by others: the state to begin with, and records that it did not make.

Used under the engine's lock. A stable record is a fact in any view; any other counts in the view in which it
was sent, and only as long as that one is in force.
"""

from __future__ import annotations

import time

from outlast.mesh.frames import Header
from outlast.mesh.kinds import RECORD, Kind, Way, decode
from outlast.train.flats import FlatPool
from outlast.train.gathering import Gathering, ReadRequest
from outlast.train.records import Inbox, Record
from outlast.train.snapshots import Arrival


class Supply:
    def __init__(self, vectors: FlatPool) -> None:
        self._inbox = Inbox(vectors)
        self._offered: dict[int, Record] = {}
        """Stable ones."""
        self._given: dict[int, Record] = {}
        """Those that count in the present view."""
        self._fed_in = 0
        self._since = 0
        """The view in which another lineage began; records of one that is over are nothing to go on from."""
        self.arrival = Arrival()
        self.gathering: Gathering | None = None
        """What others read of a checkpoint that this replica founds a lineage with."""
        self.asked: tuple[int, int, ReadRequest] | None = None
        """What this replica shall read for a founder: the view, who, what."""
        self._begun_at = self._heard_at = time.monotonic()

    def clear(self) -> None:
        """A new life begins: nothing that was given to the old one counts."""
        self._forget_records()
        self._fed_in = 0
        self.arrival = Arrival()
        self._begun_at = self._heard_at = time.monotonic()

    def adopt(self, view: int, *, anew: bool) -> None:
        """Another view is in force; in which another lineage begins `anew`."""
        if anew:
            self._since = view
            self._forget_records()
        self.asked = None
        if self.gathering is not None:
            self.gathering.over = True
        self._inbox.keep_stable()
        self._given.clear()
        self._heard_at = time.monotonic()

    def heard(self, now: float) -> None:
        """Something of a snapshot has come."""
        if self.arrival.view < 0:
            self._begun_at = now
        self._heard_at = now

    def silent_s(self, now: float) -> float:
        """For how long nothing of a snapshot has come."""
        return now - self._heard_at

    def fed_again(self, view: int, top: int) -> None:
        """Members came into a view out of step, and their newest record is `top`. What was given after that
        by those who are dead now will be done again, perhaps differently."""
        if view > self._fed_in:
            self._fed_in = view
            self._inbox.drop_after(top)
            self._offered = {step: record for step, record in self._offered.items() if step <= top}

    def go_back(self, view: int) -> None:
        """Members have gone back in this view: what was given before is of a branch that they have left, or
        older."""
        self._forget_records()
        if self.arrival.view < view:
            self.arrival = Arrival()
        self._begun_at = self._heard_at = time.monotonic()

    def _forget_records(self) -> None:
        self._inbox.clear()
        self._offered.clear()
        self._given.clear()

    def take(self, step: int) -> Record | None:
        """The record of a step, if it was given. Steps are taken in order: what there is of earlier ones came
        with a state that was made after them, and each is as large as the model."""
        stable, given = self._offered.get(step), self._given.get(step)
        self._inbox.drop_until(step)
        for kept in (self._offered, self._given):
            for old in [other for other in kept if other <= step]:
                del kept[old]
        return given or stable

    def wants(self, header: Header, view: int, newest: int) -> bool:
        fits = header.view == view or (header.flags == Way.STABLE and header.view >= self._since)
        return fits and header.step > newest and header.step not in self._kept(header)

    def _kept(self, header: Header) -> dict[int, Record]:
        return self._offered if header.flags == Way.STABLE else self._given

    def lost(self, sender: int) -> None:
        """The connection to it is gone."""
        self._inbox.lost(sender)

    def slot(self, sender: int, header: Header) -> memoryview | None:
        return self._inbox.slot(sender, header)

    def came(self, sender: int, header: Header, payload: memoryview) -> Record | None:
        """A part of a record has come; the record, if it was the last part."""
        note = decode(RECORD, payload) if header.kind == Kind.NOTE else None
        record = self._inbox.arrived(sender, header, note)
        if record is not None:
            self._kept(header)[record.step] = record
        return record

    def took_s(self) -> float:
        """How long the state was on its way to this life: since its first word came."""
        return time.monotonic() - self._begun_at
