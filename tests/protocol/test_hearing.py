"""Second opinions: who is asked, and what follows from what they say."""

import pytest

from outlast.protocol.hearing import Verdict, audit, call, hear
from outlast.protocol.tree import Node, leaf
from outlast.protocol.views import Member, View

HOLDER = {leaf(0): 0, leaf(1): 1, leaf(2): 2}


def heard(
    members: list[int], versions: list[int], sane: list[bool], *, doubted: bool, exact: bool = True
) -> Verdict:
    """What is said of shard 0, which replica 0 has sent."""
    nodes = [leaf(0)]
    called = call(members, HOLDER, doubted=nodes if doubted else [], audited=nodes)
    verdict = Verdict()
    hear(verdict, leaf(0), called, 0, versions, sane, exact=exact)
    return verdict


def blamed(verdict: Verdict) -> list[int]:
    return [blame.replica for blame in verdict.blamed]


def test_a_doubted_contribution_is_computed_by_another_that_is_not_doubted() -> None:
    called = call([0, 1, 2], HOLDER, doubted=[leaf(0), leaf(1)])
    assert called.witnesses == {leaf(0): (2,), leaf(1): (2,)}
    assert called.of(2) == [leaf(0), leaf(1)]
    assert called.of(0) == []


def test_where_all_are_doubted_the_work_is_spread() -> None:
    called = call([0, 1, 2], HOLDER, doubted=HOLDER)
    assert sorted(witness for (witness,) in called.witnesses.values()) == [0, 1, 2]
    assert all(HOLDER[node] != witness for node, (witness,) in called.witnesses.items())


def test_who_is_alone_asks_itself() -> None:
    assert call([0], HOLDER, doubted=[leaf(0)], owners=[0]).witnesses == {leaf(0): (0,)}
    assert call([0], HOLDER, owners=[0]).auditors == {0: (0,)}


def test_equal_bits_mean_that_nobody_is_at_fault() -> None:
    verdict = heard([0, 1, 2], [0, 0], [False, False], doubted=True)
    assert (verdict.left_out, verdict.blamed, verdict.changes) == ([leaf(0)], [], True)


def test_other_bits_that_are_sane_prove_the_sender_wrong() -> None:
    verdict = heard([0, 1], [0, 1], [False, True], doubted=True)
    assert blamed(verdict) == [0]
    view = View(number=4, members=(Member(0, 3), Member(1, 1)))
    [charge] = verdict.charges(view, 9)
    assert (charge.view, charge.step, charge.life) == (4, 9, (0, 3))
    assert charge.reason == "replica 1 computed shard 0 again, with another result"


def test_where_neither_version_is_sane_nobody_is_blamed() -> None:
    verdict = heard([0, 1], [0, 1], [False, False], doubted=True)
    assert (verdict.left_out, verdict.blamed) == ([leaf(0)], [])


def test_where_machines_may_differ_bits_prove_nothing() -> None:
    verdict = heard([0, 1], [0, 1], [False, True], doubted=True, exact=False)
    assert (verdict.left_out, verdict.blamed) == ([leaf(0)], [])


def test_who_is_alone_takes_the_version_that_is_sane() -> None:
    verdict = heard([0], [0, 1], [False, True], doubted=True)
    assert (verdict.replaced, verdict.blamed, verdict.left_out) == ({leaf(0): 1}, [], [])


@pytest.mark.parametrize(
    ("members", "versions", "odd"),
    [
        ([0, 1, 2], [0, 0, 0], []),
        ([0, 1, 2], [0, 1, 1], [0]),
        ([0, 1, 2], [0, 1, 0], [1]),
        ([0, 1, 2], [0, 0, 2], [2]),
        ([0, 1, 2], [0, 1, 2], []),
        # Of two, the second version of shard 0 is replica 1's, the third replica 0's own.
        ([0, 1], [0, 1, 1], [0]),
        ([0, 1], [0, 1, 0], []),
        ([0, 1], [0, 0, 2], [0]),
        ([0, 1], [0, 1, 2], [0]),
        ([0], [0, 1], []),
    ],
)
def test_an_audit_finds_the_odd_one(members: list[int], versions: list[int], odd: list[int]) -> None:
    verdict = heard(members, versions, [True] * len(versions), doubted=False)
    assert blamed(verdict) == odd
    assert bool(verdict.undecided) == (not odd and len(set(versions)) > 1)
    assert not verdict.left_out


@pytest.mark.parametrize(
    ("held", "reduced", "odd", "again"),
    [
        ("xxx", "xxx", [], False),
        # What replica 0 holds and published is not what the others come to.
        ("yyy", "xxx", [0], False),
        ("yyy", "yxx", [0], False),
        # The auditor 1 is wrong.
        ("xxx", "xyx", [1], False),
        ("xxx", "xyz", [], True),
        # It gave others something else than it holds.
        ("xyy", "xxx", [0], False),
        ("xxy", "xxx", [], True),
        # Of two, only who contradicts itself is blamed.
        ("yy", "xx", [0], False),
        ("xx", "xy", [], True),
        ("xx", "yx", [0], False),
        ("xy", "xx", [], True),
    ],
)
def test_sums_are_audited(held: str, reduced: str, odd: list[int], again: bool) -> None:
    members = list(range(len(held)))
    called = call(members, HOLDER, owners=[0])
    assert called.auditors[0] == (*members[1:], 0)
    verdict = Verdict()
    audit(verdict, 0, called, _said(held), _said(reduced))
    assert (blamed(verdict), verdict.reduce_again) == (odd, again)


def _said(word: str) -> dict[int, bytes]:
    return {replica: letter.encode() for replica, letter in enumerate(word)}


def test_larger_nodes_are_named_as_a_range() -> None:
    called = call([0, 1], {Node(0, 4): 0}, doubted=[Node(0, 4)])
    verdict = Verdict()
    hear(verdict, Node(0, 4), called, 0, [0, 1], [False, True])
    assert "shards 0 to 3" in verdict.blamed[0].reason
