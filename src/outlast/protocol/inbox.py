"""What a life is given by others: records that it did not make, and the state to begin with.

A stable record is a fact, whoever sends it and in whichever view, so its shares may come from many. Any other
counts in the view in which it was sent, and only as long as that one is in force; its shares are kept apart
from those of every other.

Receiving a share takes a while, and much may happen meanwhile: the record may be void, or begun again, or
complete, because another member has sent the same share. So each sender's share under way is known.

A snapshot is named by the view in which it was decided on: a later view decides anew, since who gives which
share has changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from outlast.errors import ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.kinds import RECORD, Kind, RecordNote, Way, decode
from outlast.protocol.seams import Assembly, Bulk, Record
from outlast.protocol.views import View

RECORDS_MOST = 256
"""Records that a learner holds before it has the state to apply them to."""


class _Arriving:
    """A record of which something has come."""

    def __init__(self, vector: Any, bulk: Bulk) -> None:
        self.vector = vector
        self.note: RecordNote | None = None
        self.shares = {index for index in range(bulk.shares) if not bulk.share(vector, index).nbytes}

    def came(self, number: int) -> None:
        self.shares.add(number)

    def complete(self, count: int) -> bool:
        return self.note is not None and len(self.shares) == count


class _UnderWay(NamedTuple):
    """A share that is being received: in its place, or aside if another member is sending the same."""

    entry: _Arriving
    number: int
    place: memoryview
    memory: memoryview


class Inbox:
    """Records on their way to this life, and those that have come."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._arriving: dict[tuple[int, int], _Arriving] = {}
        self._under_way: dict[int, _UnderWay] = {}
        """By sender, who sends one frame after the other."""
        self._offered: dict[int, Record] = {}
        """Stable ones."""
        self._given: dict[int, Record] = {}
        """Those that count in the present view."""
        self._fed_in = self._fed_from = 0
        """The newest view that members came into out of step and fed again, and from which record on."""
        self._since = 0
        """The view in which another lineage began; records of one that is over are nothing to go on from."""

    def adopt(self, view: View, *, anew: bool) -> None:
        """Another view is in force; in which another lineage begins `anew`."""
        self._since = max(self._since, view.void_before)
        if anew:
            self._since = view.number
            self.forget()
        self._arriving = {key: entry for key, entry in self._arriving.items() if key[1] == 0}
        self._given.clear()

    def forget(self) -> None:
        """Nothing that has come counts. (Its memory is not used again: frames may still arrive there.)"""
        self._arriving.clear()
        self._offered.clear()
        self._given.clear()

    def fed_again(self, view: int, first: int, top: int) -> None:
        """Members came into a view out of step, and their newest record is `top`. What was given after that
        by those who are dead now will be done again, perhaps differently. From `first` on they give all of it
        once more: so what there is of a record that is not complete is thrown away, since they may have gone
        back in between, and it may be of another one."""
        if view > self._fed_in:
            self._fed_in, self._fed_from = view, first
            before = min(first - 1, top)
            self._arriving = {key: entry for key, entry in self._arriving.items() if key[0] <= before}
            self._offered = {step: record for step, record in self._offered.items() if step <= top}
        elif view == self._fed_in:
            self._fed_from = max(self._fed_from, first)

    def pop(self, step: int) -> Record | None:
        """The record of a step, if it was given. Steps are taken in order: what there is of earlier ones came
        with a state that was made after them, and each is as large as the model."""
        stable, given = self._offered.get(step), self._given.get(step)
        if self._arriving:
            self._arriving = {key: entry for key, entry in self._arriving.items() if key[0] > step}
        for kept in (self._offered, self._given):
            for old in [other for other in kept if other <= step]:
                del kept[old]
        return given or stable

    def wants(self, header: Header, view: int, newest: int) -> bool:
        stable = header.flags == Way.STABLE
        if stable and header.view < self._fed_in and header.step >= self._fed_from:
            return False
        fits = header.view == view or (stable and header.view >= self._since)
        return fits and header.step > newest and header.step not in self._kept(header)

    def lost(self, sender: int) -> None:
        """The connection to it is gone, and with it the share that was under way."""
        self._under_way.pop(sender, None)

    def slot(self, sender: int, header: Header) -> memoryview | None:
        """Where a share belongs; None if it is not needed (any more)."""
        self._under_way.pop(sender, None)
        entry = self._entry(header)
        if entry is None or header.lo in entry.shares:
            return None
        if header.lo >= self._bulk.shares:
            raise ProtocolError(f"share {header.lo} of the record of step {header.step} is none")
        place = self._bulk.share(entry.vector, header.lo)
        if header.size != place.nbytes:
            raise ProtocolError(f"share {header.lo} of the record of step {header.step} has a wrong size")
        twice = any(one.entry is entry and one.number == header.lo for one in self._under_way.values())
        memory = memoryview(bytearray(header.size)) if twice else place
        self._under_way[sender] = _UnderWay(entry, header.lo, place, memory)
        return memory

    def came(self, sender: int, header: Header, payload: memoryview) -> Record | None:
        """A share or a note has come; the record, if that was the last of it."""
        if header.kind == Kind.NOTE:
            note = decode(RECORD, payload)
            entry = self._entry(header)
            if entry is None:
                return None
            entry.note = note
        else:
            share = self._under_way.pop(sender, None)
            if share is None or self._arriving.get(_key(header)) is not share.entry:
                return None
            entry = share.entry
            if share.number not in entry.shares and share.memory is not share.place:
                share.place[:] = share.memory
            entry.came(share.number)
        if not entry.complete(self._bulk.shares):
            return None
        assert entry.note is not None
        del self._arriving[_key(header)]
        record = self._bulk.given(header.step, self._let_go(entry), entry.note)
        self._kept(header)[record.step] = record
        return record

    def _let_go(self, entry: _Arriving) -> Any:
        """The vector of a record that is complete. Where somebody still writes to it, a copy: this one must
        not be used for anything else."""
        if all(one.entry is not entry for one in self._under_way.values()):
            return entry.vector
        return self._bulk.copied(entry.vector)

    def _entry(self, header: Header) -> _Arriving | None:
        entry = self._arriving.get(_key(header))
        if entry is None:
            if len(self._arriving) >= RECORDS_MOST:
                return None
            entry = self._arriving[_key(header)] = self._begin()
        return entry

    def _begin(self) -> _Arriving:
        return _Arriving(self._bulk.vector(), self._bulk)

    def _kept(self, header: Header) -> dict[int, Record]:
        return self._offered if header.flags == Way.STABLE else self._given


def _key(header: Header) -> tuple[int, int]:
    return header.step, 0 if header.flags == Way.STABLE else header.view


class Arrival:
    """A state on its way to this life."""

    def __init__(self) -> None:
        self.view = -1
        self.step = -1
        self.assembly: Assembly | None = None
        self._image: bytes = b""
        self.final = False
        """Whether all who give it say that it is what the run ends with."""

    @property
    def complete(self) -> bool:
        return self.assembly is not None and self.assembly.complete

    def described(self, header: Header, encoded: bytes, bulk: Bulk) -> None:
        """The table of contents has come, from one of the givers."""
        if header.view < self.view:
            return
        if header.view > self.view:
            self.assembly = bulk.state(encoded)
            self.view, self.step, self._image = header.view, header.step, encoded
            self.final = True
        self.final &= bool(header.flags)
        if encoded != self._image:
            raise ProtocolError(
                f"two members hold different states after step {header.step}; their descriptions differ"
            )

    def slot(self, header: Header) -> memoryview | None:
        if header.view != self.view or self.assembly is None:
            return None
        if header.lo >= len(self.assembly.pieces) or header.size != len(self.assembly.pieces[header.lo]):
            raise ProtocolError(f"piece {header.lo} of the state after step {header.step} has a wrong size")
        return self.assembly.slot(header.lo)

    def arrived(self, header: Header) -> bool:
        """A piece is there; whether it was the last one."""
        if header.view != self.view or self.assembly is None or self.assembly.complete:
            return False
        self.assembly.note(header.lo)
        return self.assembly.complete
