"""The sums of shards that one replica holds in a step, along the fixed tree.

Whenever a shard completes a pair of siblings they are added, and so on upwards, until the sum is one of the
nodes of the replica's cover: what it sends. Where shards move in the middle of a step, because somebody died,
every sum that is still part of what the replica must now send is kept, and only the rest is computed.

A sum, once complete, is never written to again: the next shard adds it *into its own vector*. So a sum that
is being sent while the tree grows above it stays what it was, and a shard that is given up half way has
spoilt nothing.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outlast.protocol.tree import Node, cover, leaf, parent, sibling
from outlast.train.flats import FlatPool


@dataclass(slots=True, eq=False)
class NodeSum:
    """The weighted sum of the shards of one node: what a replica contributes to a step."""

    node: Node
    flat: Tensor
    weight: float = 0.0
    loss: float = 0.0
    """The sum of the shards' losses, each times its weight."""
    mask: int = 0
    """The entries that were used (parameters) or changed (buffers) in any of the shards."""
    integers: dict[int, bytes] = field(default_factory=dict)
    """The changed integer buffers by their place in `Layout.integers`: the largest value, per element."""
    complete: bool = False


OnBucket = Callable[[NodeSum, int], None]
"""Called when one bucket of a sum to be sent is there; of the sum, only that part of `flat` is valid yet."""

OnNode = Callable[[NodeSum], None]
"""Called when a sum that is to be sent is complete, after its last bucket."""


class Sums:
    """Which shards this replica is to contribute, which sums it has, and what is missing."""

    def __init__(
        self,
        shard_count: int,
        pool: FlatPool,
        integer_dtypes: Sequence[torch.dtype],
        *,
        apart: bool = False,
    ) -> None:
        """`apart`: every shard is sent by itself, so nothing is ever added."""
        self._shard_count = shard_count
        self._apart = apart
        self._pool = pool
        self._integer_dtypes = integer_dtypes
        self._assigned: tuple[int, ...] = ()
        self._cover: tuple[Node, ...] = ()
        self._complete: dict[Node, NodeSum] = {}
        self._missing: set[int] = set()

    def forget(self) -> None:
        """The step is over: nothing is held, nothing is missing."""
        self._drop(list(self._complete))
        self._missing.clear()

    def assign(self, shards: Iterable[int]) -> None:
        assigned = tuple(shards)
        if assigned != self._assigned:
            self._assigned = assigned
            self._cover = (
                tuple(leaf(shard) for shard in sorted(assigned))
                if self._apart
                else cover(assigned, self._shard_count)
            )
        self._drop([node for node in self._complete if not _lies_within(node, self._cover)])
        self._missing = set(assigned).difference(*(range(*node) for node in self._complete))

    def ask(self, nodes: Iterable[Node]) -> None:
        """Make just these sums, as others would who hold these shards."""
        self._drop(list(self._complete))
        self._cover = tuple(nodes)
        self._assigned = tuple(shard for node in self._cover for shard in range(*node))
        self._missing = set(self._assigned)

    def missing(self) -> list[int]:
        return sorted(self._missing)

    def is_missing(self, shard: int) -> bool:
        return shard in self._missing

    def nodes(self) -> list[NodeSum]:
        return [self._complete[node] for node in self._cover if node in self._complete]

    def is_sent(self, node: Node) -> bool:
        return node in self._cover

    def path(self, shard: int) -> tuple[Node, tuple[NodeSum, ...]]:
        """How far a shard's sum gets, and the siblings that are added on the way, from the leaf upwards."""
        node = leaf(shard)
        siblings: list[NodeSum] = []
        while node not in self._cover:
            beside = sibling(node, self._shard_count)
            above = parent(node, self._shard_count)
            if beside is None or above is None or beside not in self._complete:
                break
            siblings.append(self._complete[beside])
            node = above
        return node, tuple(siblings)

    def settle(self, fresh: NodeSum, shard: int, siblings: Iterable[NodeSum]) -> None:
        """The vector of `fresh` holds the sum of the shard and these siblings; add up the rest, too."""
        # Which operand comes first matters to nobody here: a sum of two floats is the same either way.
        for beside in siblings:
            fresh.weight += beside.weight
            fresh.loss += beside.loss
            fresh.mask |= beside.mask
            self._merge_integers(fresh.integers, beside.integers)
            self._drop([beside.node])
        fresh.complete = True
        self._complete[fresh.node] = fresh
        self._missing.discard(shard)

    def _merge_integers(self, into: dict[int, bytes], other: dict[int, bytes]) -> None:
        for index, theirs in other.items():
            ours = into.get(index, theirs)
            into[index] = ours if ours == theirs else largest(ours, theirs, self._integer_dtypes[index])

    def _drop(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._pool.give_back(self._complete.pop(node).flat)


def _lies_within(node: Node, nodes: Iterable[Node]) -> bool:
    return any(above.lo <= node.lo and node.hi <= above.hi for above in nodes)


def largest(one: bytes, other: bytes, dtype: torch.dtype) -> bytes:
    """Two raw integer buffers, merged: the larger value of each element."""
    return raw_bytes(torch.maximum(from_bytes(one, dtype), from_bytes(other, dtype)))


def raw_bytes(tensor: Tensor) -> bytes:
    # Not by way of numpy, which torch can do without.
    dense = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""


def from_bytes(raw: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
