"""Connections and lives: what is lost with a life that is over is nobody's fault in the next one."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from outlast.mesh.frames import Header
from outlast.mesh.transport import Mesh
from outlast.protocol.member import Adopt, MemberCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, View
from outlast.train.conduct import Conduct
from outlast.train.exchange import Exchange
from outlast.train.flats import FlatPool
from outlast.train.giving import Giving
from outlast.train.layout import Layout
from outlast.train.post import Post
from outlast.train.supply import Supply

TOKEN = b"t" * 32
PATIENCE_S = 30.0


class Ear:
    """The sink of both: it counts, and tells the conduct if there is one."""

    def __init__(self, conduct: Conduct | None = None, post: Post | None = None) -> None:
        self._conduct = conduct
        self._post = post
        self.met = 0
        self.lost_count = 0

    def destination(self, _sender: Member, header: Header) -> memoryview:
        return memoryview(bytearray(header.size))

    def arrived(self, *_: object) -> None:
        pass

    def connected(self, peer: Member) -> None:
        if self._conduct is not None and self._post is not None:
            with self._conduct.changed:
                self._post.connected(peer)
        self.met += 1

    def lost(self, peer: Member, _why: str) -> None:
        if self._conduct is not None:
            with self._conduct.changed:
                self._conduct.lost(peer)
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
    """Replica 1, which learns from replica 0."""

    def __init__(self, mesh: Mesh, sink: Ear) -> None:
        self.core = MemberCore(replica=1, process=1, agent="", address="", timing=Timing())
        post = Post(mesh)
        exchange = Exchange(Layout(nn.Linear(2, 2)), 1, FlatPool(8, torch.float32), lambda *_: None)
        changed = threading.Condition()
        self.conduct = Conduct(
            core=self.core,
            exchange=exchange,
            supply=Supply(exchange.vectors),
            giving=Giving(1, None, None, post, changed),  # type: ignore[arg-type]
            post=post,
            timing=Timing(),
            changed=changed,
            link=None,
            mesh=mesh,
            progress=None,
            saver=None,
            comparing=None,
        )
        sink._conduct, sink._post = self.conduct, post

    def adopt(self, life: int, number: int, teacher: Member) -> None:
        with self.conduct.changed:
            view = View(number=number, lineage=1, members=(teacher,), learners=(Member(1, life),))
            self.core.incarnation, self.core.view = life, view
            self.conduct.act(self.conduct.participant._run([Adopt(view)], 0.0))


@pytest.fixture
def peer() -> Iterator[tuple[Mesh, Ear]]:
    sink = Ear()
    with opened(0, sink) as mesh:
        mesh.live(1)
        yield mesh, sink


def test_the_connections_of_a_life_that_is_over_are_not_missed_in_the_next_one(
    peer: tuple[Mesh, Ear],
) -> None:
    """A learner that was cut off from a member begins anew, so it must not believe so for no reason."""
    other, _ = peer
    sink = Ear()
    with opened(1, sink) as mesh:
        teacher = Member(0, 1, other.address)
        learner = Learner(mesh, sink)
        other.peers([Member(1, 1)])
        learner.adopt(1, 1, teacher)
        until(lambda: sink.met == 1)
        # It lacks something, say, and begins anew of its own accord; the old connection is still there.
        learner.adopt(2, 2, teacher)
        until(lambda: sink.lost_count == 1)
        other.peers([Member(1, 2)])
        until(lambda: sink.met == 2)
        assert learner.conduct.broken == set()


def test_a_connection_that_breaks_in_this_life_is_missed(peer: tuple[Mesh, Ear]) -> None:
    other, _ = peer
    sink = Ear()
    with opened(1, sink) as mesh:
        learner = Learner(mesh, sink)
        other.peers([Member(1, 1)])
        learner.adopt(1, 1, Member(0, 1, other.address))
        until(lambda: sink.met == 1)
        other.peers([])
        until(lambda: sink.lost_count == 1)
        assert learner.conduct.broken == {0}
