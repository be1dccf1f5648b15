"""The exchanges of all members of a view, in one process: a step with all of its trials."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from outlast.protocol.header import Header
from outlast.protocol.hearing import Verdict
from outlast.protocol.kinds import Kind
from outlast.protocol.seams import Said
from outlast.protocol.step_words import Trial
from outlast.protocol.tree import Node, additions_within, leaf
from outlast.protocol.views import Member, View
from outlast.rules import Rule
from outlast.train.exchange import Exchange
from outlast.train.flats import FlatPool
from outlast.train.layout import Layout
from outlast.train.records import Record
from outlast.train.ruling import Ruling
from outlast.train.screening import Screening
from outlast.train.sums import NodeSum, raw_bytes

Compute = Callable[[int, Node], NodeSum]
"""(replica, leaf): what it computes for a shard."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.norm = nn.BatchNorm1d(30)
        self.last = nn.Linear(30, 10)


LAYOUT = Layout(Net(), bucket_bytes=2048, first_bucket_bytes=1024)


def gradient(shard: int, layout: Layout = LAYOUT) -> NodeSum:
    """What everybody computes for a shard, whose weight is its number and one more."""
    generator = torch.Generator().manual_seed(shard)
    weight = float(shard + 1)
    flat = torch.randn(layout.size, generator=generator) * weight
    everything = (1 << len(layout.entries)) - 1
    return NodeSum(leaf(shard), flat, weight, weight * shard, everything, {0: raw_bytes(torch.tensor(shard))})


def honest(_: int, node: Node) -> NodeSum:
    return gradient(node.lo)


class Members:
    def __init__(
        self,
        shards: list[int],
        compute: Compute = honest,
        *,
        rule: Rule | None = None,
        audit: float = 0.0,
        lenient: bool = False,
        seed: int = 0,
    ) -> None:
        self._compute = compute
        self._rng = random.Random(seed)
        replicas = sorted(set(shards))
        slices = list(replicas)
        self._rng.shuffle(slices)
        members = tuple(Member(replica, 1) for replica in replicas)
        self.view = View(number=3, members=members, shards=tuple(shards), slices=tuple(slices))
        self._pipes: dict[tuple[int, int], deque[tuple[Header, bytes]]] = {}
        self.screenings = {replica: Screening(audit=audit, lenient=lenient) for replica in replicas}
        self.exchanges = {replica: self._exchange(replica, rule) for replica in replicas}
        self.trials: list[Trial] = []
        self.verdict: Verdict | None = None

    def _exchange(self, replica: int, rule: Rule | None) -> Exchange:
        def send(to: int, header: Header, memory: memoryview, keep: object, more: bool) -> None:
            self._pipes.setdefault((replica, to), deque()).append((header, bytes(memory)))

        ruling = None if rule is None else Ruling(rule, LAYOUT)
        exchange = Exchange(LAYOUT, replica, _Leaseless(), ruling, self.screenings[replica])
        exchange.ship = send
        exchange.adopt(self.view)
        return exchange

    def step(self, number: int = 1) -> list[Record]:
        """The records that members come to; none if somebody was blamed."""
        self.trials, self.verdict = [], None
        for replica, exchange in self.exchanges.items():
            nodes = [self._node(replica, node) for node in exchange.plan.cover[replica]]
            exchange.contribute(number, nodes, Said())
        again = self._finish(number, Trial.FIRST)
        if again:
            for replica, exchange in self.exchanges.items():
                opinions = [self._compute(replica, node) for node in exchange.court(number).asked]
                exchange.testify(number, opinions)
            again = self._finish(number, Trial.HEARING)
            assert self.verdict is not None
            if self.verdict.blamed:
                return []
        if again:
            self._finish(number, Trial.FINAL)
        records = [exchange.record(number) for exchange in self.exchanges.values()]
        for screening, record in zip(self.screenings.values(), records, strict=True):
            screening.applied(number, record.note, len(self.view.shards))
        return records

    def _node(self, replica: int, node: Node) -> NodeSum:
        """The sum of a member's shards, as it makes it."""
        sums = {leaf(shard): self._compute(replica, leaf(shard)) for shard in range(*node)}
        for left, right, parent in additions_within(node, len(self.view.shards)):
            one, other = sums[left], sums[right]
            sums[parent] = NodeSum(
                parent,
                one.flat + other.flat,
                one.weight + other.weight,
                one.loss + other.loss,
                one.mask | other.mask,
                {0: max(one.integers[0], other.integers[0])},
            )
        return sums[node]

    def _finish(self, step: int, trial: Trial) -> bool:
        """From all parts to the judgement, which has to be the same everywhere."""
        self.trials.append(trial)
        self._deliver()
        self._tell(step, trial, Kind.PART, lambda exchange: exchange.part(step, trial))
        if trial is not Trial.HEARING:
            surveying = [one for one in self.exchanges.values() if one.surveys]
            for exchange in surveying:
                exchange.survey(step)
            if surveying:
                self._tell(step, trial, Kind.SURVEY, lambda one: one.round(step).surveys[one.plan.replica])
        for exchange in self.exchanges.values():
            exchange.conclude(step, trial)
        self._deliver()
        self._tell(step, trial, Kind.SUM, lambda exchange: exchange.sum_note(step, trial))
        if trial is Trial.FINAL:
            return False
        found = [exchange.judge(step, trial, 7) for exchange in self.exchanges.values()]
        assert all(one == found[0] for one in found)
        if isinstance(found[0], Verdict):
            self.verdict = found[0]
            return self.verdict.changes
        return found[0]

    def _tell(self, step: int, trial: Trial, kind: Kind, what: Callable[[Exchange], Any]) -> None:
        for sender, exchange in self.exchanges.items():
            said = what(exchange)
            for other in self.exchanges.values():
                if other is not exchange:
                    other.deliver(sender, Header(kind, view=3, step=step, flags=trial), said)

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

    def __init__(self) -> None:
        super().__init__(LAYOUT.size, LAYOUT.dtype)

    def lease(self, flat: Tensor) -> Any:
        return flat
