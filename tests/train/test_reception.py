"""What comes in over the mesh reaches the cores, also where there is nothing to receive with it."""

import threading
from typing import Any

import pytest
import torch

from outlast.mesh.frames import Header
from outlast.mesh.kinds import SHARES, Kind, RecordNote, Way, encode
from outlast.protocol.lines import Line, Lines
from outlast.protocol.member import Adopt, MemberCore
from outlast.protocol.participant import Action, Participant
from outlast.protocol.step_words import Attempt, Lost, Mode
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, View
from outlast.train.exchange import Exchange
from outlast.train.flats import FlatPool
from outlast.train.layout import Layout
from outlast.train.reception import Reception
from outlast.train.supply import Supply

OLD, NEW, LATE = Member(0, 1), Member(1, 1), Member(2, 1)
LEARNING = View(number=1, lineage=1, members=(OLD,), learners=(NEW,), shards=(0,), slices=(0,))
JOINED = View(number=2, lineage=1, members=(OLD, NEW), shards=(0,), slices=(0, 1), planned_since=1)


class Learner:
    """One that has the state after a step, and whose view has one member."""

    def __init__(self, newest: int) -> None:
        core = MemberCore(replica=1, process=1, agent="", address="", timing=Timing())
        core.incarnation = 1
        self.participant = Participant(core)
        self.exchange = Exchange(
            Layout(torch.nn.Linear(3, 4)), 1, FlatPool(SHARES, torch.float32), lambda *_: None
        )
        self.done: list[Action] = []
        self.reception = Reception(
            self.participant,
            self.exchange,
            Supply(self.exchange.vectors),
            threading.Condition(),
            act=self.done.extend,
            broken=lambda error: pytest.fail(str(error)),
            wake=lambda: None,
            lines=(lines := Lines[Any]()),
            settle=lambda: None,
            connected=lambda _: None,
            lost=lambda *_: None,
            heard_of_gap=lambda *_: None,
        )
        view = View(number=9, members=(OLD, LATE), learners=(NEW,))
        lines.adopt(view, 1)
        for peer in (OLD, LATE):
            lines.connected(Line(peer, 1, 1))
        core.view = LEARNING
        self.participant._run([Adopt(LEARNING)], 0.0)
        self.participant.loaded(newest, 0.0)

    def hear(self, sender: Member, header: Header, payload: bytes = b"") -> bool:
        """Whether it wanted the payload."""
        header = header._replace(incarnation=1, size=len(payload))
        line = Line(sender, 1, 1)
        memory = self.reception.destination(line, header) if payload else memoryview(b"")
        if payload and memory is not None:
            memory[:] = payload
        self.reception.arrived(line, header, memory)
        return memory is not None


def test_what_members_have_gone_back_behind_is_not_mixed_with_what_they_do_instead() -> None:
    learner = Learner(newest=40)
    old = Header(Kind.SHARE, flags=Way.STABLE, view=1, step=41)
    assert learner.hear(OLD, old._replace(lo=4), bytes(4)), "all is well so far"
    learner.hear(OLD, Header(Kind.FEED_FROM, view=2, step=41, offset=40))
    assert not learner.hear(LATE, old._replace(lo=9), bytes(4)), "one that is slow to go back"
    assert learner.hear(OLD, old._replace(lo=4, view=2), bytes(4))
    assert learner.hear(LATE, old._replace(lo=9, view=2), bytes(4))


@pytest.mark.parametrize(("newest", "follows"), [(5, Attempt(6)), (6, Lost)])
def test_that_a_record_is_handed_is_heard_by_who_has_it_already(newest: int, follows: object) -> None:
    learner = Learner(newest)
    learner.hear(OLD, Header(Kind.SWITCHED, view=2), encode(JOINED))
    assert learner.participant.steps.mode is Mode.JOINING
    note = RecordNote(weight=1.0, loss=0.0, mask=b"", integers={}, view=1, shards=(0,))
    learner.hear(OLD, Header(Kind.NOTE, flags=Way.HANDED, view=2, step=5), encode(note))
    assert any(action == follows or type(action) is follows for action in learner.done), learner.done
