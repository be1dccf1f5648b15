"""Parameters that are frozen in the middle of a run, and what who comes back is told of it."""

import pytest
import torch
from torch import nn

import outlast
from outlast.errors import LoopError
from outlast.state.training import TrainingState
from outlast.train.assembly import Facts
from outlast.train.freezing import Freezing


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def test_a_parameter_may_be_frozen_and_freed_after_joining() -> None:
    model = two_layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen = []
    with outlast.join(model=model, optimizer=optimizer) as job:
        for step in job.steps(6):
            for _ in step:
                step.backward(model(torch.ones(1, 2)).square().mean())
            before = model[0].weight.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(not torch.equal(before, model[0].weight))
            model[0].requires_grad_(step.number not in (2, 3))
    assert seen == [True, True, False, False, True, True]


def test_one_that_was_frozen_at_join_cannot_be_freed() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        with outlast.join(model=model, optimizer=optimizer) as job:
            for step in job.steps(3):
                for _ in step:
                    step.backward(model(torch.ones(1, 2)).square().mean())
                optimizer.step()
                model[0].requires_grad_(True)

    with pytest.raises(LoopError, match=r"replica 0, step 2: .*was frozen when.*freeze it after that"):
        train()


def test_who_comes_back_has_the_same_ones_frozen() -> None:
    def program(model: nn.Module) -> TrainingState:
        return TrainingState(model, {}, {"facts": Facts(0, 1, None, freezing=Freezing(model))})

    members, back = two_layers(), two_layers()
    theirs, ours = program(members), program(back)
    members[0].requires_grad_(False)
    image, tensors = theirs.capture()
    ours.load(image, tensors)
    assert [p.requires_grad for p in back.parameters()] == [False, False, True, True]
    members[0].requires_grad_(True)
    ours.load(*theirs.capture())
    assert all(p.requires_grad for p in back.parameters())


def test_a_program_that_freezes_something_from_the_beginning_is_another_one() -> None:
    frozen = two_layers()
    frozen[0].requires_grad_(False)
    image, tensors = TrainingState(two_layers(), {}).capture()
    with pytest.raises(outlast.OutlastError, match="frozen on one side"):
        TrainingState(frozen, {}).load(image, tensors)
