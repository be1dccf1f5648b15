"""Members who each hold a slice come to what one who holds everything does."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from outlast import rules

N, F, D = 11, 2, 150_000

RULES = {
    "mean": rules.Mean(),
    "median": rules.Median(),
    "trimmed_mean": rules.TrimmedMean(F),
    "geometric_median": rules.GeometricMedian(),
    "krum": rules.Krum(F),
    "multi_krum": rules.MultiKrum(F),
    "bulyan": rules.Bulyan(F),
    "mda": rules.MDA(F),
    "centred_clipping": rules.CentredClipping(radius=50.0),
    "nnm_trimmed_mean": rules.NNM(F) | rules.TrimmedMean(F),
    "bucketing_median": rules.Bucketing(2) | rules.Median(),
    "clip_norms_krum": rules.ClipNorms() | rules.Krum(F),
}


def sliced(rule: rules.Rule, rows: Tensor, cuts: list[int], weights: Tensor, centre: Tensor | None) -> Tensor:
    bounds = [0, *cuts, rows.shape[1]]
    parts = [slice(a, b) for a, b in pairwise(bounds)]
    survey = None
    for part in parts:
        # Each member holds its slice in memory of its own.
        mine = rule.survey([row.clone() for row in rows[:, part]], None if centre is None else centre[part])
        survey = mine if survey is None or mine is None else survey + mine
    plan = rule.plan(len(rows), survey, weights)
    out = torch.empty(rows.shape[1])
    for part in parts:
        plan.apply(list(rows[:, part]), None if centre is None else centre[part], out[part])
    return out


@pytest.mark.parametrize("name", RULES)
def test_slices_give_what_the_whole_gives(name: str) -> None:
    torch.manual_seed(0)
    rule = RULES[name]
    rows = torch.randn(N, D) + 0.3
    rows[4, 7] = torch.nan if name != "mean" else 0.0
    weights = torch.rand(N) + 0.5
    centre = torch.randn(D) if rule.needs.centre else None
    whole = rule(rows, weights, centre=centre)
    assert torch.equal(sliced(rule, rows, [], weights, centre), whole)
    for cuts in ([70_000], [1, 2, 66_000, 149_999]):
        found = sliced(rule, rows, cuts, weights, centre)
        torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-6)
        assert torch.equal(sliced(rule, rows, cuts, weights, centre), found)


@pytest.mark.parametrize("name", RULES)
def test_a_state_dict_is_so_many_slices(name: str) -> None:
    torch.manual_seed(1)
    rule = RULES[name]
    rows = torch.randn(N, 5000)
    dicts = [{"a": row[:1000].view(10, 100), "b": row[1000:].clone()} for row in rows]
    found = rule(dicts)
    expected = sliced(rule, rows, [1000], torch.ones(N), None)
    assert torch.equal(torch.cat([found["a"].reshape(-1), found["b"]]), expected)


@pytest.mark.parametrize("name", RULES)
def test_threads_and_memory_do_not_change_a_bit(name: str) -> None:
    torch.manual_seed(2)
    rows = torch.randn(N, D)
    rows[:, ::5] = torch.where(torch.rand(N, D // 5) < 0.5, 0.0, -0.0)
    expected = RULES[name](rows)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for same in (rows, list(rows.clone().unbind(0)), rows.t().contiguous().t()):
                result = RULES[name](same)
                assert torch.equal(result.view(torch.int32), expected.view(torch.int32))
    finally:
        torch.set_num_threads(before)
