"""Carrying out what the cores decide: in one order, each action in its view; and whose fault an error is."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from torch import nn

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind, PartNote
from outlast.mesh.transport import Mesh
from outlast.protocol.lines import Line
from outlast.protocol.member import Adopt, Frame, MemberCore
from outlast.protocol.messages import ViewNews
from outlast.protocol.step_words import Conclude, Holding, Mode, Part
from outlast.protocol.timing import Timing
from outlast.protocol.tree import Node
from outlast.protocol.views import Member, View
from outlast.train.conduct import Conduct
from outlast.train.exchange import Exchange
from outlast.train.flats import FlatPool
from outlast.train.giving import Giving
from outlast.train.layout import Layout
from outlast.train.post import Post
from outlast.train.sums import NodeSum
from outlast.train.supply import Supply
from patience import PATIENCE_S

TOKEN = b"t" * 32

LAYOUT = Layout(nn.Linear(5, 6, bias=False))


class Replica:
    """One that has its cores, and what carries their decisions out; the rest of an engine is not there."""

    def __init__(self, number: int, mesh: Any) -> None:
        self.core = MemberCore(replica=number, process=1, agent="", address="", timing=Timing())
        self.post = Post(mesh)
        self.pool = FlatPool(LAYOUT.size, LAYOUT.dtype)
        self.exchange = Exchange(LAYOUT, number, self.pool, lambda *sent: self.conduct.send_bulk(*sent))
        changed = threading.Condition()
        if isinstance(mesh, NoMesh):
            # There are no other threads, so the test has the lock all the time.
            changed.acquire()
        self.conduct = Conduct(
            core=self.core,
            exchange=self.exchange,
            supply=Supply(self.exchange.vectors),
            giving=Giving(number, None, None, self.post, changed),  # type: ignore[arg-type]
            post=self.post,
            timing=Timing(),
            changed=changed,
            link=None,
            mesh=mesh,
            progress=None,
            saver=None,
            comparing=None,
        )

    def adopt(self, life: int, view: View) -> None:
        with self.conduct.changed:
            self.core.incarnation, self.core.view = life, view
            self.conduct.act(self.conduct.participant._run([Adopt(view)], 0.0))

    def contribute(self, step: int, shard: int) -> None:
        flat = self.pool.take().fill_(1.0)
        node = NodeSum(Node(shard, shard + 1), flat, weight=1.0, loss=1.0, mask=1)
        self.exchange.contribute(step, [node], 0)


# Over real connections.


class Ear:
    """A sink that counts, and tells the replica if there is one."""

    replica: Replica | None = None

    def __init__(self) -> None:
        self.met = 0
        self.lost_count = 0

    def destination(self, _line: Line, header: Header) -> memoryview:
        return memoryview(bytearray(header.size))

    def arrived(self, line: Line, header: Header, _payload: object) -> None:
        if self.replica is not None:
            with self.replica.conduct.changed:
                self.replica.post.lines.takes(line, header.view)

    def connected(self, line: Line) -> None:
        if self.replica is not None:
            with self.replica.conduct.changed:
                self.replica.conduct.connected(line)
        self.met += 1

    def lost(self, line: Line, why: str) -> None:
        if self.replica is not None:
            with self.replica.conduct.changed:
                self.replica.conduct.lost(line, why)
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


def learning_from(teacher: Member, life: int, number: int) -> View:
    learner = Member(1, life)
    return View(number=number, lineage=1, members=(teacher,), learners=(learner,), planned_since=1)


@pytest.fixture
def teacher() -> Iterator[Mesh]:
    with opened(0, Ear()) as mesh:
        mesh.live(1)
        yield mesh


@pytest.fixture
def learner() -> Iterator[tuple[Replica, Ear]]:
    sink = Ear()
    with opened(1, sink) as mesh:
        sink.replica = Replica(1, mesh)
        yield sink.replica, sink


def test_the_connections_of_a_life_that_is_over_are_not_missed_in_the_next_one(
    teacher: Mesh, learner: tuple[Replica, Ear]
) -> None:
    """A learner that was cut off from a member begins anew, so it must not believe so for no reason."""
    replica, sink = learner
    member = Member(0, 1, teacher.address)
    teacher.peers([Member(1, 1)])
    replica.adopt(1, learning_from(member, 1, 1))
    until(lambda: sink.met == 1)
    # It lacks something, say, and begins anew of its own accord; the old connection is still there.
    replica.adopt(2, learning_from(member, 2, 2))
    until(lambda: sink.lost_count == 1)
    teacher.peers([Member(1, 2)])
    until(lambda: sink.met == 2)
    assert not replica.conduct.broken


def test_a_connection_that_was_in_use_is_missed_and_another_is_not(
    teacher: Mesh, learner: tuple[Replica, Ear]
) -> None:
    """The first one is parked and closed while members are in the middle of a long step: that is no loss."""
    replica, sink = learner
    teacher.peers([Member(1, 1)])
    replica.adopt(1, learning_from(Member(0, 1, teacher.address), 1, 1))
    until(lambda: sink.met == 1)
    teacher.peers([])
    until(lambda: sink.lost_count == 1)
    assert not replica.conduct.broken
    teacher.peers([Member(1, 1)])
    until(lambda: sink.met == 2)
    until(lambda: teacher.send(1, Header(Kind.FOUNDING, incarnation=1, view=1)))
    until(lambda: replica.post.lines._ties[0, 1].used)
    teacher.peers([])
    until(lambda: sink.lost_count == 2)
    assert replica.conduct.broken == {0}
    assert replica.conduct.over is None, "the member may be dead, and a view on its way"
    teacher.peers([Member(1, 1)])
    until(lambda: sink.met == 3)
    assert replica.conduct.over is not None and "replica 0" in replica.conduct.over


# Without any.


class NoMesh:
    """Takes everything, except for those to whom the connection is broken."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Header]] = []
        self.broken: set[int] = set()
        self.dropped: list[int] = []

    def send(self, line: Line, header: Header, *_payload: bytes, **_more: object) -> bool:
        if line.peer.replica in self.broken:
            return False
        self.sent.append((line.peer.replica, header))
        return True

    def drop(self, replica: int, _why: str, _line: Line) -> None:
        self.dropped.append(replica)

    def live(self, _life: int) -> None:
        pass

    def peers(self, _members: object) -> None:
        pass

    def call_guest(self) -> None:
        pass


ALL = tuple(Member(replica, 1) for replica in range(3))
VIEW = View(number=1, lineage=1, members=ALL, shards=(0, 1, 2), slices=(2, 0, 1), planned_since=1)
WITHOUT_2 = View(
    number=2, lineage=1, members=ALL[:2], shards=(0, 1, 1), slices=(0, 1), planned_since=1, cause="2 leaves"
)


def running(mesh: NoMesh) -> Replica:
    """Replica 0, which trains at step 6 with the two others."""
    replica = Replica(0, mesh)
    conduct = replica.conduct
    replica.adopt(1, VIEW)
    for peer in ALL[1:]:
        conduct.connected(Line(peer, 1, peer.replica))
    conduct.participant.steps.newest = 5
    conduct.participant.steps._speak()
    for peer in ALL[1:]:
        frame = Frame(peer.replica, 1, 1, Holding(5), (Header(Kind.HOLDING), None))
        conduct.act(conduct.participant.frame(frame, 0.0))
    assert conduct.participant.steps.mode is Mode.RUNNING
    mesh.sent.clear()
    return replica


def test_a_send_that_fails_in_the_middle_does_not_change_the_view_under_the_rest() -> None:
    """Members of a planned view follow it at once where one who leaves with it is gone; but contributions
    that are on their way out are those of the view before."""
    mesh = NoMesh()
    replica = running(mesh)
    conduct = replica.conduct
    conduct.received(ViewNews(view=WITHOUT_2), 0.0)
    assert conduct.view == VIEW
    mesh.broken.add(2)
    replica.contribute(6, 0)
    scattered = [(to, header.view, header.size) for to, header in mesh.sent if header.kind == Kind.SCATTER]
    third = LAYOUT.size * LAYOUT.dtype.itemsize // 3
    assert scattered == [(1, 1, third)]
    assert conduct.view == VIEW
    conduct.act(conduct.participant.contribute(0.0))
    assert conduct.view == WITHOUT_2 and conduct.failure is None


def test_what_cannot_be_taken_costs_its_sender_the_connection_and_nobody_else_anything() -> None:
    mesh = NoMesh()
    replica = running(mesh)
    conduct = replica.conduct
    header = Header(Kind.PART, incarnation=1, view=1, step=6)
    frame = Frame(1, 1, 1, Part(6), (header, PartNote()))  # It says nothing of shard 1, which is its own.
    conduct.act(conduct.participant.frame(frame, 0.0))
    assert mesh.dropped == [1] and conduct.failure is None
    assert conduct.broken == {1}


def test_nothing_comes_of_an_attempt_with_something_that_could_not_be_taken() -> None:
    mesh = NoMesh()
    replica = running(mesh)
    conduct = replica.conduct
    conduct.act([Conclude(6)])
    assert isinstance(conduct.failure, ProtocolError), "contributions are missing, so it is loud"
    replica = running(mesh)
    conduct = replica.conduct
    header = Header(Kind.PART, incarnation=1, view=1, step=6)
    conduct.act(conduct.participant.frame(Frame(1, 1, 1, Part(6), (header, PartNote())), 0.0))
    conduct.act([Conclude(6)])
    assert conduct.failure is None, "the step waits for the next view"


def test_an_error_of_ours_is_nobody_elses() -> None:
    """Whoever's frame was being served when it came to light keeps its connection."""
    mesh = NoMesh()
    replica = running(mesh)
    replica.conduct.act([Conclude(6)])
    with pytest.raises(ProtocolError, match="all parts are in, but"):
        replica.conduct.check()
    assert mesh.dropped == []


def test_a_record_is_not_made_of_what_has_not_come() -> None:
    replica = running(NoMesh())
    replica.contribute(6, 0)
    with pytest.raises(ProtocolError, match="all sums are in, but of bucket 0 the result of replica"):
        replica.exchange.record(6)


def test_a_gap_is_told_until_an_era_ends_also_through_planned_views() -> None:
    replica = running(NoMesh())
    conduct = replica.conduct
    conduct.lost(Line(ALL[1], 1, 1), "reset")
    assert conduct.participant.member.unreachable == {1}
    conduct.connected(Line(ALL[1], 1, 5))
    assert conduct.participant.member.torn == {1} and not conduct.participant.member.unreachable
    planned = msgspec.structs.replace(VIEW, number=2, learners=(Member(4, 1),))
    replica.adopt(1, planned)
    assert conduct.participant.member.torn == {1}
    conduct.received(ViewNews(view=msgspec.structs.replace(VIEW, number=3, planned_since=3)), 0.0)
    assert conduct.view.number == 3
    assert not conduct.broken and not conduct.participant.member.torn


def test_a_gap_in_the_next_era_too_is_told_again() -> None:
    """The cores forget with the era what they were told of the one before."""
    replica = running(NoMesh())
    conduct = replica.conduct
    conduct.lost(Line(ALL[1], 1, 1), "reset")
    conduct.connected(Line(ALL[1], 1, 5))
    conduct.heard_of_gap(Line(ALL[1], 1, 5), era=3)
    conduct.received(ViewNews(view=msgspec.structs.replace(VIEW, number=3, planned_since=3)), 0.0)
    assert conduct.view.number == 3 and conduct.broken == {1}
    assert conduct.participant.member.torn == {1}


def test_one_that_cannot_be_reached_two_windows_after_a_view_began_is_lost() -> None:
    replica = Replica(0, NoMesh())
    replica.adopt(1, VIEW)
    replica.conduct.connected(Line(ALL[1], 1, 1))
    soon = time.monotonic() + Timing().detect_within_s
    replica.conduct.tick(soon)
    assert not replica.conduct.broken
    replica.conduct.tick(soon + 2 * Timing().detect_within_s)
    assert replica.conduct.broken == {2}


def test_a_learner_waits_for_members_that_are_in_the_middle_of_a_long_step() -> None:
    replica = Replica(4, NoMesh())
    replica.adopt(1, View(number=2, lineage=1, members=ALL, learners=(Member(4, 1),), planned_since=1))
    replica.conduct.tick(time.monotonic() + 100.0)
    assert not replica.conduct.broken and replica.conduct.over is None
