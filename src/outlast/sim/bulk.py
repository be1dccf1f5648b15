"""Numbers behind the driver, where training has tensors: what it calls bulk (`protocol/seams.py`).

A vector has one number for each owner of a slice, which that owner draws anew in every attempt: so a history
that splits is seen at once, whether or not redoing a step would have given the same bits. Memory is used
again, with the old numbers in it: a result that is missing shows.

What is begun is done at once, or a little later: much may happen in between.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.protocol import wishes
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, NodeNote, PartNote, RecordNote, encode
from outlast.protocol.seams import At, Said, Worked
from outlast.protocol.step_words import (
    Body,
    Conclude,
    Judge,
    Part,
    Pin,
    Sum,
    Survey,
    Surveyed,
    Trial,
    Verdict,
)
from outlast.protocol.views import Member, View
from outlast.sim.checkers import require

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

SLOTS = 8
"""One for each replica that there can be."""

NUMBER = struct.Struct("<Q")


class Record:
    def __init__(self, step: int, vector: bytearray, note: RecordNote) -> None:
        self.step = step
        self.vector = vector
        self.note = note
        numbers = struct.unpack(f"<{SLOTS}Q", vector)
        self.number = hash((step, note.view, *numbers))
        """Stands for all of it."""


class _Round:
    """One attempt, as this replica knows it."""

    def __init__(self, vector: bytearray) -> None:
        self.vector = vector
        self.parts: dict[int, PartNote] = {}
        self.opinions: dict[int, PartNote] = {}
        self.contributed: set[int] = set()
        self.surveys: dict[tuple[int, int], int] = {}
        """By trial and replica."""


class NumberBulk:
    shares = 4

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._sim = node.sim
        self._view = View()
        self._rounds: dict[int, _Round] = {}
        self._last = bytes(SLOTS * NUMBER.size)
        self._slow_at = -1

    @property
    def _members(self) -> list[int]:
        return [member.replica for member in self._view.members]

    @property
    def _others(self) -> list[int]:
        return [replica for replica in self._members if replica != self._node.replica]

    def _round(self, step: int) -> _Round:
        if step not in self._rounds:
            self._rounds[step] = _Round(self.vector())
        return self._rounds[step]

    def adopt(self, view: View) -> None:
        self._view = view
        self._rounds.clear()
        self._node.doubts.adopt()

    def takes(self, view: int) -> bool:
        return self._view.number == view and self._node.replica in self._members

    # Out.

    def contribute(self, at: At, said: Said) -> None:
        values = self._node.doubts.own(at.step, self._view)
        nodes = tuple(_note(shard, value) for shard, value in values)
        self._round(at.step).parts[self._node.replica] = PartNote(nodes=nodes, **said._asdict())
        self._sim.truth.contributes(self._node, at)
        for owner in self._others:
            self._ship(owner, Kind.SCATTER, at, self._draw())

    def contribute_nothing(self, at: At, said: Said) -> None:
        self._round(at.step).parts[self._node.replica] = PartNote(closing=True, **said._asdict())

    def is_asked(self, _: int) -> bool:
        return bool(self._node.doubts.asked())

    def testify(self, at: At) -> None:
        values = self._node.doubts.opinions(at.step)
        note = PartNote(nodes=tuple(_note(shard, value) for shard, value in values))
        self._round(at.step).opinions[self._node.replica] = note

    def goes_with(self, at: At, body: Body) -> bytes:
        round_, me = self._round(at.step) if isinstance(body, Part | Surveyed) else None, self._node.replica
        match body:
            case Part() if round_ is not None and at.trial == Trial.FIRST:
                return encode(round_.parts[me])
            case Part() if round_ is not None and at.trial == Trial.HEARING:
                return encode(round_.opinions[me])
            case Part():
                return encode(PartNote())
            case Surveyed() if round_ is not None:
                return NUMBER.pack(round_.surveys[at.trial, me])
            case Sum():
                return b""
        return b""

    def start(self, work: Survey | Conclude | Judge, at: At) -> None:
        """Begin it now; what it comes to is looked at when it is done."""
        chance = self._sim.world.drawn("bulk")
        delay_s = 0.0 if chance.random() < 0.7 else chance.uniform(0.0, 0.05)
        if self._slow_at == at.step:
            delay_s = 0.6
        elif isinstance(work, Conclude) and self._sim.strikes_at_work(self._node):
            # The worst moment for a view to end: while something is being done for it, and is done when the
            # same thing is being done for the next one.
            self._slow_at, delay_s = at.step, 0.3
        if delay_s:
            self._sim.world.after(delay_s, self._node, self._finish, work, at)
        else:
            self._finish(work, at)

    def _finish(self, work: Survey | Conclude | Judge, at: At) -> None:
        if self._view.number != at.view or self._node.driver.is_void_attempt(at):
            # What it was for is void, and so is the memory that it would write to.
            self._node.driver.done(Worked(at, type(work)), self._sim.world.now)
            return
        worked = Worked(at, type(work))
        match work:
            case Survey():
                self._round(at.step).surveys[at.trial, self._node.replica] = self._draw()
            case Conclude():
                self._conclude(at)
            case Judge():
                worked = self._node.doubts.judge(self._view, at, self._round(at.step))
        self._node.driver.done(worked, self._sim.world.now)

    def _conclude(self, at: At) -> None:
        if at.trial == Trial.HEARING:
            return
        round_, me = self._round(at.step), self._node.replica
        surveys = {replica: token for (trial, replica), token in round_.surveys.items() if trial == at.trial}
        if surveys:
            self._sim.history.judges(self._node, at.step, at.trial, surveys)
        missing = [replica for replica in self._others if replica not in round_.contributed]
        closing = all(part.closing for part in round_.parts.values())
        require(
            closing or not missing,
            f"{self._node.name}: all parts of step {at.step} are in, but nothing of {missing} to add up",
        )
        number = self._draw()
        NUMBER.pack_into(round_.vector, me * NUMBER.size, number)
        for replica in self._others:
            self._ship(replica, Kind.RESULT, at, number)

    def _ship(self, to: int, kind: Kind, at: At, number: int) -> None:
        life = self._node.core.incarnation
        header = Header(
            kind, at.trial, incarnation=life, view=at.view, step=at.step, lo=self._node.replica, size=8
        )
        self._node.driver.ship(to, header, memoryview(NUMBER.pack(number)), None, kind == Kind.RESULT)

    def _draw(self) -> int:
        return self._sim.world.drawn("numbers").getrandbits(60)

    # In.

    def last_words(self, step: int) -> Mapping[int, PartNote]:
        return self._round(step).parts

    def room(self, sender: Member, header: Header) -> memoryview | None:
        if header.view < self._view.number:
            return None
        if not self.takes(header.view) or header.kind == Kind.SCATTER:
            return memoryview(bytearray(header.size))
        return _slot(self._round(header.step).vector, sender.replica)

    def take(self, sender: int, header: Header, payload: Any) -> None:
        round_ = self._round(header.step)
        match header.kind:
            case Kind.SCATTER:
                round_.contributed.add(sender)
            case Kind.RESULT:
                _slot(round_.vector, sender)[:] = payload
            case Kind.PART if header.flags == Trial.FIRST:
                round_.parts[sender] = payload
            case Kind.PART if header.flags == Trial.HEARING:
                round_.opinions[sender] = payload
            case Kind.SURVEY:
                (round_.surveys[header.flags, sender],) = NUMBER.unpack(payload)

    # Records and states.

    def record(self, step: int, verdict: Verdict) -> Record:
        round_ = self._rounds.pop(step)
        left_out = self._node.doubts.left_out.pop(step, frozenset())
        self._sim.history.counts(self._node, step, values_of(round_.parts), left_out)
        save, kept = wishes.decided(round_.parts, verdict)
        note = RecordNote(
            weight=1.0,
            loss=0.0,
            mask=b"",
            integers={},
            view=self._view.number,
            shards=self._view.shards,
            save=save,
            left_out=tuple(sorted(left_out)),
            verdict=verdict,
            kept=kept,
        )
        for replica in range(SLOTS):
            if replica not in self._members:
                _slot(round_.vector, replica)[:] = bytes(NUMBER.size)
        self._last = bytes(round_.vector)
        return Record(step, round_.vector, note)

    def vector(self) -> bytearray:
        return bytearray(self._last)

    def share(self, vector: bytearray, index: int) -> memoryview:
        part = len(vector) // self.shares
        return memoryview(vector)[index * part : (index + 1) * part]

    def copied(self, vector: bytearray) -> bytearray:
        return bytearray(vector)

    def given(self, step: int, vector: bytearray, note: RecordNote) -> Record:
        return Record(step, vector, note)

    def state(self, encoded: bytes) -> Pieces:
        (step,) = _STEP.decode(encoded)
        return Pieces(step)


def values_of(parts: Mapping[int, PartNote]) -> dict[int, int]:
    """Shards and the numbers of their contributions."""
    return {note.lo: int(note.weight) for part in parts.values() for note in part.nodes}


def _note(shard: int, value: int) -> NodeNote:
    return NodeNote(shard, shard + 1, float(value), 0.0, b"", {})


def _slot(vector: bytearray, replica: int) -> memoryview:
    return memoryview(vector)[replica * NUMBER.size : (replica + 1) * NUMBER.size]


# A state is some numbers, and each of its pieces has all of them: what is put together of the pieces of two
# states shows.

_STATE = struct.Struct("<qqqqq")
_STEP = msgspec.msgpack.Decoder(tuple[int])
PIECES = 6


class Image:
    """The state after one step, as it is given to others."""

    def __init__(
        self, step: int, *, digest: int, claim: int = 0, bent: bool = False, warp: int = 0, chief: int = -1
    ) -> None:
        self.step = step
        self.image = encode((step,))
        self._piece = _STATE.pack(digest, claim, bent, warp, chief)

    def share(self, pin: Pin, replica: int) -> Sequence[tuple[int, memoryview]]:
        place, count = pin.servers.index(replica), len(pin.servers)
        return [(index, memoryview(self._piece)) for index in range(place, PIECES, count)]


class Pieces:
    """A state on its way."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._slots = [bytearray(_STATE.size) for _ in range(PIECES)]
        self._came: set[int] = set()
        self.pieces = [range(_STATE.size)] * PIECES

    @property
    def complete(self) -> bool:
        return len(self._came) == PIECES

    def slot(self, index: int) -> memoryview:
        return memoryview(self._slots[index])

    def note(self, index: int) -> None:
        self._came.add(index)

    def states(self) -> list[tuple[int, int, int, int, int]]:
        """What each piece says: digest, claim, whether it is bent, warp, chief."""
        return [_STATE.unpack(slot) for slot in self._slots]
