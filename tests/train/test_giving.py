"""Giving the state to one who learns, without holding up the training."""

import threading

import pytest
import torch
from torch import nn

from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind
from outlast.protocol.step_words import Pin
from outlast.protocol.views import Member
from outlast.state.digest import state_digest
from outlast.state.training import TrainingState
from outlast.train.giving import Giving
from outlast.train.snapshots import Arrival

LEARNER = Member(9, 1)
PIN = Pin(to=LEARNER, step=5, servers=(0,))


class Sent:
    """In the place of the post: everything arrives at once."""

    def __init__(self) -> None:
        self.arrival = Arrival()
        self.kinds: list[Kind] = []

    def send(self, peer: Member, header: Header, payload: memoryview | bytes) -> None:
        assert peer == LEARNER
        self.kinds.append(Kind(header.kind))
        header = header._replace(size=memoryview(payload).nbytes)
        if header.kind == Kind.IMAGE:
            self.arrival.described(header, bytes(payload))
        else:
            slot = self.arrival.slot(header)
            assert slot is not None
            slot[:] = payload
            self.arrival.arrived(header)


class NoBuffers:
    def step_buffers(self) -> dict[int, torch.Tensor]:
        return {}


def training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer


def giving(model: nn.Module, optimizer: torch.optim.Optimizer, sent: Sent) -> Giving:
    state = TrainingState(model, {"optimizer": optimizer})
    return Giving(0, state, NoBuffers(), sent, threading.Condition())  # type: ignore[arg-type]


def header() -> Header:
    return Header(Kind.IMAGE, view=2)


def test_a_gift_is_complete_when_the_state_is_about_to_change() -> None:
    model, optimizer = training()
    sent = Sent()
    gives = giving(model, optimizer, sent)
    gives.serve(PIN, header(), at_once=False)
    assert not gives.idle and sent.kinds == [Kind.IMAGE]
    gives.settle()
    assert gives.idle and sent.arrival.complete
    expected = state_digest(model, optimizer)
    other, its_optimizer = training()
    with torch.no_grad():
        other.weight.add_(1)
    TrainingState(other, {"optimizer": its_optimizer}).load(sent.arrival.image, sent.arrival.tensors())
    assert state_digest(other, its_optimizer) == expected


def test_who_keeps_everybody_waiting_is_given_its_share_at_once() -> None:
    sent = Sent()
    gives = giving(*training(), sent)
    gives.serve(PIN, header(), at_once=True)
    assert gives.idle and sent.arrival.complete


def test_where_the_state_changes_in_the_middle_of_a_step_the_next_gift_is_made_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, optimizer = training()
    sent = Sent()
    gives = giving(model, optimizer, sent)
    gives.serve(PIN, header(), at_once=False)
    with torch.no_grad():
        model.weight.add_(1)
    gives.settle()
    assert sent.kinds == [Kind.IMAGE], "a mixture of two moments is not given to anybody"
    assert "replica 9 is not given the state" in caplog.text
    gives.serve(PIN, header()._replace(view=3), at_once=False)
    assert gives.idle and sent.arrival.complete


def test_one_who_waits_for_its_share_is_told_until_it_has_been_sent() -> None:
    """The step in which it was promised may take minutes, and one that hears nothing begins anew."""
    gives = giving(*training(), Sent())
    gives.pin(PIN, header())
    assert gives.owed(applied=4) == gives.owed(applied=5) == {LEARNER}
    assert gives.owed(applied=6) == set(), "it stands behind that step, and nothing will come"
    due = gives.due(5)
    assert due is not None
    gives.serve(*due, at_once=False)
    assert gives.owed(applied=5) == {LEARNER}
    gives.settle()
    assert gives.owed(applied=5) == set()
