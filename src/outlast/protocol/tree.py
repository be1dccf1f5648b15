r"""The fixed binary tree along which a step's shards are summed.

Float addition is not associative: (a + b) + c and a + (b + c) differ in the last bits. If each member first
summed whatever shards it happens to hold, the gradient would depend on who is alive, and a run that lost a
machine could never give the bits of one that did not. So the places of the brackets are fixed once, by the
number of shards `V` alone, and everybody adds along them.

    V = 6           (0,6)               A node is a half-open range of shards. It splits at the largest
                  /       \             power of two below its size. So the left child is always a perfect
              (0,4)       (4,6)         tree, and only nodes at the right edge have sizes other than powers
             /     \      /    \        of two. Seen from above, the nodes are the aligned blocks of 1, 2,
         (0,2)   (2,4)   4     5        4, … shards, clipped at V.
         /   \   /   \
        0     1 2     3

A member that holds all leaves of a node may add them up by itself and send one partial sum, because everyone
else would have added exactly these in exactly this way. What a member sends is therefore the `cover` of its
shards, and the fewer nodes a cover has, the less travels. Whoever receives the covers adds siblings until the
root is left: `fold_order` lists these additions. Which nodes were available changes only where an addition is
done, never its operands, so the root's bits are the same for every assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from outlast.errors import ConfigError, ProtocolError


class Node(NamedTuple):
    """The shards `lo`, `lo + 1`, … `hi - 1`."""

    lo: int
    hi: int

    @property
    def size(self) -> int:
        return self.hi - self.lo


class Addition(NamedTuple):
    """The sum of `parent` is the sum of `left` plus the sum of `right`, in this order of operands."""

    left: Node
    right: Node
    parent: Node


def root(shard_count: int) -> Node:
    if shard_count < 1:
        raise ConfigError(f"shards = {shard_count}: a step needs at least one shard; use a number from 1 up.")
    return Node(0, shard_count)


def leaf(shard: int) -> Node:
    return Node(shard, shard + 1)


def children(node: Node) -> tuple[Node, ...]:
    """The left and the right half of a node; a leaf has none."""
    if node.size == 1:
        return ()
    middle = node.lo + _power_of_two_from(node.size) // 2
    return Node(node.lo, middle), Node(middle, node.hi)


def parent(node: Node, shard_count: int) -> Node | None:
    """The node that has this one as a child; the root has none."""
    if node == root(shard_count):
        return None
    block = _power_of_two_from(node.size)
    above = node
    # At the right edge, clipping makes several block sizes the same node; only a larger range is a parent.
    while above == node:
        block *= 2
        lo = node.lo // block * block
        above = Node(lo, min(lo + block, shard_count))
    return above


def sibling(node: Node, shard_count: int) -> Node | None:
    """The node whose sum is added to this one's; the root has none."""
    above = parent(node, shard_count)
    if above is None:
        return None
    return Node(node.hi, above.hi) if node.lo == above.lo else Node(above.lo, node.lo)


def cover(shards: Iterable[int], shard_count: int) -> tuple[Node, ...]:
    """The maximal nodes whose leaves are all among `shards`, from left to right: what their holder sends."""
    nodes: list[Node] = []
    for lo, hi in _runs(shards, shard_count):
        while lo < hi:
            node = _largest_node_at(lo, hi, shard_count)
            nodes.append(node)
            lo = node.hi
    return tuple(nodes)


def partial_sums(shards: Iterable[int], shard_count: int) -> tuple[Addition, ...]:
    """The additions by which a holder of `shards` gets from single shards to the sums of its cover."""
    additions, _ = _fold({leaf(shard) for shard in shards}, shard_count)
    return additions


def fold_order(available: Iterable[Node], shard_count: int) -> tuple[Addition, ...]:
    """The additions that lead from the sums of `available` to the sum of the root.

    The nodes must hold every shard exactly once, in any order. Additions come in an order in which each
    operand is there when needed, and a sum is used up soon after it was made, so few are alive at a time.
    """
    additions, sums = _fold(available, shard_count)
    if sums != (root(shard_count),):
        missing = sorted(set(range(shard_count)).difference(*(range(node.lo, node.hi) for node in sums)))
        raise ProtocolError(
            f"The sum of {shard_count} shards cannot be completed: nobody contributed the shards {missing}. "
            "Wait for their owners, or for the next view, before folding."
        )
    return additions


def additions_within(node: Node, shard_count: int) -> tuple[Addition, ...]:
    """The additions that lead from the leaves of a node to its sum."""
    additions, sums = _fold(map(leaf, range(*node)), shard_count)
    assert sums == (node,), f"{tuple(node)} is no node of the tree over {shard_count} shards"
    return additions


def _fold(available: Iterable[Node], shard_count: int) -> tuple[tuple[Addition, ...], tuple[Node, ...]]:
    """Add siblings as far as it goes: the additions made, and the sums left over, from left to right.

    Going from left to right, a node's left neighbour is complete before it, so siblings always meet as the
    two topmost entries of a stack.
    """
    whole = root(shard_count)
    additions: list[Addition] = []
    sums: list[Node] = []
    reached = 0
    for node in sorted(available):
        _check_is_node(node, whole)
        if node.lo < reached:
            raise ProtocolError(
                f"Shard {node.lo} would be counted twice: {tuple(node)} overlaps a node before it. "
                "Take each shard from one contribution only."
            )
        reached = node.hi
        sums.append(node)
        while len(sums) > 1 and sibling(sums[-1], shard_count) == sums[-2]:
            right, left = sums.pop(), sums.pop()
            above = Node(left.lo, right.hi)
            additions.append(Addition(left, right, above))
            sums.append(above)
    return tuple(additions), tuple(sums)


def _check_is_range(node: Node, whole: Node) -> None:
    if not 0 <= node.lo < node.hi <= whole.hi:
        raise ProtocolError(
            f"{tuple(node)} is no range of the {whole.hi} shards of a step: "
            f"shards count from 0 to {whole.hi - 1}, and a range holds at least one."
        )


def _check_is_node(node: Node, whole: Node) -> None:
    _check_is_range(node, whole)
    block = _power_of_two_from(node.size)
    clipped = node.hi == whole.hi
    if node.lo % block or not (node.size == block or clipped):
        raise ProtocolError(
            f"{tuple(node)} is not a node of the tree over {whole.hi} shards; send the nodes of a cover."
        )


def _runs(shards: Iterable[int], shard_count: int) -> Iterator[tuple[int, int]]:
    """The shards as half-open ranges without gaps, from left to right."""
    whole = root(shard_count)
    ordered = sorted(set(shards))
    if ordered:
        _check_is_range(Node(ordered[0], ordered[-1] + 1), whole)
    start = 0
    for end, shard in enumerate(ordered, start=1):
        if end == len(ordered) or ordered[end] != shard + 1:
            yield ordered[start], shard + 1
            start = end


def _largest_node_at(lo: int, hi: int, shard_count: int) -> Node:
    """The largest node that starts at `lo` and ends by `hi`."""
    # The lowest set bit of `lo` is the largest block aligned there; at 0 all blocks are.
    block = lo & -lo or _power_of_two_from(shard_count)
    while min(lo + block, shard_count) > hi:
        block //= 2
    return Node(lo, min(lo + block, shard_count))


def _power_of_two_from(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()
