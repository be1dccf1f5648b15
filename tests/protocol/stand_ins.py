"""What a driver works with, in memory: an outlet that lists what leaves, bulk whose vectors are bytes, saves
and copies that do as a test says; and a replica that is driven by the same events as a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outlast.errors import ProtocolError
from outlast.protocol import codec
from outlast.protocol.deeds import Setup
from outlast.protocol.driver import Driver
from outlast.protocol.events import AnyEvent
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, PartNote, RecordNote, encode
from outlast.protocol.lines import Line
from outlast.protocol.member import MemberCore
from outlast.protocol.messages import Admitted, Message, Phase, ViewNews
from outlast.protocol.saving import Save, SaveAction, SaveBody
from outlast.protocol.seams import At, Noted, Said, Worked
from outlast.protocol.step_words import (
    BLANK,
    Body,
    Conclude,
    Differ,
    Digest,
    Dropped,
    GoBack,
    Holding,
    Judge,
    Mode,
    Part,
    Pin,
    Survey,
    Verdict,
    Verified,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.todos import Load, Stage
from outlast.protocol.views import Member, Outcome, View

VECTOR_BYTES = 10
"""So that four shares are not all of one size."""

ALL = tuple(Member(replica, 1) for replica in range(3))
VIEW = View(number=1, lineage=1, members=ALL, shards=(0, 1, 2), slices=(2, 0, 1), planned_since=1)


def note_of(view: int = 1, *, save: bool = False) -> RecordNote:
    return RecordNote(weight=4.0, loss=2.0, mask=b"\x05", integers={}, view=view, shards=(0,), save=save)


@dataclass(frozen=True)
class Record:
    step: int
    vector: bytearray
    note: RecordNote = field(default_factory=note_of)


class Assembly:
    """A state; its table of contents has a byte for the size of each piece."""

    def __init__(self, encoded: bytes) -> None:
        self.pieces = [range(size) for size in encoded]
        self.memory = [bytearray(size) for size in encoded]
        self._missing = set(range(len(encoded)))

    @property
    def complete(self) -> bool:
        return not self._missing

    def slot(self, index: int) -> memoryview:
        return memoryview(self.memory[index])

    def note(self, index: int) -> None:
        self._missing.discard(index)


class Bulk:
    shares = 4

    def __init__(self, size: int = VECTOR_BYTES) -> None:
        self.driver: Driver
        self._size = size
        self.view = View()
        self.contributed: list[tuple[At, Said]] = []
        self.left: list[tuple[At, Said]] = []
        """That it contributes nothing."""
        self.testified: list[At] = []
        self.shipped: list[tuple[int, int]] = []
        """(to whom, the view that was in force when that was shipped)"""
        self.started: list[tuple[type, At]] = []
        self.taken: list[tuple[int, Header, Any]] = []
        self.works: Callable[[At, type], Worked | None] = lambda at, work: None
        """What work comes to at once, if it does."""
        self.refuses = False
        """Whether it cannot take what comes."""
        self.fails: Exception | None = None
        """What work ends with."""
        self.asked = False
        self.vectors: list[bytearray] = []
        self.copies = 0

    def adopt(self, view: View) -> None:
        self.view = view

    def takes(self, view: int) -> bool:
        return self.view.number == view and self.view.member(self.driver.replica) is not None

    def contribute(self, at: At, said: Said) -> None:
        self.contributed.append((at, said))
        for member in reversed(self.view.members):
            if member.replica != self.driver.replica:
                self.ship(member.replica, at)

    def ship(self, to: int, at: At) -> None:
        """A contribution to this attempt."""
        header = self.driver.header(Kind.SCATTER, at.step)
        self.driver.ship(to, header, memoryview(b"gradient"), None, True)
        self.shipped.append((to, self.driver.view.number))

    def contribute_nothing(self, at: At, said: Said) -> None:
        self.left.append((at, said))

    def is_asked(self, step: int) -> bool:
        return self.asked

    def testify(self, at: At) -> None:
        self.testified.append(at)

    def goes_with(self, at: At, body: Body) -> bytes:
        return encode(PartNote()) if isinstance(body, Part) else b""

    def start(self, work: Survey | Conclude | Judge, at: At) -> None:
        self.started.append((type(work), at))
        if self.fails is not None:
            raise self.fails
        done = self.works(at, type(work))
        if done is not None:
            self.driver.done(done, self.driver.now)

    def last_words(self, step: int) -> Mapping[int, PartNote]:
        return {member.replica: PartNote(closing=True, keeps=(step - 1,)) for member in self.view.members}

    def room(self, sender: Member, header: Header) -> memoryview | None:
        return memoryview(bytearray(header.size))

    def take(self, sender: int, header: Header, payload: Any) -> None:
        if self.refuses:
            raise ProtocolError("this is no gradient")
        self.taken.append((sender, header, payload))

    def record(self, step: int, verdict: Verdict) -> Record:
        return Record(step, self.vector())

    def vector(self) -> bytearray:
        self.vectors.append(bytearray(self._size))
        return self.vectors[-1]

    def share(self, vector: bytearray, index: int) -> memoryview:
        size = len(vector)
        return memoryview(vector)[size * index // self.shares : size * (index + 1) // self.shares]

    def copied(self, vector: bytearray) -> bytearray:
        self.copies += 1
        return bytearray(vector)

    def given(self, step: int, vector: bytearray, note: RecordNote) -> Record:
        return Record(step, vector, note)

    def state(self, encoded: bytes) -> Assembly:
        return Assembly(encoded)


class Sent(NamedTuple):
    line: Line
    header: Header
    payload: bytes
    keep: object
    droppable: bool

    @property
    def to(self) -> int:
        return self.line.peer.replica

    @property
    def kind(self) -> Kind:
        return Kind(self.header.kind)


class Outlet:
    """Takes everything, except for those to whom the connection is broken."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.broken: set[int] = set()
        self.lines: set[Line] | None = None
        """The connections that there are, if that matters."""
        self.dropped: list[Line] = []
        self.reached: list[tuple[int, tuple[Member, ...]]] = []
        self.told: list[Message] = []
        self.views: list[int] = []
        self.outcomes: list[Outcome] = []
        self.woken = 0
        self.phases: list[Phase] = []
        self.took_part: list[int] = []
        self.stood: list[int] = []
        self.done: list[tuple[int, bool]] = []
        self.stables: list[int] = []
        self.on_stable: Callable[[], None] = lambda: None
        self.ledger: list[Noted] | None = None
        """What is still to be written down; None where nothing is."""
        self.saves: list[tuple[int, bool]] = []
        self.emitted: list[AnyEvent] = []
        self.noted: list[tuple[int, str]] = []
        self.passed: list[tuple[str, int]] = []

    @property
    def kinds(self) -> list[tuple[int, Kind]]:
        """To whom what was sent."""
        return [(sent.to, sent.kind) for sent in self.sent]

    def reach(self, own: int, peers: Sequence[Member]) -> None:
        self.reached.append((own, tuple(peers)))

    def send(
        self,
        line: Line,
        header: Header,
        payload: memoryview | bytes,
        keep: object = None,
        *,
        more: bool = False,
        droppable: bool = False,
    ) -> bool:
        if line.peer.replica in self.broken or (self.lines is not None and line not in self.lines):
            return False
        self.sent.append(Sent(line, header, bytes(payload), keep, droppable))
        return True

    def drop(self, line: Line, why: str) -> None:
        self.dropped.append(line)

    def tell(self, message: Message) -> None:
        self.told.append(message)

    def adopted(self, view: View) -> None:
        self.views.append(view.number)

    def over(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def wake(self) -> None:
        self.woken += 1

    def enter(self, phase: Phase) -> None:
        self.phases.append(phase)

    def take_part(self, view: int) -> None:
        self.took_part.append(view)

    def stands_at(self, step: int) -> None:
        self.stood.append(step)

    def completed(self, record: Any, *, made: bool) -> None:
        self.done.append((record.step, made))

    def stable(self, record: Any, noted: Noted) -> bool:
        self.stables.append(record.step)
        self.on_stable()
        if self.ledger is not None:
            self.ledger.append(noted)
        return self.ledger is None

    def saved(self, step: int, *, just_now: bool) -> None:
        self.saves.append((step, just_now))

    def emit(self, event: AnyEvent) -> None:
        self.emitted.append(event)

    def note(self, level: int, text: str) -> None:
        self.noted.append((level, text))

    def passes(self, point: str, step: int) -> None:
        self.passed.append((point, step))


class Saves:
    def __init__(self) -> None:
        self.saved_step = -1
        self.idle = True
        self.heard_at: list[float] = []
        self.done: list[SaveAction] = []
        self.views: list[int] = []
        self.wishes = 0
        self.gone_back: list[int] = []
        self.finished: list[tuple[int, dict[int, Iterable[int]]]] = []
        self.to_copy: Save | None = None
        self.keep_at = BLANK
        self.stood: list[int] = []
        self.given: list[int] = []

    def heard(self, now: float) -> None:
        self.heard_at.append(now)

    def do(self, action: SaveAction) -> None:
        self.done.append(action)

    def adopt(self, view: View) -> None:
        self.views.append(view.number)

    def wish(self, step: int) -> int:
        return self.wishes

    def named(self, step: int, *, last: bool = False) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
        return ("last" if last else "one",), (step,)

    def waits_for_comparison(self, verified: int) -> bool:
        return False

    def go_back(self, step: int) -> None:
        self.gone_back.append(step)

    def finish(self, step: int, keeps: Mapping[int, Iterable[int]]) -> None:
        self.finished.append((step, dict(keeps)))

    def due(self, applied: int, now: float, *, chosen: bool | None) -> Save | None:
        save, self.to_copy = self.to_copy, None
        return save

    def keep_due(self, applied: int) -> bool:
        return applied == self.keep_at

    def stands(self, step: int) -> None:
        self.stood.append(step)

    def was_given(self, step: int) -> None:
        self.given.append(step)


class Report(NamedTuple):
    what: str = "bias"

    def first(self, view: View) -> str:
        return f"states differ in {self.what}"

    def ending(self, chief: int | None) -> str:
        return f"states differ in {self.what} again"

    def astray(self, replica: int, times: int, step: int) -> str:
        return f"replica {replica} went astray {times} times"


class Copies:
    def __init__(self) -> None:
        self.chosen = BLANK
        self.verified = BLANK
        self.done: list[Digest | Verified | Dropped | GoBack] = []
        self.to_copy: int | None = None
        self.lives = 1

    def do(self, action: Digest | Verified | Dropped | GoBack) -> None:
        self.done.append(action)

    def wish(self, step: int, *, chief: bool) -> bool:
        return False

    def due(self, applied: int) -> int | None:
        if self.to_copy is None or self.to_copy > applied:
            return None
        step, self.to_copy = self.to_copy, None
        return step

    def report(self, differ: Differ) -> Report:
        return Report()

    def begin_anew(self) -> None:
        self.lives += 1


class Final(NamedTuple):
    """The state at the end of the loop: one piece from each who gives it."""

    step: int
    image: bytes = b"\x01\x01"

    def share(self, pin: Pin, replica: int) -> Sequence[tuple[int, memoryview]]:
        return [(pin.servers.index(replica), memoryview(b"f"))]


class Replica:
    """One process, and what it is connected with."""

    def __init__(
        self,
        number: int = 0,
        *,
        saves: bool = False,
        copies: bool = False,
        steps: Callable[[int], StepCore] = StepCore,
        alone: bool = False,
        shadow: bool = False,
        timing: Timing | None = None,
    ) -> None:
        timing = timing or Timing()
        self.now = 0.0
        self.outlet, self.bulk = Outlet(), Bulk()
        self.saves = Saves()
        self.copies = Copies()
        member = MemberCore(replica=number, process=1, agent="", address="", timing=timing)
        self.driver = Driver(
            Setup(member=member, timing=timing, steps=steps, alone=alone, shadow=shadow),
            bulk=self.bulk,
            outlet=self.outlet,
            saves=self.saves if saves else None,
            copies=self.copies if copies else None,
            now=self.now,
        )
        self.bulk.driver = self.driver
        self._connections = 0
        self.connections: dict[int, Line] = {}

    @property
    def steps(self) -> StepCore:
        return self.driver.steps

    @property
    def broken(self) -> frozenset[int]:
        return self.driver.life.broken

    def adopt(self, life: int, view: View) -> None:
        """It is admitted as this life, and hears of a view."""
        member = self.driver.member
        admitted = Admitted(
            replica=member.replica, process=1, rejoin=member.rejoins, incarnation=life, view=view.number
        )
        self.driver.received(admitted, self.now)
        self.driver.received(ViewNews(view=view), self.now)

    def follow(self, view: View) -> None:
        """Members have moved to a planned view."""
        self.driver.received(ViewNews(view=view), self.now)
        participant = self.driver.participant
        self.driver.act(participant._run(participant.member.follow(view.number, self.now), self.now))

    def connect(self, peer: Member) -> Line:
        self._connections += 1
        line = Line(peer, self.driver.member.incarnation, self._connections)
        self.connections[peer.replica] = line
        self.driver.connected(line, self.now)
        return line

    def hear(self, sender: Member, header: Header, payload: bytes = b"") -> bool:
        """Over the connection with it; whether it wanted the payload."""
        header = header._replace(incarnation=sender.incarnation, size=len(payload))
        line = self.connections[sender.replica]
        memory = self.driver.room(line, header) if payload else memoryview(b"")
        if payload and memory is not None:
            memory[:] = payload
        self.driver.arrived(line, header, memory, self.now)
        return memory is not None

    def hear_word(self, sender: Member, body: Body | SaveBody, extra: bytes = b"", *, view: int = 1) -> None:
        if isinstance(body, Part):
            note = PartNote(pending=body.pending, closing=body.closing, check=body.check)
            extra = extra or encode(note)
        header, payload = codec.write(body, extra)
        self.hear(sender, header._replace(view=view), payload)

    def give_state(self, giver: Member, step: int, view: int = 1) -> None:
        """The state after this step comes, in one piece."""
        self.hear(giver, Header(Kind.IMAGE, view=view, step=step), b"\x04")
        self.hear(giver, Header(Kind.PIECE, view=view, step=step), b"abcd")

    def load(self) -> None:
        todo = self.driver.next(Stage.STARTING, self.now)
        assert isinstance(todo, Load)
        self.driver.did(todo, self.now)


def running(**more: Any) -> Replica:
    """Replica 0, which has been given the state after step 5, and trains at step 6 with the two others."""
    replica = Replica(0, **more)
    replica.adopt(1, VIEW)
    for peer in ALL[1:]:
        replica.connect(peer)
        replica.hear_word(peer, Holding(5))
    replica.give_state(ALL[1], 5)
    replica.load()
    assert replica.steps.mode is Mode.RUNNING and replica.steps.step == 6
    replica.outlet.sent.clear()
    replica.outlet.told.clear()
    replica.outlet.phases.clear()
    return replica


def learning(newest: int = 5, **more: Any) -> Replica:
    """Replica 4, which learns from the three members, and has the state after this step."""
    replica = Replica(4, **more)
    replica.adopt(1, learners_view())
    for peer in ALL:
        replica.connect(peer)
    replica.give_state(ALL[0], newest)
    replica.load()
    assert replica.steps.mode is Mode.LEARNING and replica.steps.newest == newest
    replica.outlet.sent.clear()
    return replica


def learners_view(number: int = 1, life: int = 1) -> View:
    return View(number=number, lineage=1, members=ALL, learners=(Member(4, life),), planned_since=number)
