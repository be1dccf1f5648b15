"""What is in a state, by name: the same digests for the same values, and names that people know."""

import pytest
import torch
from blake3 import blake3
from torch import nn

from outlast.protocol.repeating import PLAIN, unpacked
from outlast.state import entries as entries_module
from outlast.state.entries import DIGEST_BYTES, Entries, entries_of, in_words
from outlast.state.training import TrainingState


class Counter:
    def __init__(self) -> None:
        self.values = {"seen": 3, "history": [0.5] * 100}

    def state_dict(self) -> dict[str, object]:
        return self.values

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.values = state


class Program:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.counter = Counter()
        self.model(torch.ones(3, 2)).sum().backward()
        self.optimizer.step()
        self.state = TrainingState(
            self.model, {"optimizer": self.optimizer}, {"counter": self.counter, "outlast.own": Counter()}
        )

    def entries(self) -> Entries:
        image, tensors = self.state.capture()
        digests = [blake3(t.detach().numpy().tobytes()).digest(DIGEST_BYTES) for t in tensors]
        return entries_of(image, digests)

    def named(self) -> dict[str, int]:
        """What differs from a program that was left alone."""
        here, there = self.entries(), Program().entries()
        ours, theirs = unpacked(here.digests), unpacked(there.digests)
        names = [name for name, _ in self.model.named_parameters()]
        return {in_words(here.keys[name], names): name for name in ours if ours[name] != theirs.get(name)}


def test_equal_states_have_equal_entries() -> None:
    assert Program().named() == {}


def test_what_was_changed_is_named() -> None:
    program = Program()
    program.optimizer.param_groups[0]["lr"] = 0.2
    program.optimizer.state[program.model[0].bias]["exp_avg"][0] += 1
    program.counter.values["seen"] = 4
    program.counter.values["history"] = [0.5] * 99 + [0.6]
    with torch.no_grad():
        program.model[0].weight[0, 0] += 1
        program.model[1].running_mean[0] += 1
    named = program.named()
    assert set(named) == {
        "'lr' of parameter group 0 of the optimizer",
        "'exp_avg' of the optimizer for 0.bias",
        "state['counter']['seen']",
        "state['counter']['history']",
        "the parameter 0.weight",
        "the buffer 1.running_mean",
    }
    plain = {text for text, name in named.items() if name & PLAIN}
    assert plain == {text for text in named if "lr" in text or "state[" in text}


def test_what_one_has_and_another_has_not_is_an_entry_like_any_other() -> None:
    program = Program()
    program.counter.values["more"] = None
    assert set(program.named()) == {"state['counter']['more']"}


def test_our_own_extras_are_never_taken_for_plain_values() -> None:
    program = Program()
    own = program.state.extras["outlast.own"]
    assert isinstance(own, Counter)
    own.values["seen"] = 9
    (name,) = program.named().values()
    assert not name & PLAIN


def test_several_optimizers_are_named() -> None:
    key = ("optimizers", ("G", "groups", 1, "lr"))
    assert in_words(key, only_optimizer=False) == "'lr' of parameter group 1 of the optimizer 'G'"


def test_too_many_entries_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "ENTRIES_MOST", 30)
    program = Program()
    assert len(program.entries().keys) <= 30
    program.optimizer.state[program.model[0].bias]["exp_avg"][0] += 1
    (named,) = program.named()
    assert "optimizer" in named
