"""Schedules that are not handed over are found; those that are, in whatever way, raise no alarm."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

import outlast
from outlast.errors import ConfigError, LoopError

Make = Callable[[Optimizer], LRScheduler]

KINDS: dict[str, Make] = {
    "step": lambda opt: lr_scheduler.StepLR(opt, 5),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 0.9**step),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=10),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt),
    "sequential": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)], [3]
    ),
    "chained": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)], opt
    ),
    "resumed": lambda opt: _resumed(opt),
}


def _resumed(optimizer: Optimizer) -> LRScheduler:
    for group in optimizer.param_groups:
        group["initial_lr"] = 0.1
    return lr_scheduler.StepLR(optimizer, 5, last_epoch=3)


class Trainer:
    """Has its schedule as an attribute, and hands it over in a state dict of its own."""

    def __init__(self, schedule: LRScheduler) -> None:
        self.parts = {"schedules": [schedule]}

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.parts["schedules"][0].state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts["schedules"][0].load_state_dict(state["schedule"])


class SlottedTrainer(Trainer):
    __slots__ = ("parts",)


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 1)


@pytest.fixture
def optimizer(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(job: outlast.Job, model: nn.Module, optimizer: Optimizer, steps: int = 2) -> None:
    with job:
        for step in job.steps(steps):
            for _ in step:
                step.backward(model(torch.ones(1, 2)).square().mean())
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_outside_of_the_state_is_refused_with_the_line_to_add(
    kind: str, model: nn.Module, optimizer: Optimizer
) -> None:
    schedule = KINDS[kind](optimizer)
    with pytest.raises(ConfigError, match=r'state=\{"sched": sched\}') as refusal:
        outlast.join(model=model, optimizer=optimizer)
    assert "'optimizer'" in str(refusal.value) and "unchecked_schedules=True" in str(refusal.value)
    del schedule


def test_it_is_refused_beside_one_that_was_handed_over(model: nn.Module, optimizer: Optimizer) -> None:
    given, forgotten = KINDS["step"](optimizer), KINDS["plateau"](optimizer)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        outlast.join(model=model, optimizer=optimizer, state={"sched": given})
    del forgotten


def test_the_optimizer_is_named(model: nn.Module) -> None:
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name in ("one", "two")}
    schedules = {name: lr_scheduler.StepLR(optimizer, 5) for name, optimizer in optimizers.items()}
    with pytest.raises(ConfigError, match="optimizer 'two'"):
        outlast.join(model=model, optimizer=optimizers, state={"sched": schedules["one"]})


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_handed_over_is_accepted(kind: str, model: nn.Module, optimizer: Optimizer) -> None:
    schedule = KINDS[kind](optimizer)
    train(outlast.join(model=model, optimizer=optimizer, state={"sched": schedule}), model, optimizer)


@pytest.mark.parametrize("trainer", [Trainer, SlottedTrainer])
def test_one_inside_of_something_else_is_accepted(
    trainer: type[Trainer], model: nn.Module, optimizer: Optimizer
) -> None:
    state = {"trainer": trainer(KINDS["step"](optimizer))}
    train(outlast.join(model=model, optimizer=optimizer, state=state), model, optimizer)


def test_no_schedule_no_alarm(model: nn.Module, optimizer: Optimizer) -> None:
    # As a script does that sets the rates itself.
    optimizer.param_groups[0]["initial_lr"] = 0.1
    train(outlast.join(model=model, optimizer=optimizer), model, optimizer)


def test_one_that_is_gone_is_no_danger(model: nn.Module, optimizer: Optimizer) -> None:
    KINDS["step"](optimizer)
    gc.collect()
    train(outlast.join(model=model, optimizer=optimizer), model, optimizer)


def test_the_check_can_be_switched_off(model: nn.Module, optimizer: Optimizer) -> None:
    schedule = KINDS["step"](optimizer)
    train(outlast.join(model=model, optimizer=optimizer, unchecked_schedules=True), model, optimizer)
    del schedule


@pytest.mark.parametrize("kind", ["step", "plateau"])
def test_one_that_is_made_after_joining_is_found_at_the_next_step(
    kind: str, model: nn.Module, optimizer: Optimizer
) -> None:
    job = outlast.join(model=model, optimizer=optimizer)
    schedule = KINDS[kind](optimizer)
    with pytest.raises(LoopError, match=r"replica 0, step 1: .*(StepLR|Plateau).*before outlast\.join"):
        train(job, model, optimizer)
    del schedule
