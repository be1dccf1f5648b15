"""A driver over real connections: which of them it misses, and which not."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from outlast.locks import Monitor
from outlast.mesh.transport import Mesh
from outlast.protocol.deeds import Setup
from outlast.protocol.driver import Driver
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind
from outlast.protocol.lines import Line
from outlast.protocol.member import MemberCore
from outlast.protocol.messages import Admitted, ViewNews
from outlast.protocol.timing import Timing
from outlast.protocol.todos import Stage
from outlast.protocol.views import Member, View
from outlast.train.outlet import Sink, TrainingOutlet
from patience import PATIENCE_S
from protocol.stand_ins import Bulk

TOKEN = b"t" * 32


class Ear(Sink):
    """Counts, and tells the driver if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.met = 0
        self.lost_count = 0
        self.frames = 0

    @property
    def _deaf(self) -> bool:
        return not hasattr(self, "_driver")

    def destination(self, line: Line, header: Header) -> memoryview | None:
        return memoryview(bytearray(header.size)) if self._deaf else super().destination(line, header)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        if not self._deaf:
            super().arrived(line, header, payload)
        self.frames += 1

    def connected(self, line: Line) -> None:
        if not self._deaf:
            super().connected(line)
        self.met += 1

    def lost(self, line: Line, why: str) -> None:
        if not self._deaf:
            super().lost(line, why)
        self.lost_count += 1


@contextmanager
def opened(replica: int, sink: Ear) -> Iterator[Mesh]:
    mesh = Mesh(job="j", token=TOKEN, replica=replica, sink=sink)
    mesh.open()
    try:
        yield mesh
    finally:
        mesh.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Learner:
    """Replica 1, driven by its mesh."""

    def __init__(self, mesh: Mesh, sink: Ear) -> None:
        self.sink = sink
        self.changed = Monitor("engine")
        member = MemberCore(replica=1, process=1, agent="", address=mesh.address, timing=Timing())
        bulk: Any = Bulk()
        outlet = TrainingOutlet(self.changed, mesh, None, None)
        setup = Setup(member=member, timing=Timing())
        self.driver = bulk.driver = Driver(setup, bulk=bulk, outlet=outlet, now=time.monotonic())
        sink.hands_to(self.driver, self.changed)

    def adopt(self, life: int, number: int, teacher: Member) -> None:
        """It is admitted as this life, and learns from that member."""
        me = Member(1, life)
        view = View(number=number, lineage=1, members=(teacher,), learners=(me,), planned_since=1)
        with self.changed:
            member, now = self.driver.member, time.monotonic()
            admitted = Admitted(replica=1, process=1, rejoin=member.rejoins, incarnation=life, view=number)
            self.driver.received(admitted, now)
            self.driver.received(ViewNews(view=view), now)
            assert self.driver.view == view

    @property
    def broken(self) -> frozenset[int]:
        with self.changed:
            return self.driver.life.broken


@pytest.fixture
def teacher() -> Iterator[Mesh]:
    with opened(0, Ear()) as mesh:
        mesh.live(1)
        yield mesh


@pytest.fixture
def learner() -> Iterator[Learner]:
    sink = Ear()
    with opened(1, sink) as mesh:
        yield Learner(mesh, sink)


def test_the_connections_of_a_life_that_is_over_are_not_missed_in_the_next_one(
    teacher: Mesh, learner: Learner
) -> None:
    """A learner that was cut off from a member begins anew, so it must not believe so for no reason."""
    member, sink = Member(0, 1, teacher.address), learner.sink
    teacher.peers([Member(1, 1)])
    learner.adopt(1, 1, member)
    until(lambda: sink.met == 1)
    with learner.changed:
        # It lacks something, say, and begins anew of its own accord; the old connection is still there.
        learner.driver.end_life("it lacks something")
        assert learner.driver.next(Stage.STARTING, time.monotonic()) is None
    learner.adopt(2, 2, member)
    until(lambda: sink.lost_count == 1)
    teacher.peers([Member(1, 2)])
    until(lambda: sink.met == 2)
    assert not learner.broken
    assert learner.driver.life.over is None


def test_a_connection_that_was_in_use_is_missed_and_another_is_not(teacher: Mesh, learner: Learner) -> None:
    """The first one is parked and closed while members are in the middle of a long step: that is no loss."""
    sink, life = learner.sink, learner.driver.life
    teacher.peers([Member(1, 1)])
    learner.adopt(1, 1, Member(0, 1, teacher.address))
    until(lambda: sink.met == 1)
    teacher.peers([])
    until(lambda: sink.lost_count == 1)
    assert not learner.broken
    teacher.peers([Member(1, 1)])
    until(lambda: sink.met == 2)
    until(lambda: teacher.send(1, Header(Kind.FOUNDING, incarnation=1, view=1)))
    until(lambda: sink.frames == 1)
    teacher.peers([])
    until(lambda: sink.lost_count == 2)
    assert learner.broken == {0}
    assert life.over is None, "the member may be dead, and a view on its way"
    teacher.peers([Member(1, 1)])
    until(lambda: sink.met == 3)
    assert life is learner.driver.life
    assert life.over is not None and "replica 0" in life.over
