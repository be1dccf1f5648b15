"""Several models and optimizers in one job, and optimizers that want to compute gradients themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import outlast
from outlast.errors import ConfigError, LoopError
from outlast.train.together import one_model


def gan(shards: int, steps: int = 4) -> tuple[nn.Module, nn.Module]:
    """A generator and a discriminator, whose losses are terms of one step."""
    outlast.seed(0)
    torch.manual_seed(0)
    G, D = nn.Linear(2, 3), nn.Linear(3, 1)  # noqa: N806
    optimizers = {"G": torch.optim.Adam(G.parameters()), "D": torch.optim.SGD(D.parameters(), lr=0.1)}
    schedule = torch.optim.lr_scheduler.StepLR(optimizers["G"], 2)
    data = outlast.Data(TensorDataset(torch.randn(24, 3)), global_batch=8)

    def only(module: nn.Module, other: nn.Module, loss: Tensor) -> Tensor:
        """The loss, as far as it depends on this module."""
        gradients = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
        return sum(
            ((g.detach() * p).sum() for g, p in zip(gradients, module.parameters(), strict=True)), loss * 0
        )

    with outlast.join(
        model={"G": G, "D": D}, optimizer=optimizers, data=data, state={"sched": schedule}, shards=shards
    ) as job:
        for step in job.steps(steps):
            for (real,) in step:
                fake = G(torch.randn(len(real), 2))
                step.backward(D(fake.detach()).mean() - D(real).mean())
                step.backward(only(G, D, -D(fake).mean()))
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
    return G, D


def test_several_models_with_an_optimizer_each_train_together() -> None:
    before = nn.Linear(2, 3).state_dict(), nn.Linear(3, 1).state_dict()
    for trained, fresh in zip(gan(shards=2), before, strict=True):
        assert all(value.isfinite().all() for value in trained.state_dict().values())
        assert any(not torch.equal(trained.state_dict()[name], fresh[name]) for name in fresh)
    again = gan(shards=2)
    for one, other in zip(gan(shards=2), again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_their_parameters_have_the_names_of_both() -> None:
    model = one_model({"G": nn.Linear(1, 1), "D": nn.Linear(1, 1)})
    assert [name for name, _ in model.named_parameters()] == ["G.weight", "G.bias", "D.weight", "D.bias"]
    module = nn.Linear(1, 1)
    assert one_model(module) is module


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ({}, "there is nothing to train"),
        ({"G": nn.Linear(1, 1), "D": 3}, r"model\['D'\] is a int"),
        ({"a.b": nn.Linear(1, 1)}, "cannot be one"),
        ([nn.Linear(1, 1)], 'model is a list.*model={"G": G, "D": D}'),
    ],
)
def test_what_is_no_model_is_refused(model: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        outlast.join(model=model)


def test_lbfgs_is_refused_at_join_with_what_to_use_instead() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"is LBFGS.*AdamW or SGD"):
        outlast.join(model=model, optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_that_computes_gradients_is_refused(by_name: bool) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    def train() -> None:
        with outlast.join(model=model, optimizer=optimizer) as job:
            for step in job.steps(2):
                for _ in step:
                    step.backward(model(torch.ones(1, 2)).square().mean())
                optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    with pytest.raises(LoopError, match=r"replica 0, step 1: SGD\.step\(closure\).*step\.backward\(loss\)"):
        train()


def test_a_closure_that_only_tells_the_loss_does_no_harm() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with outlast.join(model=model, optimizer=optimizer) as job:
        for step in job.steps(2):
            for _ in step:
                step.backward(model(torch.ones(1, 2)).square().mean())
            losses.append(optimizer.step(lambda: step.loss))  # type: ignore[arg-type,return-value]  # noqa: B023
            optimizer.zero_grad()
    assert losses[1] < losses[0]
