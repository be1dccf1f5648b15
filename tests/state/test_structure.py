"""A joiner whose program differs is told in what, by name, and keeps its state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from outlast.errors import ConfigError, ProtocolError
from outlast.state.structure import decode_structure
from outlast.state.training import TrainingState


def state(
    model: nn.Module | None = None,
    make: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
    key: str = "main",
    **extras: Any,
) -> TrainingState:
    model = model or nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    return TrainingState(model, {key: make(model.parameters())}, extras)


class Clock:
    def state_dict(self) -> int:
        return 1

    def load_state_dict(self, state: int) -> None: ...


class OtherClock(Clock):
    pass


def frozen(model: nn.Module) -> nn.Module:
    next(model.parameters()).requires_grad_(False)
    return model


def groups(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{"params": [parameter]} for parameter in parameters])


DIFFERENT = {
    "a missing layer": (
        lambda: state(nn.Sequential(nn.Linear(4, 3))),
        r"2 parameters are missing here: 1\.weight, 1\.bias\. 3 buffers are missing here",
    ),
    "an extra layer": (
        lambda: state(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(1, 1))),
        r"2 parameters are only here: 2\.weight, 2\.bias\.",
    ),
    "another shape": (
        lambda: state(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))),
        r"1 parameter has another shape: 0\.weight \(\(3, 4\) there, \(3, 5\) here\)",
    ),
    "another dtype": (
        lambda: state(nn.Sequential(nn.Linear(4, 3).bfloat16(), nn.BatchNorm1d(3))),
        r"2 parameters have another dtype: 0\.weight \(float32 there, bfloat16 here\)",
    ),
    "many names": (
        lambda: state(nn.Sequential(*(nn.Linear(4, 3) for _ in range(9)))),
        r"14 parameters are only here: 2\.weight, 2\.bias, 3\.weight and 11 more",
    ),
    "a frozen weight": (
        lambda: state(frozen(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))),
        r"1 parameter is frozen on one side: 0\.weight \(trained there, frozen here\)",
    ),
    "another optimizer": (lambda: state(make=torch.optim.SGD), "'main' is AdamW there and SGD here"),
    "another name": (
        lambda: state(key="other"),
        "1 optimizer is missing here: main. 1 optimizer is only here: other",
    ),
    "other groups": (lambda: state(make=groups), "has 1 parameter groups there and 4 here"),
    "fewer parameters": (
        lambda: state(make=lambda p: torch.optim.AdamW(list(p)[:2])),
        "group 0: it has 4 parameters .* there and 2",
    ),
    "another order": (
        lambda: state(make=lambda p: torch.optim.AdamW(list(p)[::-1])),
        "in another order",
    ),
    "weight decay": (
        lambda: state(make=lambda p: torch.optim.AdamW(p, weight_decay=0.2)),
        r"'main', group 0: weight_decay is 0\.01 there and 0\.2 here",
    ),
    "betas": (
        lambda: state(make=lambda p: torch.optim.AdamW(p, betas=(0.8, 0.9))),
        r"betas is \(0\.9, 0\.999\) there and \(0\.8, 0\.9\) here",
    ),
    "foreach": (
        lambda: state(make=lambda p: torch.optim.AdamW(p, foreach=True)),
        "foreach is None there and True",
    ),
    "an extra more": (lambda: state(clock=Clock()), "1 entry of `state` is only here: clock"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_said_by_name(name: str) -> None:
    make, words = DIFFERENT[name]
    image, tensors = state().capture()
    joiner = make()
    before = [tensor.clone() for tensor in joiner.capture()[1]]
    with pytest.raises(ConfigError, match=words):
        joiner.check(image)
    with pytest.raises(ConfigError, match="the same script"):
        joiner.load(image, tensors)
    assert all(map(torch.equal, before, joiner.capture()[1]))


def test_extras_of_another_type_or_not_there_are_named() -> None:
    image, _ = state(clock=Clock()).capture()
    with pytest.raises(ConfigError, match="1 entry of `state` is missing here: clock"):
        state().check(image)
    with pytest.raises(ConfigError, match="Entry 'clock' of `state` is a Clock there and a OtherClock here"):
        state(clock=OtherClock()).check(image)


def test_learning_rates_are_loaded_and_not_compared() -> None:
    image, tensors = state(make=lambda p: torch.optim.AdamW(p, lr=0.5)).capture()
    joiner = state(make=lambda p: torch.optim.AdamW(p, lr=0.1))
    joiner.load(image, tensors)
    assert joiner.optimizers["main"].param_groups[0]["lr"] == 0.5


def test_constants_that_a_script_schedules_are_compared_as_they_began() -> None:
    source, joiner = state(), state()
    source.optimizers["main"].param_groups[0]["weight_decay"] = 0.5
    joiner.load(*source.capture())
    assert joiner.optimizers["main"].param_groups[0]["weight_decay"] == 0.5


def test_the_structure_is_the_same_for_the_same_program() -> None:
    one, other = state(clock=Clock()), state(clock=Clock())
    assert one.structure() == other.structure() == one.capture()[0].structure
    assert one.structure() != state().structure()


def test_a_group_that_is_added_later_is_part_of_the_structure() -> None:
    def partly(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(list(parameters)[:2])

    source = state(make=partly)
    source.optimizers["main"].add_param_group({"params": list(source.model.parameters())[2:]})
    with pytest.raises(ConfigError, match="has 2 parameter groups there and 1 here"):
        state(make=partly).check(source.capture()[0])


@pytest.mark.parametrize(
    "noise", [b"", b"\xc0", b"\x80", b"\x91" * 99999, b"\x81\xa4type\xb1outlast-structure"]
)
def test_a_malformed_structure_is_a_protocol_error(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_structure(noise)
