"""Rules in training: each shard has one voice, and nobody can tell who computed it."""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shard_work import same_bits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import outlast
from outlast import rules
from outlast.errors import ConfigError, ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, NodeNote, PartNote
from outlast.protocol.seams import Said
from outlast.protocol.tree import leaf
from outlast.protocol.views import Member, View
from outlast.train.centre import Centre
from outlast.train.exchange import Exchange
from outlast.train.flats import FlatPool
from outlast.train.layout import Layout
from outlast.train.records import Record
from outlast.train.ruling import Ruling
from outlast.train.sums import NodeSum, from_bytes, raw_bytes

SHARDS = 7


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(60, 90)
        self.norm = nn.BatchNorm1d(90)
        self.last = nn.Linear(90, 40)


LAYOUT = Layout(Net(), bucket_bytes=8192, first_bucket_bytes=4096)


def contributions(layout: Layout = LAYOUT, seed: int = 0) -> list[NodeSum]:
    """One per shard; the last is empty."""
    generator = torch.Generator().manual_seed(seed)
    everything = (1 << len(layout.entries)) - 1
    given = []
    for shard in range(SHARDS):
        weight = float((3, 5, 1, 7, 3, 11, 0)[shard])
        flat = torch.randn(layout.size, generator=generator) * weight
        steps = {0: raw_bytes(torch.tensor(shard + 1))}
        given.append(NodeSum(leaf(shard), flat, weight, weight * shard, everything, steps if weight else {}))
    return given


def own_rows(given: list[NodeSum]) -> Tensor:
    return torch.stack([node.flat / node.weight for node in given if node.weight])


class Members:
    """The exchanges of all members, which call each other; frames between two of them stay in order."""

    def __init__(self, shards: list[int], rule: rules.Rule, seed: int = 0, layout: Layout = LAYOUT) -> None:
        self._layout = layout
        replicas = sorted(set(shards))
        members = tuple(Member(replica, 1) for replica in replicas)
        slices = list(replicas)
        self._rng = random.Random(seed)
        self._rng.shuffle(slices)
        self.view = View(number=3, members=members, shards=tuple(shards), slices=tuple(slices))
        self._pipes: dict[tuple[int, int], deque[tuple[Header, bytes]]] = {}
        self.rulings = {replica: Ruling(rule, layout) for replica in replicas}
        self.exchanges = {replica: self._exchange(replica) for replica in replicas}

    def _exchange(self, replica: int) -> Exchange:
        def send(to: int, header: Header, memory: memoryview, keep: object, more: bool) -> None:
            self._pipes.setdefault((replica, to), deque()).append((header, bytes(memory)))

        exchange = Exchange(self._layout, replica, _Leaseless(self._layout), self.rulings[replica])
        exchange.ship = send
        exchange.adopt(self.view)
        return exchange

    def settle(self, given: list[NodeSum], step: int = 1) -> list[Record]:
        """The records that all members come to, after steps that anything may come first in."""
        for replica, exchange in self.exchanges.items():
            mine = [node for node in given if self.view.shards[node.node.lo] == replica]
            self._rng.shuffle(mine)
            for node in mine:
                exchange.bucket(step, node, self._rng.randrange(len(self._layout.buckets)))
            exchange.contribute(step, sorted(mine, key=lambda node: node.node), Said())
        self._deliver()
        for sender, exchange in self.exchanges.items():
            for other in self.exchanges.values():
                if other is not exchange:
                    part = exchange.round(step).parts[sender]
                    other.deliver(sender, Header(Kind.PART, view=3, step=step), part)
        self._survey(step)
        for exchange in self.exchanges.values():
            exchange.conclude(step)
        self._deliver()
        records = {replica: exchange.record(step) for replica, exchange in self.exchanges.items()}
        for replica, record in records.items():
            centre = self.rulings[replica].centre
            if centre is not None:
                centre.follow(record)
        return list(records.values())

    def _survey(self, step: int) -> None:
        surveying = {replica: one for replica, one in self.exchanges.items() if one.surveys}
        for exchange in surveying.values():
            exchange.survey(step)
        for sender, exchange in surveying.items():
            for other in self.exchanges.values():
                if other is not exchange:
                    survey = exchange.round(step).surveys[sender]
                    other.deliver(sender, Header(Kind.SURVEY, view=3, step=step), survey)

    def _deliver(self) -> None:
        while full := [way for way, pipe in self._pipes.items() if pipe]:
            sender, to = self._rng.choice(full)
            header, payload = self._pipes[sender, to].popleft()
            slot = self.exchanges[to].destination(Member(sender, 1), header)
            assert slot is not None
            slot[:] = payload
            self.exchanges[to].deliver(sender, header, slot)


class _Leaseless(FlatPool):
    """The test keeps the vectors."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.size, layout.dtype)

    def lease(self, flat: Tensor) -> Any:
        return flat


ASSIGNMENTS = ([0] * SHARDS, [0, 1, 0, 1, 1, 0, 1], [2, 2, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("rule", [rules.TrimmedMean(f=1), rules.Median()], ids=str)
def test_every_assignment_comes_to_the_same_bits(rule: rules.Rule) -> None:
    given = contributions()
    expected = rule(own_rows(given))
    for seed, shards in enumerate(ASSIGNMENTS):
        for record in Members(shards, rule, seed).settle(given):
            assert same_bits(record.vector, expected)
            assert record.note.weight == 1.0
            assert record.note.mean_loss == pytest.approx(2.5)
            assert from_bytes(record.note.integers[0], torch.int64).item() == 3


GEOMETRIC = [
    rules.Krum(f=1),
    rules.MultiKrum(f=1),
    rules.GeometricMedian(),
    rules.MDA(f=1),
    rules.Bulyan(f=0),
    rules.NNM(f=1) | rules.TrimmedMean(f=1),
    rules.Bucketing(size=2) | rules.Median(),
    rules.ClipNorms() | rules.Median(),
]


@pytest.mark.parametrize("rule", GEOMETRIC, ids=str)
def test_every_assignment_comes_to_the_same_bits_by_distances_too(rule: rules.Rule) -> None:
    given = contributions()
    rows, buffers = own_rows(given), LAYOUT.buckets[-1].start
    expected = rule(rows[:, :buffers], [min(node.weight, 3.0) for node in given if node.weight], step=1)
    found = [r for seed, shards in enumerate(ASSIGNMENTS) for r in Members(shards, rule, seed).settle(given)]
    for record in found:
        assert same_bits(record.vector, found[0].vector)
        assert record.note.mean_loss == found[0].note.mean_loss == pytest.approx(2.5)
    torch.testing.assert_close(found[0].vector[:buffers], expected)
    assert same_bits(found[0].vector[buffers:], rules.Median()(rows[:, buffers:]))


@pytest.mark.parametrize("rule", [rules.MultiKrum(f=1), rules.NNM(f=1) | rules.TrimmedMean(f=1)], ids=str)
def test_matrix_products_leave_no_trace_of_who_made_them(rule: rules.Rule) -> None:
    """Rows that are long enough for float32, and nearly equal, where its last digit decides."""
    layout = Layout(nn.Linear(701, 467))
    given = contributions(layout)
    for node in given:
        node.flat.mul_(1e-3).add_(node.weight)
    found = [
        record
        for seed, shards in enumerate(ASSIGNMENTS)
        for record in Members(shards, rule, seed, layout).settle(given)
    ]
    assert all(same_bits(record.vector, found[0].vector) for record in found)


CENTRED = [
    rules.CentredClipping(),
    rules.CentredClipping(radius=30.0, iterations=3),
    rules.ClipNorms() | rules.CentredClipping(),
]


@pytest.mark.parametrize("rule", CENTRED, ids=str)
def test_every_assignment_starts_from_the_last_result(rule: rules.Rule) -> None:
    first, second = contributions(), contributions(seed=1)
    buffers, weights = LAYOUT.buckets[-1].start, [min(node.weight, 3.0) for node in first if node.weight]
    centre = rule(own_rows(first)[:, :buffers], weights)
    expected = rule(own_rows(second)[:, :buffers], weights, centre=centre)
    assert not torch.allclose(expected, rule(own_rows(second)[:, :buffers], weights))
    found = []
    for seed, shards in enumerate(ASSIGNMENTS):
        members = Members(shards, rule, seed)
        members.settle(first)
        found += members.settle(second, step=2)
    assert all(same_bits(record.vector, found[0].vector) for record in found)
    torch.testing.assert_close(found[0].vector[:buffers], expected)


def test_who_is_given_the_centre_comes_to_the_same_bits() -> None:
    old, new = (Members(ASSIGNMENTS[1], CENTRED[0]) for _ in range(2))
    old.settle(contributions())
    for replica, ruling in new.rulings.items():
        given = old.rulings[replica].centre
        assert ruling.centre is not None and given is not None
        ruling.centre.load(given.state())
    later = contributions(seed=1)
    for one, other in zip(old.settle(later, step=2), new.settle(later, step=2), strict=True):
        assert same_bits(one.vector, other.vector)


def test_an_update_that_is_not_finite_is_no_point_to_start_from() -> None:
    members = Members(ASSIGNMENTS[1], CENTRED[0])
    members.settle(contributions())
    mad = contributions()
    for node in mad[:4]:
        node.flat.fill_(float("nan"))
    assert members.settle(mad, step=2)[0].vector[: LAYOUT.buckets[-1].start].isnan().all()
    undisturbed = Members(ASSIGNMENTS[1], CENTRED[0])
    undisturbed.settle(contributions())
    later = contributions(seed=1)
    assert same_bits(members.settle(later, step=3)[0].vector, undisturbed.settle(later, step=3)[0].vector)


def test_a_centre_for_another_model_is_refused() -> None:
    centre = Centre(LAYOUT)
    with pytest.raises(ProtocolError, match="not one for this model"):
        centre.load({"first.weight": torch.zeros(90, 60)})
    names = {entry.name: torch.zeros(1) for entry in LAYOUT.entries[: LAYOUT.parameter_count]}
    with pytest.raises(ProtocolError, match="another shape"):
        centre.load(names)


def test_buffers_have_no_say_in_who_is_believed() -> None:
    given = contributions()
    before, *_ = Members(ASSIGNMENTS[1], rules.Krum(f=1)).settle(given)
    given[4].flat[LAYOUT.buckets[-1].start :] = float("nan")
    after, *_ = Members(ASSIGNMENTS[1], rules.Krum(f=1)).settle(given)
    gradients = LAYOUT.buckets[-1].start
    assert same_bits(before.vector[:gradients], after.vector[:gradients])
    assert after.vector.isfinite().all()


@pytest.mark.parametrize("rule", GEOMETRIC[:4], ids=str)
def test_one_contribution_that_is_not_finite_is_left_out(rule: rules.Rule) -> None:
    given = contributions()
    given[1].flat[5] = float("nan")
    for record in Members(ASSIGNMENTS[2], rule).settle(given):
        assert record.vector.isfinite().all()


@pytest.mark.parametrize("rule", [rules.GeometricMedian(), rules.NNM(f=1) | rules.TrimmedMean(f=1)], ids=str)
def test_nobody_has_the_say_by_a_weight_of_its_own_choice(rule: rules.Rule) -> None:
    given = contributions()
    given[1].flat.copy_(given[1].flat.sign() * 1e30)
    fair, *_ = Members(ASSIGNMENTS[1], rule).settle(given)
    given[1].flat.mul_(1e6)
    given[1].weight *= 1e6
    loud, *_ = Members(ASSIGNMENTS[1], rule).settle(given)
    torch.testing.assert_close(loud.vector, fair.vector)


def test_more_than_the_rule_withstands_make_an_update_that_says_so() -> None:
    given = contributions()
    given[1].flat[5] = given[2].flat[2000] = float("nan")
    for record in Members(ASSIGNMENTS[2], rules.Krum(f=1)).settle(given):
        assert record.vector[: LAYOUT.buckets[-1].start].isnan().all()
        assert record.vector[LAYOUT.buckets[-1].start :].isfinite().all()


def test_a_survey_that_does_not_fit_is_refused() -> None:
    exchange = Members(ASSIGNMENTS[1], rules.Krum(f=1)).exchanges[0]
    with pytest.raises(ProtocolError, match="survey of 8 bytes"):
        exchange.deliver(1, Header(Kind.SURVEY, view=3, step=1), bytes(8))


@pytest.mark.parametrize("rule", [rules.TrimmedMean(f=1), rules.Median()], ids=str)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -1e38])
def test_one_voice_cannot_carry_a_coordinate_away(rule: rules.Rule, poison: float) -> None:
    given = contributions()
    given[2].flat.fill_(poison)
    given[2].loss = poison
    given[2].integers = {0: raw_bytes(torch.tensor(1 << 60)), 5: b"no such buffer"}
    honest = own_rows([node for shard, node in enumerate(given) if shard != 2])
    record, *_ = Members([0, 1, 0, 1, 1, 0, 1], rule).settle(given)
    assert (record.vector >= honest.amin(0)).all() and (record.vector <= honest.amax(0)).all()
    assert 0 <= record.note.mean_loss <= 5
    assert from_bytes(record.note.integers[0], torch.int64).item() <= 6


def test_when_no_shard_has_samples_there_is_no_gradient() -> None:
    given = [NodeSum(leaf(shard), torch.zeros(LAYOUT.size)) for shard in range(SHARDS)]
    for record in Members([0, 1, 0, 1, 1, 0, 1], rules.Median()).settle(given):
        assert record.mask == 0 and not record.vector.any()
        assert record.note.mean_loss != record.note.mean_loss


def note(shard: int, weight: float) -> NodeNote:
    return NodeNote(shard, shard + 1, weight, 0.0, b"", {})


@pytest.mark.parametrize(
    "nodes",
    [
        (note(1, 1.0),),
        (note(1, 1.0), note(3, 1.0), note(4, 1.0), note(6, float("nan"))),
        (note(1, 1.0), note(3, -1.0), note(4, 1.0), note(6, 1.0)),
        (note(1, 1.0), note(3, 1.0), note(4, 1.0), note(5, 1.0)),
    ],
)
def test_claims_that_cannot_be_weighed_are_refused(nodes: tuple[NodeNote, ...]) -> None:
    exchange = Members([0, 1, 0, 1, 1, 0, 1], rules.Median()).exchanges[0]
    with pytest.raises(ProtocolError, match="replica 1"):
        exchange.deliver(1, Header(Kind.PART, view=3, step=1), PartNote(nodes=nodes))


# The whole of it, in one process.


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def dataset(length: int = 40) -> TensorDataset:
    x = torch.randn(length, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x.argmax(1) % 3)


def data(length: int = 40, **options: Any) -> outlast.Data:
    return outlast.Data(dataset(length), global_batch=16, shuffle=False, **options)


def gradients(
    model: nn.Module,
    rule: rules.Rule | None,
    loss: Callable[[nn.Module, Tensor, Tensor, int], Tensor],
    shards: int,
) -> list[Tensor | None]:
    """What the first step's gradients are; the loss is told which shard it is for."""
    with outlast.join(model=model, data=data(), shards=shards, rule=rule) as job:
        for step in job.steps(1):
            for number, (x, y) in enumerate(step):
                # What is not sane is computed again, after all others.
                step.backward(loss(model, x, y, number % shards))
            return [parameter.grad for parameter in model.parameters()]
    raise AssertionError


def plain_loss(model: nn.Module, x: Tensor, y: Tensor, shard: int) -> Tensor:
    return functional.cross_entropy(model(x), y)


def test_a_step_has_the_gradient_that_the_rule_gives_for_its_shards() -> None:
    ours = gradients(net(), rules.TrimmedMean(f=1), plain_loss, shards=5)
    updates = []
    x, y = dataset().tensors
    for part in torch.arange(16).tensor_split(5):
        model = net()
        plain_loss(model, x[part], y[part], 0).backward()
        updates.append({name: p.grad for name, p in model.named_parameters()})
    expected = rules.TrimmedMean(f=1)(updates)
    for mine, theirs in zip(ours, expected.values(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_shard_gone_mad_does_not_reach_the_model() -> None:
    def mad(model: nn.Module, x: Tensor, y: Tensor, shard: int) -> Tensor:
        return plain_loss(model, x, y, shard) * (float("nan") if shard == 3 else 1.0)

    for rule in (None, rules.TrimmedMean(f=1), rules.Krum(f=1)):
        for grad in gradients(net(), rule, mad, shards=5):
            assert grad is not None and grad.isfinite().all()


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 3)
        self.sometimes = nn.Linear(6, 3, bias=False)
        self.never = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_a_parameter_that_most_shards_do_not_use_has_a_gradient_of_zeros() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor, shard: int) -> Tensor:
        assert isinstance(model, TwoHeads)
        return functional.cross_entropy(model.sometimes(x) + model(x) if shard == 0 else model(x), y)

    _, _, sometimes, never = gradients(TwoHeads(), rules.Median(), loss, shards=4)
    assert sometimes is not None and not sometimes.any()
    assert never is None


def test_wrong_rules_are_refused_when_joining() -> None:
    def join(rule: Any, shards: int = 4, **options: Any) -> None:
        outlast.join(model=net(), data=data(**options), shards=shards, rule=rule)

    with pytest.raises(ConfigError, match=r"TrimmedMean\(f=2\) and 4 shards .* at least 5"):
        join(rules.TrimmedMean(f=2))
    with pytest.raises(ConfigError, match="needs a rule after it"):
        join(rules.NNM(f=1))
    with pytest.raises(ConfigError, match="is a str"):
        join("median")
    with pytest.raises(ConfigError, match="Median is a class"):
        join(rules.Median)
    with pytest.raises(ConfigError, match="last batch of a pass has 2 samples"):
        join(rules.TrimmedMean(f=1), length=34)
    join(rules.TrimmedMean(f=1), length=34, drop_last=True)
    join(rules.Mean())


@pytest.mark.parametrize("rule", [rules.TrimmedMean(f=1), rules.Krum(f=1)], ids=str)
def test_where_too_few_shards_have_a_weight_the_step_changes_nothing(
    rule: rules.Rule, caplog: pytest.LogCaptureFixture
) -> None:
    model = net()
    with outlast.join(model=model, data=data(), shards=4, rule=rule) as job:
        for step in job.steps(2):
            for x, y in step:
                weight = 0.0 if step.number == 1 and step._shard > 1 else 1.0
                step.backward(functional.cross_entropy(model(x), y), weight=weight)
            changed = any(parameter.grad is not None for parameter in model.parameters())
            assert changed == (step.number == 2)
    assert f"step 1 changes nothing: only 2 of its 4 shards have a weight, and {rule} needs" in caplog.text


def test_a_run_with_another_rule_is_refused_by_name() -> None:
    parts = [
        outlast.join(model=net(), shards=4, rule=rule)._parts.facts
        for rule in (rules.TrimmedMean(f=1), rules.Median(), None)
    ]
    with pytest.raises(ConfigError, match=r"TrimmedMean\(f=1\), and this replica's script Median\(\)"):
        parts[1].load_state_dict(parts[0].state_dict())
    with pytest.raises(ConfigError, match="rule"):
        parts[0].load_state_dict(parts[2].state_dict())
    parts[2].load_state_dict({key: value for key, value in parts[2].state_dict().items() if key != "rule"})


def trained(steps: int, rule: rules.Rule, checkpoints: Path | None = None) -> Tensor:
    """The parameters after so many steps of the run."""
    outlast.seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with outlast.join(
        model=model, optimizer=optimizer, data=data(), shards=5, rule=rule, checkpoints=checkpoints, every=1
    ) as job:
        for step in job.steps(steps):
            for x, y in step:
                step.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_a_run_that_is_resumed_starts_from_the_last_result(tmp_path: Path) -> None:
    rule = rules.CentredClipping(radius=0.05)
    trained(3, rule, tmp_path / "run")
    assert same_bits(trained(6, rule, tmp_path / "run"), trained(6, rule))


def test_a_run_may_be_resumed_under_a_rule_with_a_centre_and_under_one_without(tmp_path: Path) -> None:
    for total, rule in enumerate((rules.Median(), rules.CentredClipping(), rules.TrimmedMean(f=1)), start=1):
        assert trained(2 * total, rule, tmp_path / "run").isfinite().all()
