"""Replicas without a network: models, data, and folding done by the book."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from outlast.protocol.tree import Node, fold_order, root
from outlast.train.gradients import Gradients, NodeSum
from outlast.train.layout import Layout
from outlast.train.sums import largest

Loss = Callable[[nn.Module, int], Tensor]


class Reports:
    """What a replica was told to send, copied at the moment it was told."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.events: list[tuple[Node, int | str]] = []
        self.nodes: dict[Node, NodeSum] = {}
        self._buckets: dict[tuple[Node, int], Tensor] = {}

    def on_bucket(self, part: NodeSum, bucket: int) -> None:
        self.events.append((part.node, bucket))
        self._buckets[part.node, bucket] = self._layout.bucket_views(part.flat)[bucket].clone()

    def on_node(self, whole: NodeSum) -> None:
        assert whole.complete
        self.events.append((whole.node, "whole"))
        self.nodes[whole.node] = whole
        last_told = [self._buckets[whole.node, bucket] for bucket in range(len(self._layout.buckets))]
        assert same_bits(torch.cat(last_told), whole.flat), "a receiver would hold something else"


class Replica:
    """A model with its gradients; computes the shards it is assigned."""

    def __init__(self, model: nn.Module, shard_count: int, *, bucket_bytes: int = 128) -> None:
        self.model = model
        self.layout = Layout(model, bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes // 2)
        self.reports = Reports(self.layout)
        self.gradients = Gradients(
            self.layout, model, shard_count, self.reports.on_bucket, self.reports.on_node
        )

    def start(self, shards: Iterable[int]) -> None:
        self.gradients.start_step()
        self.gradients.assign(shards)

    def compute(self, loss: Loss, samples: Callable[[int], int], at_most: int = 1000) -> None:
        while at_most and (missing := self.gradients.missing()):
            at_most -= 1
            shard = missing[0]
            if samples(shard) == 0:
                self.gradients.empty_shard(shard)
                continue
            self.gradients.open_shard(shard, samples(shard))
            self.gradients.backward(loss(self.model, shard))
            self.gradients.close_shard()


def same_bits(one: Tensor, other: Tensor) -> bool:
    whole = torch.int32 if one.dtype is torch.float32 else torch.int64
    return torch.equal(one.view(whole), other.view(whole))


def folded(sums: Iterable[NodeSum], shard_count: int, layout: Layout) -> NodeSum:
    """The root's sum, from whatever sums there are, in plain steps and in memory of its own."""
    held = {s.node: replace(s, flat=s.flat.clone()) for s in sums}
    for left, right, above in fold_order(held, shard_count):
        a, b = held.pop(left), held.pop(right)
        integers = {
            index: largest(
                a.integers.get(index, b.integers.get(index, b"")),
                b.integers.get(index, a.integers.get(index, b"")),
                layout.integers[index].dtype,
            )
            for index in a.integers.keys() | b.integers.keys()
        }
        held[above] = NodeSum(
            above, a.flat + b.flat, a.weight + b.weight, a.loss + b.loss, a.mask | b.mask, integers, True
        )
    return held[root(shard_count)]
