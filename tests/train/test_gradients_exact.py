"""The bits of a step don't depend on who computed what, nor on who died in the middle."""

import copy
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_work import Replica, folded, same_bits
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from outlast.protocol.tree import leaf
from outlast.train.gradients import NodeSum
from outlast.train.layout import Layout

torch.set_num_threads(1)


class Model(nn.Module):
    """Something of everything: normalisation, tied, frozen, unused and sometimes used parameters, a layer
    whose gradient comes in two parts, and both kinds of buffers."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.first = nn.Linear(5, 5)
        self.twice = nn.Linear(5, 5).to(dtype)
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.first.weight
        self.sometimes = nn.Linear(5, 5)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.last = nn.Linear(5, 1)
        self.register_buffer("constant", torch.tensor([float("-inf"), 1.0]))

    def forward(self, x: Tensor, extra: bool) -> Tensor:
        x = torch.relu(self.first(self.norm(x)))
        for _ in range(2):
            x = checkpoint(self._twice, x, use_reentrant=True)
        x = self.frozen(self.tied(x))
        if extra:
            x = self.sometimes(x)
        return self.last(x)

    def _twice(self, x: Tensor) -> Tensor:
        return torch.tanh(self.twice(x.to(self.twice.weight.dtype)).float())


class Task:
    """Shards of different sizes, a few of them empty, that depend on nothing but the seed and the step."""

    def __init__(self, seed: int, shard_count: int, step: int) -> None:
        rng = random.Random(f"{seed}/{step}")
        self._sizes = [rng.choice([0, 2, 3, 5]) if shard else 3 for shard in range(shard_count)]
        generator = torch.Generator().manual_seed(rng.getrandbits(32))
        self._x = [torch.randn(size, 5, generator=generator) for size in self._sizes]
        self._extra = [rng.random() < 0.4 for _ in range(shard_count)]

    def samples(self, shard: int) -> int:
        return self._sizes[shard]

    def loss(self, model: nn.Module, shard: int) -> Tensor:
        return model(self._x[shard], self._extra[shard]).square().mean()


def assert_same(one: NodeSum, other: NodeSum) -> None:
    assert same_bits(one.flat, other.flat)
    assert (one.weight, one.loss, one.mask) == (other.weight, other.loss, other.mask)
    assert one.integers == other.integers


def apply(replica: Replica, total: NodeSum) -> None:
    replica.gradients.take(total.flat, total.weight, total.mask, total.integers)
    with torch.no_grad():
        for parameter in replica.model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def keeper(grads: list[Tensor]) -> Callable[[Tensor], None]:
    def keep(parameter: Tensor) -> None:
        assert parameter.grad is not None
        grads.append(parameter.grad.float())
        parameter.grad = None

    return keep


def by_the_book(model: nn.Module, layout: Layout, task: Task, shard_count: int) -> NodeSum:
    """Each shard on a fresh copy of the model with nothing but torch, all summed in the end."""
    sums = []
    for shard in range(shard_count):
        mine = copy.deepcopy(model)
        weight = float(task.samples(shard))
        parts: dict[int, list[Tensor]] = {}
        named = dict(mine.named_parameters())
        for index, entry in enumerate(layout.entries[: layout.parameter_count]):
            named[entry.name].register_post_accumulate_grad_hook(keeper(parts.setdefault(index, [])))
        result = NodeSum(leaf(shard), torch.zeros(layout.size), weight, complete=True)
        if weight:
            loss = task.loss(mine, shard)
            loss.backward()
            result.loss = weight * loss.item()
            views = layout.views(result.flat)
            for index, grads in parts.items():
                if not grads:
                    continue
                views[index].copy_(grads[0] * weight)
                for grad in grads[1:]:
                    views[index].add_(grad, alpha=weight)
                result.mask |= 1 << index
            buffers = dict(mine.named_buffers())
            for index, entry in enumerate(layout.float_entries, start=layout.parameter_count):
                views[index].copy_(buffers[entry.name] * weight)
                result.mask |= ("running" in entry.name) << index
            result.integers = {0: int(buffers["norm.num_batches_tracked"]).to_bytes(8, "little")}
        sums.append(result)
    return folded(sums, shard_count, layout)


def partition(rng: random.Random, shards: list[int], members: list[int]) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = {member: [] for member in members}
    for shard in shards:
        parts[rng.choice(members)].append(shard)
    return parts


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_members_that_come_and_go_give_the_bits_of_one_that_does_all(
    shard_count: int, member_count: int, seed: int
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = Model(rng.choice([torch.float32, torch.bfloat16]))
    lone = Replica(copy.deepcopy(model), shard_count)
    replicas = {member: Replica(copy.deepcopy(model), shard_count) for member in range(member_count)}
    everything = range(shard_count)
    for step in range(3):
        task = Task(seed, shard_count, step)
        expected = by_the_book(lone.model, lone.layout, task, shard_count)
        lone.start(everything)
        lone.compute(task.loss, task.samples)
        (total,) = lone.gradients.nodes()
        assert_same(total, expected)
        apply(lone, expected)

        parts = partition(rng, list(everything), list(replicas))
        for member, replica in replicas.items():
            replica.start(parts[member])
            replica.compute(task.loss, task.samples, at_most=rng.choice([1, 2, 1000]))
        for _ in range(rng.choice([0, 1, 2])):
            # Shards move, and some of those who had begun to compute them die.
            if len(replicas) > 1 and rng.random() < 0.5:
                del replicas[rng.choice(list(replicas))]
            gone = [shard for member in parts.keys() - replicas.keys() for shard in parts[member]]
            moved = [shard for shard in everything if rng.random() < 0.3]
            kept = {member: [s for s in parts[member] if s not in moved] for member in replicas}
            again = partition(rng, sorted({*gone, *moved}), list(replicas))
            parts = {member: sorted(kept[member] + again[member]) for member in replicas}
            for member, replica in replicas.items():
                replica.gradients.assign(parts[member])
                replica.compute(task.loss, task.samples, at_most=rng.choice([1, 1000]))
        for replica in replicas.values():
            replica.compute(task.loss, task.samples)
            assert not replica.gradients.missing()
        total = folded(
            [s for replica in replicas.values() for s in replica.gradients.nodes()],
            shard_count,
            lone.layout,
        )
        assert_same(total, expected)
        for replica in replicas.values():
            apply(replica, total)
            for (name, ours), theirs in zip(
                replica.model.state_dict().items(), lone.model.state_dict().values(), strict=True
            ):
                assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("explicit", [False, True])
def test_shards_of_unequal_size_give_the_gradient_of_the_undivided_batch(explicit: bool) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    tokens = [1, 7, 3, 12, 2, 5]
    x, y = torch.randn(sum(tokens), 6), torch.randint(3, (sum(tokens),))
    xs, ys = x.split(tokens), y.split(tokens)
    replica = Replica(copy.deepcopy(model), len(tokens))
    replica.start(range(len(tokens)))
    for shard in replica.gradients.missing():
        replica.gradients.open_shard(shard, 1 if explicit else tokens[shard])
        loss = nn.functional.cross_entropy(replica.model(xs[shard]), ys[shard])
        replica.gradients.backward(loss, float(tokens[shard]) if explicit else None)
        replica.gradients.close_shard()
    (total,) = replica.gradients.nodes()
    replica.gradients.take(total.flat, total.weight, total.mask, total.integers)
    whole = nn.functional.cross_entropy(model(x), y)
    whole.backward()
    assert total.weight == sum(tokens)
    assert total.loss / total.weight == pytest.approx(whole.item(), abs=1e-6)
    for ours, theirs in zip(replica.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)
