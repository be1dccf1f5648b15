"""Second opinions on real tensors: what is left out, who is blamed, and what bits come of it."""

import pytest
import torch
from court_members import LAYOUT, Compute, Members, gradient, honest
from shard_work import same_bits

from outlast import rules
from outlast.mesh.round import Round
from outlast.protocol.step_words import Trial
from outlast.protocol.tree import Node
from outlast.train.records import Record
from outlast.train.sums import NodeSum

RULES = [None, rules.TrimmedMean(f=1), rules.NNM(f=1) | rules.TrimmedMean(f=1)]
ASSIGNMENTS = (
    [0] * 7,
    [0, 1, 0, 1, 1, 0, 1],
    [0, 0, 0, 0, 1, 1, 1],
    [2, 2, 0, 0, 1, 1, 1],
    [0, 1, 2, 3, 4, 5, 6],
)
FIRST_ONLY = [Trial.FIRST]
ALL = [Trial.FIRST, Trial.HEARING, Trial.FINAL]


def spoilt(shard: int, value: float = float("nan"), only: int | None = None) -> Compute:
    """What is computed for this shard is not sane: by everybody, or by one replica only."""

    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        if node.lo == shard and only in (None, replica):
            found.flat[LAYOUT.size // 3] *= value
        return found

    return compute


def agreed(records: list[Record]) -> Record:
    for record in records[1:]:
        assert same_bits(record.vector, records[0].vector)
        assert record.note == records[0].note
    return records[0]


@pytest.mark.parametrize("shards", ASSIGNMENTS, ids=str)
def test_where_all_is_well_the_first_trial_is_all_there_is(shards: list[int]) -> None:
    members = Members(shards)
    record = agreed(members.step())
    assert members.trials == FIRST_ONLY
    assert record.note.left_out == ()
    assert 0 < record.note.norm < 100
    assert same_bits(record.vector, agreed(Members([0] * 7).step()).vector)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shards", ASSIGNMENTS, ids=str)
def test_bad_data_is_left_out_shard_by_shard_whoever_holds_it(
    shards: list[int], rule: rules.Rule | None
) -> None:
    members = Members(shards, spoilt(4), rule=rule)
    record = agreed(members.step())
    assert members.trials == ALL
    assert members.verdict is not None and not members.verdict.blamed
    assert record.note.left_out == (4,)
    assert record.vector.isfinite().all()
    alone = agreed(Members([0] * 7, spoilt(4), rule=rule).step())
    assert same_bits(record.vector, alone.vector)
    assert (record.note.weight, record.note.loss) == (alone.note.weight, alone.note.loss)


def test_what_is_left_of_a_mean_is_the_mean_of_the_others() -> None:
    record = agreed(Members([0, 1, 0, 1, 1, 0, 1], spoilt(4)).step())
    others = [gradient(shard) for shard in range(7) if shard != 4]
    assert record.note.weight == sum(one.weight for one in others)
    torch.testing.assert_close(record.vector, torch.stack([one.flat for one in others]).sum(0))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shards", ASSIGNMENTS[1:], ids=str)
def test_who_alone_computes_nan_is_blamed(shards: list[int], rule: rules.Rule | None) -> None:
    members = Members(shards, spoilt(4, only=shards[4]), rule=rule)
    assert members.step() == []
    assert members.verdict is not None
    [charge] = members.verdict.charges(members.view, 1)
    assert (charge.replica, charge.view, charge.step) == (shards[4], 3, 1)


def test_who_is_alone_takes_its_second_version_if_that_is_sane() -> None:
    sick = [True]

    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        if sick and node.lo == 2:
            found.flat[5] = sick.clear() or torch.inf
        return found

    members = Members([0] * 7, compute)
    record = agreed(members.step())
    assert members.trials == ALL
    assert record.note.left_out == ()
    assert same_bits(record.vector, agreed(Members([0] * 7).step()).vector)


def with_history(members: Members) -> Members:
    for step in range(1, 10):
        members.step(step)
    return members


def test_what_is_absurd_is_known_by_the_history_of_the_run() -> None:
    wild = [False]

    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        if wild[0] and node.lo == 3 and replica == 1:
            found.flat *= 1e6
        return found

    members = with_history(Members([0, 0, 1, 1, 2, 2, 2], compute))
    wild[0] = True
    assert members.step(10) == []
    assert members.verdict is not None and [one.replica for one in members.verdict.blamed] == [1]


def test_at_first_only_what_is_not_finite_is_absurd() -> None:
    members = Members([0, 0, 1, 1, 2, 2, 2], spoilt(3, 1e9, only=1))
    agreed(members.step())
    assert members.trials == FIRST_ONLY


def test_where_most_contributions_grow_the_run_has_changed() -> None:
    grown = [1.0]

    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        found.flat *= grown[0]
        return found

    members = with_history(Members([0, 0, 1, 1, 2, 2, 2], compute))
    grown[0] = 1e6
    agreed(members.step(10))
    assert members.trials == FIRST_ONLY


def test_if_nothing_is_sane_nothing_changes() -> None:
    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        found.flat[0] = torch.nan
        return found

    record = agreed(Members([0, 0, 1, 1, 2, 2, 2], compute).step())
    assert (record.note.weight, record.mask, record.note.left_out) == (0.0, 0, tuple(range(7)))
    assert not record.vector.any()


def test_a_scaler_sees_what_is_not_finite() -> None:
    members = Members([0, 0, 1, 1, 2, 2, 2], spoilt(3), lenient=True)
    record = agreed(members.step())
    assert members.trials == FIRST_ONLY
    assert not record.vector.isfinite().all()
    assert record.note.norm == torch.inf


def test_constant_buffers_may_hold_infinities_but_changed_ones_may_not() -> None:
    entry = LAYOUT.float_entries[0]

    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        found.flat[entry.span.start] = -torch.inf
        if masked:
            found.mask &= ~(1 << LAYOUT.parameter_count)
        return found

    masked = True
    members = Members([0, 0, 1, 1, 2, 2, 2], compute)
    members.step()
    assert members.trials == FIRST_ONLY
    masked = False
    members.step(2)
    assert members.trials == ALL


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shards", ASSIGNMENTS, ids=str)
def test_audits_find_nothing_where_nothing_is(shards: list[int], rule: rules.Rule | None) -> None:
    members = Members(shards, rule=rule, audit=1)
    record = agreed(members.step())
    assert members.trials == [Trial.FIRST, Trial.HEARING]
    assert members.verdict is not None and not members.verdict.undecided
    assert same_bits(record.vector, agreed(Members([0] * 7, rule=rule).step()).vector)


@pytest.mark.parametrize("case", range(20))
def test_a_flipped_bit_in_a_sum_is_found(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ([0, 0, 0, 0, 1, 1, 1], [2, 2, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5, 6])[case % 3]
    rule = RULES[case % 2]
    liar, bit, bucket_of_lie = case % 2, case % 23, case % len(LAYOUT.buckets)
    publish = Round.publish

    def lie(round_: Round, bucket: int) -> None:
        lo, hi = round_.plan.slice_of(liar, bucket)
        if round_.plan.replica == liar and bucket == bucket_of_lie:
            round_.record.view(torch.int32)[lo + case % (hi - lo)] ^= 1 << bit
        publish(round_, bucket)

    monkeypatch.setattr(Round, "publish", lie)
    members = Members(shards, rule=rule, audit=1, seed=case)
    assert members.step() == []
    assert members.verdict is not None
    assert [blame.replica for blame in members.verdict.blamed] == [liar]


@pytest.mark.parametrize("shards", ASSIGNMENTS[3:], ids=str)
def test_a_contribution_that_is_wrong_in_one_bit_is_found_when_it_is_audited(shards: list[int]) -> None:
    def compute(replica: int, node: Node) -> NodeSum:
        found = gradient(node.lo)
        if replica == 1:
            found.flat.view(torch.int32)[7] ^= 1
        return found

    members = Members(shards, compute, audit=1)
    blamed = set()
    for step in range(1, 30):
        if not members.step(step):
            assert members.verdict is not None
            blamed |= {blame.replica for blame in members.verdict.blamed}
            for exchange in members.exchanges.values():
                exchange.adopt(members.view)
    assert blamed == {1}


def test_no_false_alarm(soak: bool) -> None:
    members = Members([2, 2, 0, 0, 1, 1, 1], honest, audit=1)
    for step in range(1, 10_001 if soak else 200):
        assert members.step(step)
        assert members.verdict is not None
        assert not members.verdict.blamed and not members.verdict.undecided
