"""A job of one process, which is what `python train.py` and a notebook have: the same loop, alone."""

import copy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import outlast
from leaks import nothing_new
from outlast.errors import LoopError
from outlast.state.digest import state_digest
from outlast.train.audit import merge_ledgers


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def dataset(length: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(length, 6, generator=generator)
    return TensorDataset(x, x.argmax(1) % 3)


def train(
    model: nn.Module,
    *,
    steps: int = 5,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    data: outlast.Data | None = None,
    **options: Any,
) -> tuple[str, list[float]]:
    """The hash of the result, and the losses."""
    loss = loss or (lambda model, x, y: functional.cross_entropy(model(x), y))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Not Adam, whose epsilon of 1e-8 is zero in float16.
    optimizer = torch.optim.SGD(trained, lr=1e-2, momentum=0.9, weight_decay=0.01)
    losses = []
    data = data or outlast.Data(dataset(), global_batch=16)
    with outlast.join(model=model, optimizer=optimizer, data=data, **options) as job:
        for step in job.steps(steps):
            for x, y in step:
                step.backward(loss(model, x, y))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.loss)
    return state_digest(model, optimizer), losses


def test_training_twice_in_one_process_gives_the_same_and_leaves_nothing_behind() -> None:
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    train(net())
    model = net(dropout=0.3)
    with nothing_new():
        first = train(model)
        assert train(net(dropout=0.3)) == first
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    # An ordinary backward works as ever.
    model(torch.randn(2, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_same_model_and_optimizer_can_join_again() -> None:
    model, data = net(), outlast.Data(dataset(), global_batch=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with outlast.join(model=model, optimizer=optimizer, data=data) as job:
            for step in job.steps(3):
                for x, y in step:
                    step.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
    optimizer.step()
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_job_that_failed_can_be_followed_by_another() -> None:
    model = net()
    with pytest.raises(ZeroDivisionError):
        train(model, loss=lambda *_: 1 / 0)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert train(net())[0] == train(net())[0]


def test_the_number_of_shards_changes_rounding_and_nothing_else() -> None:
    (_, one), (_, five) = train(net()), train(net(), shards=5)
    assert one == pytest.approx(five, rel=1e-5)
    assert train(net(), micro_batch=4) == train(net(), shards=4)


def test_a_job_says_where_it_is() -> None:
    model = net()
    with outlast.join(model=model, data=outlast.Data(dataset(), global_batch=16), shards=2) as job:
        assert (job.replica, job.chief, job.members, job.steps_done) == (0, True, 1, 0)
        for step in job.steps(2):
            assert step.number == job.steps_done + 1
            for x, y in step:
                step.backward(functional.cross_entropy(model(x), y))
            assert step.loss > 0
        with job.aside():
            pass
        assert job.steps_done == 2
        assert list(job.steps(2)) == []
        assert list(job.steps(0)) == []


def test_a_run_may_have_no_steps_at_all() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    train(model, steps=0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_without_data_a_step_yields_the_numbers_of_its_shards() -> None:
    model, seen = net(), []
    with outlast.join(model=model, shards=3) as job:
        for step in job.steps(2):
            for shard in step:
                seen.append((step.number, shard))
                step.backward(model(torch.randn(2, 6)).square().mean())
    assert seen == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def test_the_ledger_lists_every_sample_once_per_pass(tmp_path: Path) -> None:
    train(net(), steps=7, shards=3, ledger=str(tmp_path / "new" / "folder"))
    audit = merge_ledgers((tmp_path / "new" / "folder").iterdir())
    assert audit.ok, audit.describe()
    assert (audit.steps, audit.passes, audit.unlisted_shards) == (7, 2, 0)


class TestWeights:
    """The gradient of the whole is that of the undivided batch, within 1e-6."""

    @staticmethod
    def gradients(model: nn.Module, **options: Any) -> list[Tensor]:
        token_loss = options.pop("token_loss")
        data = options.pop("data")
        with outlast.join(model=model, data=data, **options) as job:
            for step in job.steps(options.pop("steps", 1)):
                for x, y in step:
                    tokens = y >= 0
                    if token_loss:
                        loss = functional.cross_entropy(model(x), y, ignore_index=-1)
                        step.backward(loss, weight=int(tokens.sum()))
                    else:
                        step.backward(functional.cross_entropy(model(x), y))
                last = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return last

    @pytest.mark.parametrize("shards", [2, 3, 5, 8])
    def test_token_counts(self, shards: int) -> None:
        samples = dataset(16)
        x, y = samples.tensors
        # Shards of very unequal numbers of tokens, one of them without any.
        y = torch.where(torch.arange(16) % 7 < 3, y, -1)
        y[:4] = -1
        data = outlast.Data(TensorDataset(x, y), global_batch=16, shuffle=False)
        model = net()
        functional.cross_entropy(model(x), y, ignore_index=-1).backward()
        expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found = self.gradients(net(), data=data, shards=shards, token_loss=True)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("left", [1, 2, 3, 5])
    def test_a_last_batch_smaller_than_the_number_of_shards(self, left: int) -> None:
        samples = dataset(left)
        data = outlast.Data(samples, global_batch=16, shuffle=False)
        model = net()
        functional.cross_entropy(model(samples.tensors[0]), samples.tensors[1]).backward()
        expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found = self.gradients(net(), data=data, shards=6, token_loss=False)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)

    def test_two_losses_of_one_shard_add_up(self) -> None:
        found = []
        for twice in (False, True):
            model = net()
            with outlast.join(model=model, data=outlast.Data(dataset(16), global_batch=16), shards=4) as job:
                for step in job.steps(1):
                    for x, y in step:
                        out = model(x)
                        one, two = functional.cross_entropy(out, y), out.square().mean()
                        if twice:
                            step.backward(one, retain_graph=True)
                            step.backward(two)
                        else:
                            step.backward(one + two)
                    found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


class Odd(nn.Module):
    """Tied, frozen, unused, and of other dtypes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 6, bias=False, dtype=dtype)
        self.tied = nn.Linear(6, 6, bias=False, dtype=dtype)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6, dtype=dtype).requires_grad_(False)
        self.unused = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tied(self.first(x.to(self.first.weight.dtype)).tanh())
        return self.last(self.frozen(hidden).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_odd_parameters_go_through_a_whole_job(dtype: torch.dtype) -> None:
    model = Odd(dtype)
    frozen, unused, first = (p.weight.detach().clone() for p in (model.frozen, model.unused, model.first))
    grads: list[Tensor | None] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y)

    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=1e-2, momentum=0.9, weight_decay=0.01
    )
    with outlast.join(
        model=model, optimizer=optimizer, data=outlast.Data(dataset(), global_batch=16), shards=3
    ) as job:
        for step in job.steps(4):
            for x, y in step:
                step.backward(loss(model, x, y))
            grads = [p.grad for p in (model.unused.weight, model.frozen.weight, model.first.weight)]
            optimizer.step()
    assert grads[0] is None and grads[1] is None
    assert grads[2] is not None and grads[2].dtype is dtype
    assert torch.equal(model.frozen.weight, frozen)
    assert torch.equal(model.unused.weight, unused), "not even decayed: it has no gradient"
    assert not torch.equal(model.first.weight, first)
    assert model.tied.weight is model.first.weight
    assert train(Odd(dtype), shards=3) == train(Odd(dtype), shards=3)


def test_a_parameter_that_only_one_shard_uses_has_that_shards_gradient() -> None:
    model = Odd(torch.float32)
    with outlast.join(model=model, shards=4) as job:
        for step in job.steps(1):
            for shard in step:
                x = torch.ones(1, 6)
                out = model.unused(x).sum() if shard == 2 else model(x).sum()
                step.backward(out)
            assert torch.equal(model.unused.weight.grad, torch.full((6, 6), 0.25))


def test_randomness_belongs_to_the_step_and_the_shard() -> None:
    drawn: dict[tuple[int, int], float] = {}
    for _ in range(2):
        model = net()
        outlast.seed(4)
        with outlast.join(model=model, shards=3) as job:
            for step in job.steps(3):
                for shard in step:
                    number = torch.rand(()).item()
                    assert drawn.setdefault((step.number, shard), number) == number
                    step.backward(model(torch.randn(1, 6)).sum())
    assert len(set(drawn.values())) == 9


def test_steps_know_the_pass_over_the_data_that_they_are_in() -> None:
    model = nn.Linear(2, 1)
    data = outlast.Data(TensorDataset(torch.randn(10, 2)), global_batch=4)
    assert data.steps_per_epoch == 3
    seen = []
    with outlast.join(model=model, data=data, shards=2) as job:
        for step in job.steps(2 * data.steps_per_epoch):
            for (x,) in step:
                step.backward(model(x).mean())
            seen.append((step.number, step.epoch, step.ends_epoch))
    assert seen == [(1, 0, False), (2, 0, False), (3, 0, True), (4, 1, False), (5, 1, False), (6, 1, True)]


def test_without_data_there_are_no_epochs() -> None:
    model = nn.Linear(2, 1)
    with outlast.join(model=model) as job:
        for step in job.steps(1):
            for _ in step:
                step.backward(model(torch.ones(1, 2)).mean())
            with pytest.raises(LoopError, match="replica 0, step 1: epochs are passes over `data`"):
                _ = step.epoch
