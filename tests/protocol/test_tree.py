import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ConfigError, ProtocolError
from outlast.protocol.tree import (
    Addition,
    Node,
    children,
    cover,
    fold_order,
    leaf,
    parent,
    partial_sums,
    root,
    sibling,
)

shard_counts = st.integers(1, 70)


def all_nodes(shard_count: int) -> list[Node]:
    """Every node, found from the top by `children` alone."""
    found = [root(shard_count)]
    for node in found:
        found.extend(children(node))
    return found


def maximal_nodes(shards: set[int], node: Node) -> list[Node]:
    """A cover by its definition: descend, and stop where everything below is there."""
    if shards.issuperset(range(node.lo, node.hi)):
        return [node]
    return [found for child in children(node) for found in maximal_nodes(shards, child)]


@st.composite
def subsets(draw: st.DrawFn) -> tuple[int, set[int]]:
    shard_count = draw(shard_counts)
    return shard_count, draw(st.sets(st.integers(0, shard_count - 1)))


@st.composite
def holders(draw: st.DrawFn) -> list[int]:
    """An arbitrary map from shard to one of a few members, fair or not."""
    return draw(st.lists(st.integers(0, 4), min_size=1, max_size=70))


def test_six_shards() -> None:
    assert children(Node(0, 6)) == (Node(0, 4), Node(4, 6))
    assert children(Node(4, 6)) == (Node(4, 5), Node(5, 6))
    assert children(Node(5, 6)) == ()
    assert parent(Node(4, 6), 6) == Node(0, 6)
    assert parent(Node(0, 6), 6) is None
    assert sibling(Node(4, 6), 6) == Node(0, 4)
    assert sibling(Node(0, 6), 6) is None


def test_the_last_shard_of_five_is_the_sibling_of_all_others() -> None:
    assert children(root(5)) == (Node(0, 4), Node(4, 5))
    assert sibling(leaf(4), 5) == Node(0, 4)


def test_cover_sends_whole_subtrees_as_one() -> None:
    assert cover([0, 1, 2, 3], 8) == (Node(0, 4),)
    assert cover([3, 4, 5, 6], 8) == (Node(3, 4), Node(4, 6), Node(6, 7))
    assert cover([1, 2], 8) == (Node(1, 2), Node(2, 3))
    assert cover([4, 5, 6], 7) == (Node(4, 7),)
    assert cover([], 8) == ()


def test_fold_order_adds_siblings_as_soon_as_both_are_there() -> None:
    assert fold_order([Node(4, 6), Node(2, 3), Node(0, 2), Node(3, 4)], 6) == (
        Addition(Node(2, 3), Node(3, 4), Node(2, 4)),
        Addition(Node(0, 2), Node(2, 4), Node(0, 4)),
        Addition(Node(0, 4), Node(4, 6), Node(0, 6)),
    )
    assert fold_order([root(6)], 6) == ()


@given(shard_counts)
def test_the_tree_has_every_shard_as_a_leaf_and_agrees_with_itself(shard_count: int) -> None:
    nodes = all_nodes(shard_count)
    assert sorted(node for node in nodes if node.size == 1) == [leaf(shard) for shard in range(shard_count)]
    assert len(nodes) == len(set(nodes)) == 2 * shard_count - 1
    for node in nodes:
        for child, other in zip(children(node), reversed(children(node)), strict=True):
            assert parent(child, shard_count) == node
            assert sibling(child, shard_count) == other


@given(shard_counts)
def test_the_cover_of_all_shards_is_the_root(shard_count: int) -> None:
    assert cover(range(shard_count), shard_count) == (root(shard_count),)


@given(subsets())
def test_a_cover_is_the_maximal_nodes_and_holds_each_shard_once(case: tuple[int, set[int]]) -> None:
    shard_count, shards = case
    nodes = cover(shards, shard_count)
    assert list(nodes) == maximal_nodes(shards, root(shard_count))
    assert [shard for node in nodes for shard in range(node.lo, node.hi)] == sorted(shards)


@given(holders(), st.randoms(use_true_random=False))
def test_the_sum_has_the_same_bits_whoever_computed_what(owners: list[int], rng: random.Random) -> None:
    shard_count = len(owners)
    values: dict[Node, float] = {
        leaf(shard): rng.uniform(-1, 1) * 10 ** rng.randint(-8, 8) for shard in range(shard_count)
    }

    def straight(node: Node) -> float:
        if node.size == 1:
            return values[node]
        left, right = children(node)
        return straight(left) + straight(right)

    arrived: dict[Node, float] = {}
    for member in set(owners):
        shards = [shard for shard, owner in enumerate(owners) if owner == member]
        sums = {leaf(shard): values[leaf(shard)] for shard in shards}
        for left, right, above in partial_sums(shards, shard_count):
            sums[above] = sums.pop(left) + sums.pop(right)
        assert tuple(sorted(sums)) == cover(shards, shard_count)
        arrived |= sums
    for left, right, above in fold_order(arrived, shard_count):
        arrived[above] = arrived.pop(left) + arrived.pop(right)
    assert arrived == {root(shard_count): straight(root(shard_count))}


@given(shard_counts)
def test_folding_keeps_few_sums_alive(shard_count: int) -> None:
    alive = made = 0
    for left, right, _ in fold_order(map(leaf, range(shard_count)), shard_count):
        made += 1 - (left.size > 1) - (right.size > 1)
        alive = max(alive, made)
    assert alive <= shard_count.bit_length()


@pytest.mark.parametrize("shard_count", [0, -3])
def test_a_step_needs_a_shard(shard_count: int) -> None:
    with pytest.raises(ConfigError, match=f"shards = {shard_count}: .* from 1 up"):
        root(shard_count)
    with pytest.raises(ConfigError):
        cover([], shard_count)


def test_contributions_that_are_not_a_sum_are_refused() -> None:
    with pytest.raises(ProtocolError, match=r"nobody contributed the shards \[2, 5\]"):
        fold_order([Node(0, 2), Node(3, 4), Node(4, 5)], 6)
    with pytest.raises(ProtocolError, match="Shard 1 would be counted twice"):
        fold_order([Node(0, 2), Node(1, 2), Node(2, 4)], 4)
    with pytest.raises(ProtocolError, match=r"\(1, 3\) is not a node"):
        fold_order([Node(0, 1), Node(1, 3), Node(3, 4)], 4)
    with pytest.raises(ProtocolError, match=r"\(4, 8\) is no range of the 6 shards"):
        fold_order([Node(0, 4), Node(4, 8)], 6)
    with pytest.raises(ProtocolError, match="count from 0 to 5"):
        cover([5, 6], 6)
