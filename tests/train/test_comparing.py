"""Copies of the whole state: the same digest for the same state, and the way back to it."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from outlast.protocol.seams import Digested
from outlast.protocol.step_words import NO_FORK, Digest, Fork, GoBack
from outlast.protocol.steps import StepCore
from outlast.state.digest import state_digest
from outlast.state.training import TrainingState
from outlast.train.comparing import Comparing, StepFacts, checksum
from patience import PATIENCE_S


class Facts:
    last: StepFacts = (0, 0, ())
    given: StepFacts | None = None


class Driver:
    """Writes down which digests it is told."""

    def __init__(self, changed: threading.Condition) -> None:
        self.steps = StepCore(0, verifies=True)
        self.told: dict[int, Digested] = {}
        self.noted: list[tuple[int, str]] = []
        self._changed = changed

    @property
    def outlet(self) -> SimpleNamespace:
        return SimpleNamespace(note=lambda level, text: self.noted.append((level, text)))

    def done(self, what: Digested, _now: float) -> None:
        self.told[what.step] = what
        self._changed.notify_all()


class Replica:
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.facts = Facts()
        self.changed = threading.Condition()
        state = TrainingState(self.model, {"optimizer": self.optimizer})
        self.comparing = Comparing(state, self.facts, 10, self.changed)
        self.driver: Any = Driver(self.changed)
        self.comparing.driven_by(self.driver)
        self.life = object()
        self.train()

    def train(self) -> None:
        torch.manual_seed(9)
        self.model(torch.randn(16, 8)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def digest(self, step: int) -> bytes:
        self.comparing.copy(step, {}, self.life, NO_FORK)
        self.comparing.settle()
        return self.told(step).digest

    def told(self, step: int) -> Digested:
        with self.changed:
            assert self.changed.wait_for(lambda: step in self.driver.told, PATIENCE_S)
        told = self.driver.told[step]
        assert isinstance(told, Digested)
        return told


def test_equal_states_have_equal_digests_and_one_bit_makes_another() -> None:
    one, other = Replica(), Replica()
    assert one.digest(1) == other.digest(1) != b""
    other.model[0].weight.data.view(-1)[0:1].view(torch.int32).bitwise_xor_(1)
    assert one.digest(2) != other.digest(2)


def test_the_optimizer_and_buffers_are_part_of_it() -> None:
    one, other = Replica(), Replica()
    other.optimizer.state[other.model[0].weight]["exp_avg_sq"].view(torch.int32)[0, 0] += 1
    assert one.digest(1) != other.digest(1)
    third = Replica()
    third.model[1].running_mean[0] += 1
    assert one.digest(2) != third.digest(2)


def test_how_a_state_came_about_is_not_part_of_it() -> None:
    one, other = Replica(), Replica()
    one.facts.last, other.facts.last = (1, 2, (0, 1)), (1, 7, (1, 1))
    assert one.digest(1) == other.digest(1)
    assert one.facts.last == (1, 2, (0, 1))


def test_what_was_copied_can_be_gone_back_to() -> None:
    replica = Replica()
    before = state_digest(replica.model, replica.optimizer)
    replica.facts.last = (1, 2, (0,))
    replica.digest(1)
    verifying = replica.driver.steps.verifying
    assert verifying is not None
    verifying.verified = 1
    for step in (2, 3):
        replica.train()
        replica.facts.last = (step, 2, (0,))
        replica.digest(step)
    assert state_digest(replica.model, replica.optimizer) != before
    replica.comparing.do(GoBack(Fork(2, 1), 1))
    replica.comparing.load(1)
    assert state_digest(replica.model, replica.optimizer) == before
    assert replica.facts.last == (1, 2, (0,))
    assert replica.comparing.verified == 1


def test_a_state_that_changes_while_it_is_copied_is_not_compared() -> None:
    replica = Replica()
    replica.comparing.copy(1, {}, replica.life, NO_FORK)
    with torch.no_grad():
        replica.model[0].weight.add_(1)
    replica.comparing.settle()
    assert replica.told(1).digest == b""
    assert [text for _, text in replica.driver.noted if "is not compared" in text]


def test_a_digest_says_in_which_life_and_since_which_fork_it_was_copied() -> None:
    """So that it does not count in another; see `protocol/driver.py`."""
    replica, life, fork = Replica(), object(), Fork(2, 1)
    replica.comparing.copy(3, {}, life, fork)
    replica.comparing.settle()
    told = replica.told(3)
    assert told.life is life and told.fork == fork and told.entries


def test_a_state_is_copied_when_the_model_stands_there_or_not_at_all() -> None:
    """Who asks tells the others of one that cannot be copied any more; see `protocol/agenda.py`."""
    replica = Replica()
    replica.comparing.do(Digest(5))
    assert replica.comparing.due(4) is None
    assert replica.comparing.due(5) == 5
    assert replica.comparing.due(5) is None
    replica.comparing.do(Digest(7))
    assert replica.comparing.due(8) == 7
    assert replica.comparing.due(8) is None


@pytest.mark.parametrize("size", [0, 1, 2, 7, 4096])
def test_a_checksum_is_of_every_bit(size: int) -> None:
    flat = torch.randn(size)
    first = checksum(flat)
    assert checksum(flat.clone()) == first
    for index in {0, size - 1} if size else set():
        other = flat.clone()
        other[index : index + 1].view(torch.int32).bitwise_xor_(1)
        assert checksum(other) != first
