"""Loops that break the rules: each gets an error that says what, where, and what to do instead."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import outlast
from outlast import rules
from outlast.errors import ConfigError, LoopError

SHARDS = 2


class Bench:
    """A model that trains alone, and a loop with one place to break a rule in."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = outlast.Data(TensorDataset(torch.randn(24, 4)), global_batch=8)
        self.bad_step = 2

    def join(self, **options: Any) -> outlast.Job:
        options = {"model": self.model, "optimizer": self.optimizer, "data": self.data, **options}
        return outlast.join(shards=SHARDS, **options)

    def loss(self, x: Tensor) -> Tensor:
        return self.model(x).square().mean()

    def train(self, in_shard: Callable[[outlast.Step, Tensor], None]) -> None:
        """`in_shard` takes the place of `step.backward` in step 2."""
        with self.join() as job:
            for step in job.steps(4):
                for (x,) in step:
                    if step.number == self.bad_step:
                        in_shard(step, x)
                    else:
                        step.backward(self.loss(x))
                self.optimizer.step()
                self.optimizer.zero_grad()


@pytest.fixture
def bench() -> Bench:
    torch.manual_seed(0)
    return Bench()


def refused(what: str, where: str = "replica 0, step 2, shard 0: ") -> Any:
    return pytest.raises(LoopError, match=f"^{re.escape(where)}.*{what}")


def test_a_loss_that_is_no_scalar(bench: Bench) -> None:
    with refused(r"a tensor of shape \(4, 2\).*\.mean\(\)"):
        bench.train(lambda step, x: step.backward(bench.model(x)))


def test_a_loss_that_is_no_tensor(bench: Bench) -> None:
    with refused("a float"):
        bench.train(lambda step, x: step.backward(bench.loss(x).item()))  # type: ignore[arg-type]


def test_a_loss_that_is_detached(bench: Bench) -> None:
    with refused("does not require grad"):
        bench.train(lambda step, x: step.backward(bench.loss(x).detach()))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e200])
def test_a_weight_that_is_none(bench: Bench, weight: float) -> None:
    with refused("weight = "):
        bench.train(lambda step, x: step.backward(bench.loss(x), weight=weight))


def test_backward_on_the_loss_itself(bench: Bench) -> None:
    with refused(r"its gradient would be lost.*step\.backward\(loss\) instead"):
        bench.train(lambda _, x: bench.loss(x).backward())


def test_a_shard_without_a_backward(bench: Bench) -> None:
    with refused(r"without a loss.*step\.backward\(loss\)"):
        bench.train(lambda *_: None)


def test_step_backward_outside_of_the_shards(bench: Bench) -> None:
    with bench.join() as job, refused("outside of a shard", "replica 0, step 1: "):
        for step in job.steps(1):
            step.backward(bench.loss(torch.ones(1, 4)))


def test_a_break_in_the_loop_over_the_shards(bench: Bench) -> None:
    def train() -> None:
        with bench.join() as job:
            for step in job.steps(4):
                for (x,) in step:
                    step.backward(bench.loss(x))
                    if step.number == 2:
                        break

    with refused("left before its end", "replica 0, step 2"):
        train()


def test_a_break_out_of_both_loops(bench: Bench) -> None:
    def train() -> None:
        with bench.join() as job:
            for step in job.steps(4):
                for (x,) in step:
                    step.backward(bench.loss(x))
                    break
                break

    with refused("left before its end", "replica 0, step 1"):
        train()


def test_the_optimizer_after_a_break(bench: Bench) -> None:
    def train() -> None:
        with bench.join() as job:
            for step in job.steps(4):
                for (x,) in step:
                    step.backward(bench.loss(x))
                    break
                bench.optimizer.step()

    before = bench.model.weight.detach().clone()
    with refused("left before its end", "replica 0, step 1"):
        train()
    assert torch.equal(bench.model.weight, before), "half a gradient was applied"


def test_all_shards_at_once(bench: Bench) -> None:
    def train() -> None:
        with bench.join() as job:
            for step in job.steps(4):
                for (x,) in list(step):
                    step.backward(bench.loss(x))

    with refused("without a loss", "replica 0, step 1, shard 0: "):
        train()


def test_a_step_is_iterated_over_twice(bench: Bench) -> None:
    def train() -> None:
        with bench.join() as job:
            for step in job.steps(4):
                for _ in range(2):
                    for (x,) in step:
                        step.backward(bench.loss(x))

    with refused("only once", "replica 0, step 1"):
        train()


def test_a_step_is_not_iterated_over(bench: Bench) -> None:
    with refused("not iterated over", "replica 0, step 1"), bench.join() as job:
        for _ in job.steps(4):
            pass


def test_the_optimizer_inside_the_loop_over_the_shards(bench: Bench) -> None:
    def in_shard(step: outlast.Step, x: Tensor) -> None:
        step.backward(bench.loss(x))
        bench.optimizer.step()

    with refused(r"SGD\.step\(\) was called inside the loop over the shards"):
        bench.train(in_shard)


def test_the_loss_before_it_is_known(bench: Bench) -> None:
    with refused("step.loss is known after"):
        bench.train(lambda step, _: print(step.loss))


def test_parameters_that_are_added_after_join(bench: Bench) -> None:
    bench.model = nn.Sequential(nn.Linear(4, 2))  # type: ignore[assignment]
    bench.optimizer = torch.optim.SGD(bench.model.parameters(), lr=0.1)

    def train() -> None:
        with bench.join() as job:
            for step in job.steps(10):
                for (x,) in step:
                    step.backward(bench.loss(x))
                if step.number == 2:
                    bench.model.add_module("late", nn.Linear(2, 2))

    with refused(r"late\.weight.*before outlast\.join", "replica 0, step 3: "):
        train()


def test_a_parameter_that_is_thawed_after_join(bench: Bench) -> None:
    bench.model.bias.requires_grad_(False)

    def train() -> None:
        with bench.join() as job:
            for step in job.steps(10):
                for (x,) in step:
                    step.backward(bench.loss(x))
                bench.model.bias.requires_grad_(True)

    with refused("bias was frozen", "replica 0, step 2"):
        train()


def test_an_optimizer_over_parameters_of_another_model(bench: Bench) -> None:
    other = torch.optim.SGD(nn.Linear(4, 2).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="optimizer"):
        bench.join(optimizer=other)


def test_an_optimizer_that_is_none(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"not a torch\.optim\.Optimizer"):
        bench.join(optimizer=bench.model.parameters())


def test_a_model_in_ddp(bench: Bench, tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(bench.model)
        with pytest.raises(ConfigError, match=r"DistributedDataParallel.*module"):
            bench.join(model=wrapped)
    finally:
        torch.distributed.destroy_process_group()


class Shrinking(TensorDataset):
    length = 24

    def __len__(self) -> int:
        return self.length


def test_a_dataset_that_shrinks(bench: Bench) -> None:
    samples = Shrinking(torch.randn(24, 4))
    bench.data = outlast.Data(samples, global_batch=8)

    def in_shard(step: outlast.Step, x: Tensor) -> None:
        step.backward(bench.loss(x))
        samples.length = 20

    with refused("the dataset has 20 samples.* 24", "replica 0, step 2, shard 1: "):
        bench.train(in_shard)


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return {"deep": [self.value]}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["deep"][0]


@pytest.mark.parametrize("value", [object(), lambda: 1, 1j])
def test_state_that_can_not_be_sent_is_refused_by_key_and_type(bench: Bench, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"mine.*deep.*{type(value).__name__}"):
        bench.join(state={"mine": Holder(value)})


def test_state_that_can_not_be_saved(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"mine.*(dict|state_dict)"):
        bench.join(state={"mine": {"a": 1}})


def test_state_under_a_name_of_outlasts_own(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"outlast\.run"):
        bench.join(state={"outlast.run": Holder(1)})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shards": 0}, "shards = 0"),
        ({"shards": -3}, "shards = -3"),
        ({"shards": 2, "micro_batch": 2}, "either shards or micro_batch"),
        ({"micro_batch": 0}, "micro_batch = 0"),
        ({"shards": "4"}, "shards = '4'"),
        ({"shards": 4.0}, "shards = 4.0"),
        ({"micro_batch": True}, "micro_batch = True"),
        ({"state": [1]}, "state is a list"),
        ({"checkpoints": "somewhere", "every": 100.0}, "every = 100.0"),
        ({"micro_batch": 4, "data": None}, "needs data"),
        ({"ledger": "somewhere", "data": None}, "without data"),
        ({"ledger": "/dev/null/ledgers"}, "ledger = '/dev/null/ledgers'"),
        ({"ledger": "/dev/null"}, "ledger = '/dev/null'"),
        ({"rule": rules.Median(), "shards": 1025, "data": None}, "at most 1024"),
        ({"rule": rules.Krum(1), "shards": 1025, "data": None}, "at most 1024"),
        ({"checkpoints": "somewhere", "keep_last": 2.5}, "keep last = 2.5"),
        ({"checkpoints": "somewhere", "keep_last": "3"}, "keep last = '3'"),
        ({"checkpoints": "somewhere", "keep_every": 1.5}, "keep every = 1.5"),
        ({"checkpoints": 5}, "checkpoints = 5"),
        ({"checkpoints": [5]}, r"checkpoints = \[5\]"),
        ({"checkpoints": ["somewhere", "elsewhere/../somewhere"]}, "somewhere is there twice"),
    ],
)
def test_options_that_can_not_work(bench: Bench, options: dict[str, Any], what: str) -> None:
    given = {"model": bench.model, "optimizer": bench.optimizer, "data": bench.data, **options}
    with pytest.raises(ConfigError, match=what):
        outlast.join(**given)


def test_a_negative_number_of_steps(bench: Bench) -> None:
    with bench.join() as job, pytest.raises(ConfigError, match=r"job\.steps\(-1\)"):
        next(job.steps(-1))


def test_a_model_without_anything_to_train() -> None:
    with pytest.raises(ConfigError):
        outlast.join(model=nn.Linear(2, 2).requires_grad_(False))


def test_an_error_in_the_shard_loop_is_the_users_own(bench: Bench) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        bench.train(fail)


def test_a_sample_that_raises_is_named(bench: Bench) -> None:
    class Bad(Shrinking):
        def __getitem__(self, index: int) -> Any:
            if index == 13:
                raise ValueError("this one is broken")
            return super().__getitem__(index)

    bench.data = outlast.Data(Bad(torch.randn(24, 4)), global_batch=8, shuffle=False)
    with pytest.raises(Exception, match="this one is broken"):
        bench.train(lambda step, x: step.backward(bench.loss(x)))


def test_nan_is_not_outlasts_business(bench: Bench) -> None:
    """A loss of NaN makes the step's loss NaN, on all replicas alike; the script decides what to do."""
    with bench.join() as job:
        for step in job.steps(1):
            for (x,) in step:
                step.backward(bench.loss(x) * float("nan"))
            assert step.loss != step.loss


def test_a_job_without_its_with_block(bench: Bench) -> None:
    """Nothing has been started, so the first step would wait for ever."""
    with refused(r"outside of its `with` block.*with outlast\.join", "replica 0: "):
        next(bench.join().steps(4))
