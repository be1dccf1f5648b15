"""Giving the state to one who learns, without holding up the training."""

import threading
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from outlast.protocol.header import Header
from outlast.protocol.inbox import Arrival
from outlast.protocol.kinds import Kind
from outlast.protocol.step_words import Pin
from outlast.protocol.todos import Give, Stage
from outlast.protocol.views import Member
from outlast.state.contents import decode_image
from outlast.state.digest import state_digest
from outlast.state.image import Assembly
from outlast.state.training import TrainingState
from outlast.train.gifts import Gifts
from protocol.stand_ins import VIEW, Replica, running

LEARNER = Member(9, 1)
PIN = Pin(to=LEARNER, step=5, servers=(0,))


class Bulk:
    """All that a state that arrives needs of it."""

    def state(self, encoded: bytes) -> Assembly:
        return Assembly(decode_image(encoded))


class NoBuffers:
    def step_buffers(self) -> dict[int, torch.Tensor]:
        return {}


def training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer


class Giver:
    """Replica 0 after step 5, with a learner that is connected."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.replica: Replica = running()
        self.replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(LEARNER,)))
        self.replica.connect(LEARNER)
        self.replica.outlet.sent.clear()
        self.driver = self.replica.driver
        gradients: Any = NoBuffers()
        state = TrainingState(model, {"optimizer": optimizer})
        self.gifts = Gifts(self.driver, state, gradients, threading.Condition())

    def give(self, *, at_once: bool, view: int = 2) -> None:
        header = self.driver.header(Kind.IMAGE, 5)._replace(view=view)
        self.gifts.begin(Give(PIN, header, at_once=at_once))

    @property
    def kinds(self) -> list[Kind]:
        assert all(sent.to == LEARNER.replica for sent in self.replica.outlet.sent)
        return [sent.kind for sent in self.replica.outlet.sent]

    @property
    def arrival(self) -> Arrival:
        """What the learner has by now."""
        arrival, bulk = Arrival(), Bulk()
        for sent in self.replica.outlet.sent:
            if sent.kind is Kind.IMAGE:
                arrival.described(sent.header, sent.payload, bulk)  # type: ignore[arg-type]
            elif sent.kind is Kind.PIECE:
                slot = arrival.slot(sent.header)
                assert slot is not None
                slot[:] = sent.payload
                arrival.arrived(sent.header)
        return arrival


def test_a_gift_is_complete_when_the_state_is_about_to_change() -> None:
    model, optimizer = training()
    giver = Giver(model, optimizer)
    giver.give(at_once=False)
    assert not giver.gifts.idle and giver.kinds == [Kind.IMAGE]
    giver.gifts.settle()
    arrival = giver.arrival
    assert giver.gifts.idle and arrival.complete and (arrival.view, arrival.step) == (2, 5)
    expected = state_digest(model, optimizer)
    other, its_optimizer = training()
    with torch.no_grad():
        other.weight.add_(1)
    assert isinstance(arrival.assembly, Assembly)
    state = TrainingState(other, {"optimizer": its_optimizer})
    state.load(arrival.assembly.image, arrival.assembly.tensors())
    assert state_digest(other, its_optimizer) == expected


def test_who_keeps_everybody_waiting_is_given_its_share_at_once() -> None:
    giver = Giver(*training())
    giver.give(at_once=True)
    assert giver.gifts.idle and giver.arrival.complete


def test_where_the_state_changes_in_the_middle_of_a_step_the_next_gift_is_made_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, optimizer = training()
    giver = Giver(model, optimizer)
    giver.give(at_once=False)
    with torch.no_grad():
        model.weight.add_(1)
    giver.gifts.settle()
    assert giver.kinds == [Kind.IMAGE], "a mixture of two moments is not given to anybody"
    assert not giver.driver.life.giving.owed(5), "nor promised any more"
    assert "replica 9 is not given the state" in caplog.text
    giver.give(at_once=False, view=3)
    assert giver.gifts.idle and giver.arrival.complete


def test_one_who_waits_for_its_share_is_told_until_it_has_been_sent() -> None:
    """The step in which it was promised may take minutes, and one that hears nothing begins anew."""
    giver = Giver(*training())
    giving = giver.driver.life.giving
    giver.driver.act([PIN])
    assert giving.owed(applied=4) == giving.owed(applied=5) == [LEARNER]
    assert giving.owed(applied=6) == [], "it stands behind that step, and nothing will come"
    give = giver.driver.next(Stage.STEPPING, 0.0)
    assert isinstance(give, Give) and give.header == Header(Kind.IMAGE, incarnation=1, view=2, step=5)
    giver.gifts.begin(give)
    assert giving.owed(applied=5) == [LEARNER]
    giver.gifts.settle()
    assert giving.owed(applied=5) == [] and giver.arrival.complete


def test_what_was_begun_in_a_life_that_is_over_is_not_given_in_the_next_one() -> None:
    giver = Giver(*training())
    giver.give(at_once=False)
    giver.driver.end_life("it is tried")
    assert giver.driver.next(Stage.STEPPING, 0.0) is None
    giver.gifts.settle()
    assert giver.gifts.idle and giver.kinds == [Kind.IMAGE]
