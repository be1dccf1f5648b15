import random
from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ConfigError
from outlast.protocol.assignment import Move, assign, moves, slices
from outlast.protocol.tree import Node, cover

Owners = tuple[int, ...]


def nodes_sent(owners: Sequence[int]) -> int:
    """The traffic of an assignment: partial sums, over all members."""
    return sum(len(cover_of(member, owners)) for member in set(owners))


def cover_of(member: int, owners: Sequence[int]) -> tuple[Node, ...]:
    return cover([shard for shard, owner in enumerate(owners) if owner == member], len(owners))


def fair_quotas(shard_count: int, member_count: int) -> list[int]:
    share, larger = divmod(shard_count, member_count)
    return [share + 1] * larger + [share] * (member_count - larger)


def fewest_moves(shard_count: int, members: Sequence[int], previous: Sequence[int]) -> int:
    """The minimum by the formula: the largest holdings meet the largest quotas."""
    owned = sorted((previous.count(member) for member in members), reverse=True)
    return shard_count - sum(map(min, owned, fair_quotas(shard_count, len(members))))


def fair_maps(shard_count: int, members: Sequence[int]) -> list[Owners]:
    """Every fair assignment there is."""
    fair = fair_quotas(shard_count, len(members))
    return [
        owners
        for owners in product(members, repeat=shard_count)
        if sorted(map(owners.count, members), reverse=True) == fair
    ]


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, list[int], Owners]:
    """Shards, the members now, and any map before, fair or not; its owners may or may not be members."""
    members = draw(st.lists(st.integers(0, 20), min_size=1, max_size=12, unique=True))
    previous = draw(st.lists(st.integers(0, 20), min_size=1, max_size=70))
    return len(previous), members, tuple(previous)


def test_at_first_members_hold_contiguous_blocks() -> None:
    assert assign(8, [3, 1], None) == (1, 1, 1, 1, 3, 3, 3, 3)
    assert assign(8, [1, 2, 3], None) == (1, 1, 1, 2, 2, 2, 3, 3)
    assert assign(2, [5, 6, 7], None) == (5, 6)


def test_a_death_moves_the_dead_members_shards_only() -> None:
    before = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4)
    after = assign(16, [1, 3, 4], before)
    assert after == (1, 1, 1, 1, 1, 1, 3, 4, 3, 3, 3, 3, 4, 4, 4, 4)
    assert moves(before, after) == (Move(4, 2, 1), Move(5, 2, 1), Move(6, 2, 3), Move(7, 2, 4))


def test_a_replacement_gets_back_the_very_subtree() -> None:
    without_two = (1, 1, 1, 1, 1, 1, 3, 4, 3, 3, 3, 3, 4, 4, 4, 4)
    after = assign(16, [1, 3, 4, 5], without_two)
    assert after == (1, 1, 1, 1, 5, 5, 5, 5, 3, 3, 3, 3, 4, 4, 4, 4)


def test_a_free_subtree_goes_to_the_holder_of_its_sibling() -> None:
    # Members 2 and 3 have room for two shards each; only 3 can make a larger subtree of 4 and 5.
    before = (1, 1, 2, 2, 9, 9, 3, 3, 9, 9, 1, 1)
    assert assign(12, [1, 2, 3], before) == (1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1)


def test_who_gives_up_shards_keeps_whole_subtrees() -> None:
    assert assign(8, [1, 2], (1, 1, 1, 1, 1, 1, 1, 1)) == (1, 1, 1, 1, 2, 2, 2, 2)
    # Member 1 holds (0,4), (4,6) and 6; it may keep five.
    assert assign(10, [1, 2], (1, 1, 1, 1, 1, 1, 1, 2, 2, 2)) == (1, 1, 1, 1, 2, 2, 1, 2, 2, 2)


def test_a_dead_members_subtree_is_handed_on_whole() -> None:
    before = (1, 1, 1, 1, 2, 2, 2, 2)
    assert assign(8, [1, 7], before) == (1, 1, 1, 1, 7, 7, 7, 7)


def test_where_nobody_is_left_the_layout_is_fresh() -> None:
    assert assign(4, [7, 8], (1, 2, 1, 2)) == assign(4, [7, 8], None)


def test_nothing_changes_while_nobody_comes_or_goes() -> None:
    before = (1, 2, 1, 3, 2, 3, 3)
    assert assign(7, [3, 2, 1], before) == before


@given(changes())
def test_every_member_gets_its_fair_share(change: tuple[int, list[int], Owners]) -> None:
    shard_count, members, previous = change
    for owners in (assign(shard_count, members, previous), assign(shard_count, members, None)):
        counts = Counter(owners)
        assert counts.keys() <= set(members)
        assert len(owners) == shard_count
        assert sorted((counts[member] for member in members), reverse=True) == fair_quotas(
            shard_count, len(members)
        )


@given(changes(), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(
    change: tuple[int, list[int], Owners], rng: random.Random
) -> None:
    shard_count, members, previous = change
    shuffled = rng.sample(members, len(members))
    assert assign(shard_count, members, previous) == assign(shard_count, tuple(shuffled), list(previous))
    assert assign(shard_count, members, None) == assign(shard_count, shuffled, None)


@given(changes())
def test_no_shard_moves_that_fairness_does_not_force_to(change: tuple[int, list[int], Owners]) -> None:
    shard_count, members, previous = change
    after = assign(shard_count, members, previous)
    assert len(moves(previous, after)) == fewest_moves(shard_count, members, previous)


def test_the_fewest_moves_are_those_of_an_exhaustive_search() -> None:
    for shard_count, members in ((1, [1, 2]), (3, [1, 2]), (4, [1, 2, 3]), (5, [1, 2]), (6, [2, 3])):
        fair = fair_maps(shard_count, members)
        for previous in product([1, 2, 3], repeat=shard_count):
            fewest = min(len(moves(previous, owners)) for owners in fair)
            assert len(moves(previous, assign(shard_count, members, previous))) == fewest


@given(changes())
def test_a_survivor_loses_shards_only_down_to_its_share(change: tuple[int, list[int], Owners]) -> None:
    shard_count, members, previous = change
    after = assign(shard_count, members, previous)
    losers = {move.source for move in moves(previous, after)}.intersection(members)
    for loser in losers:
        assert previous.count(loser) > after.count(loser)
        assert loser not in {move.target for move in moves(previous, after)}


@given(changes())
def test_a_change_adds_few_nodes_per_member_that_gives_or_takes(
    change: tuple[int, list[int], Owners],
) -> None:
    shard_count, members, previous = change
    after = assign(shard_count, members, previous)
    moved = moves(previous, after)
    affected = {move.source for move in moved}.intersection(members) | {move.target for move in moved}
    if not set(previous).isdisjoint(members):
        # One more for the right edge of the tree, where a node's size need not be a power of two.
        bound = nodes_sent(previous) + (len(affected) + 1) * shard_count.bit_length()
        assert nodes_sent(after) <= bound


@given(st.integers(2, 12), st.integers(0, 4), st.data())
def test_death_and_replacement_leave_no_trace(member_count: int, height: int, data: st.DataObject) -> None:
    shard_count = member_count << height
    before = assign(shard_count, range(member_count), None)
    dead = data.draw(st.integers(0, member_count - 1))
    survivors = [member for member in range(member_count) if member != dead]
    replaced = tuple(99 if owner == dead else owner for owner in before)
    assert assign(shard_count, [*survivors, 99], before) == replaced
    # With a view in between, blocks may have changed hands, but they are whole again.
    between = assign(shard_count, survivors, before)
    assert nodes_sent(assign(shard_count, [*survivors, 99], between)) <= nodes_sent(before)


@pytest.mark.parametrize(("shard_count", "most"), [(32, 16), (64, 16), (100, 20), (256, 64)])
def test_pairs_of_deaths_and_replacements_do_not_scatter_the_shards(shard_count: int, most: int) -> None:
    rng = random.Random(7)
    members = list(range(most))
    owners = assign(shard_count, members, None)
    fresh = nodes_sent(owners)
    for first_id in range(most, most + 200, 2):
        for dead in rng.sample(members, 2):
            members.remove(dead)
            owners = assign(shard_count, members, owners)
        for joiner in (first_id, first_id + 1):
            members.append(joiner)
            owners = assign(shard_count, members, owners)
        assert nodes_sent(owners) <= 1.35 * fresh


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shard_count", "most"), [(16, 8), (64, 16), (100, 20), (256, 64), (250, 12)])
def test_a_long_random_drift_stays_within_three_times_a_fresh_layout(
    shard_count: int, most: int, seed: int
) -> None:
    rng = random.Random(seed)
    members = list(range(most // 2))
    owners = assign(shard_count, members, None)
    sent = fresh = 0
    for joiner in range(most, most + 250):
        if len(members) > most // 2 and (len(members) == most or rng.random() < 0.5):
            members.remove(rng.choice(members))
        else:
            members.append(joiner)
        before, owners = owners, assign(shard_count, members, owners)
        assert len(moves(before, owners)) == fewest_moves(shard_count, members, before)
        sent += nodes_sent(owners)
        fresh += nodes_sent(assign(shard_count, members, None))
    assert sent <= 3 * fresh


def test_thousands_of_shards_over_hundreds_of_members() -> None:
    one = assign(4096, [1], None)
    many = assign(4096, range(1, 513), one)
    assert nodes_sent(many) == 512
    assert nodes_sent(assign(4096, range(1, 257), many)) == 512
    assert assign(4096, [1], many) == one


def test_moves_names_what_changed() -> None:
    assert moves((1, 1, 2), (1, 3, 1)) == (Move(1, 1, 3), Move(2, 2, 1))
    assert moves((1, 1), (1, 1)) == ()


def test_slices_start_in_ascending_order() -> None:
    assert slices([3, 1, 2], None) == (1, 2, 3)


def test_a_joiner_takes_the_dead_members_slice() -> None:
    assert slices([1, 3, 7], (1, 2, 3)) == (1, 7, 3)


def test_a_joiner_without_a_vacancy_comes_last() -> None:
    assert slices([1, 2, 9, 8], (2, 1)) == (2, 1, 8, 9)


def test_a_member_whose_slice_is_gone_fills_the_gap() -> None:
    assert slices([2, 3, 4], (1, 2, 3, 4)) == (4, 2, 3)
    assert slices([3, 4, 5], (1, 2, 3, 4)) == (4, 5, 3)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
)
def test_as_many_slices_as_possible_stay_where_they_are(members: list[int], previous: list[int]) -> None:
    def stay(order: Sequence[int]) -> int:
        return sum(now == before for now, before in zip(order, previous, strict=False))

    order = slices(members, previous)
    assert sorted(order) == sorted(members)
    assert order == slices(sorted(members), tuple(previous))
    assert stay(order) == max(map(stay, permutations(members)))


@pytest.mark.parametrize("shard_count", [0, -1])
def test_without_shards_there_is_nothing_to_assign(shard_count: int) -> None:
    with pytest.raises(ConfigError, match=f"shards = {shard_count}: .* from 1 up"):
        assign(shard_count, [1], None)


def test_somebody_has_to_be_there() -> None:
    with pytest.raises(ConfigError, match=r"members = \[\]: .* at least one member"):
        assign(4, [], None)
    with pytest.raises(ConfigError, match=r"members = \[\]"):
        slices([], None)


def test_each_member_is_named_once() -> None:
    for members in ([1, 2, 2], [2, 1, 2]):
        with pytest.raises(ConfigError, match=r"ids \[2\] occur more than once; name each replica once"):
            assign(4, members, None)
        with pytest.raises(ConfigError, match="occur more than once"):
            slices(members, None)
    with pytest.raises(ConfigError, match="occur more than once"):
        slices([1], [1, 1])


def test_the_number_of_shards_never_changes() -> None:
    with pytest.raises(ConfigError, match=r"has 3 shards and shards = 4: .* previous=None"):
        assign(4, [1], (1, 1, 1))
    with pytest.raises(ConfigError, match="of 2 and of 3 shards cannot be compared"):
        moves((1, 1), (1, 1, 1))
