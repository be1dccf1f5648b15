"""Copies of the whole state: the same digest for the same state, and the way back to it."""

import threading
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from outlast.protocol.member import MemberCore
from outlast.protocol.participant import Action, Participant
from outlast.protocol.step_words import Digest, Fork, GoBack
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.state.digest import state_digest
from outlast.state.training import TrainingState
from outlast.train.comparing import Comparing, StepFacts, checksum
from patience import PATIENCE_S


class Facts:
    last: StepFacts = (0, 0, ())
    given: StepFacts | None = None


class Core(StepCore):
    """Writes down which digests it is told."""

    def __init__(self, replica: int) -> None:
        super().__init__(replica, verifies=True)
        self.told: dict[int, bytes] = {}

    def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[object]:  # type: ignore[override]
        self.told[step] = digest
        return []


class Replica:
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.facts = Facts()
        self.changed = threading.Condition()
        state = TrainingState(self.model, {"optimizer": self.optimizer})
        self.comparing = Comparing(state, self.facts, 10, self.changed)
        member = MemberCore(replica=0, process=1, agent="", address="", timing=Timing())
        self.participant = Participant(member, Core)
        self.comparing.directed_by(self.participant, self.act)
        self.train()

    def act(self, actions: Iterable[Action]) -> None:
        assert not list(actions)
        self.changed.notify_all()

    def train(self) -> None:
        torch.manual_seed(9)
        self.model(torch.randn(16, 8)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def digest(self, step: int) -> bytes:
        self.comparing.copy(step, {})
        self.comparing.settle()
        core = self.participant.steps
        assert isinstance(core, Core)
        with self.changed:
            assert self.changed.wait_for(lambda: step in core.told, PATIENCE_S)
        return core.told[step]


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
    core = replica.participant.steps
    assert core.verifying is not None
    core.verifying.verified = 1
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
    replica.comparing.copy(1, {})
    with torch.no_grad():
        replica.model[0].weight.add_(1)
    replica.comparing.settle()
    core = replica.participant.steps
    assert isinstance(core, Core)
    with replica.changed:
        assert replica.changed.wait_for(lambda: 1 in core.told, PATIENCE_S)
    assert core.told[1] == b""


def test_a_state_is_copied_when_the_model_stands_there_or_not_at_all() -> None:
    replica = Replica()
    replica.comparing.do(Digest(5))
    assert replica.comparing.due(4) is None
    assert replica.comparing.due(5) == Digest(5)
    assert replica.comparing.due(5) is None
    replica.comparing.do(Digest(7))
    with replica.changed:
        assert replica.comparing.due(8) is None
    core = replica.participant.steps
    assert isinstance(core, Core) and core.told == {7: b""}


@pytest.mark.parametrize("size", [0, 1, 2, 7, 4096])
def test_a_checksum_is_of_every_bit(size: int) -> None:
    flat = torch.randn(size)
    first = checksum(flat)
    assert checksum(flat.clone()) == first
    for index in {0, size - 1} if size else set():
        other = flat.clone()
        other[index : index + 1].view(torch.int32).bitwise_xor_(1)
        assert checksum(other) != first
