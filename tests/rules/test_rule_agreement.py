"""Every rule gives what its plain float64 version gives, whatever the sizes, dtypes and weights."""

from collections.abc import Callable
from dataclasses import dataclass

import plain_rules as plain
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from outlast import rules

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
RADIUS, ROUNDS, LIMIT = 0.7, 3, 1.5


@dataclass(frozen=True)
class Case:
    make: Callable[[int], rules.Rule]
    plain: Callable[[Tensor, Tensor, int], Tensor]
    least: Callable[[int], int] = lambda f: 2 * f + 1
    is_clear: Callable[[Tensor, Tensor, int], bool] = lambda x, w, f: True
    """Whether rounding cannot change who is chosen."""


def has_clear_neighbours(x: Tensor, f: int) -> bool:
    """Whether for everybody it is clear who are the n - f nearest."""
    ranked = torch.cdist(x, x).sort(dim=1).values
    gaps = ranked[:, len(x) - f] - ranked[:, len(x) - f - 1] if f else torch.ones(1)
    return bool((gaps > 1e-9 * (1 + ranked.max())).all())


def zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x[0])


CASES = {
    "mean": Case(lambda f: rules.Mean(), lambda x, w, f: plain.mean(x, w)),
    "median": Case(lambda f: rules.Median(), lambda x, w, f: plain.median(x, w)),
    "trimmed_mean": Case(rules.TrimmedMean, plain.trimmed_mean),
    "krum": Case(rules.Krum, plain.krum),
    "multi_krum": Case(rules.MultiKrum, plain.multi_krum),
    "bulyan": Case(rules.Bulyan, plain.bulyan, lambda f: 4 * f + 3),
    "mda": Case(rules.MDA, plain.mda),
    "centred_clipping": Case(
        lambda f: rules.CentredClipping(radius=RADIUS, iterations=ROUNDS),
        lambda x, w, f: plain.centred_clipping(x, w, zeros(x), RADIUS, ROUNDS),
    ),
    "nnm_trimmed_mean": Case(
        lambda f: rules.NNM(f) | rules.TrimmedMean(f),
        lambda x, w, f: plain.trimmed_mean(plain.nnm(x, w, f), w, f),
    ),
    "nnm_krum": Case(
        lambda f: rules.NNM(f) | rules.Krum(f),
        lambda x, w, f: plain.krum(plain.nnm(x, w, f), w, f),
        is_clear=lambda x, w, f: plain.has_one_best(plain.nnm(x, w, f), f),
    ),
    "clip_norms_mean": Case(
        lambda f: rules.ClipNorms(LIMIT) | rules.Mean(),
        lambda x, w, f: plain.mean(plain.clipped(x, LIMIT), w),
    ),
    "clip_norms_multi_krum": Case(
        lambda f: rules.ClipNorms(LIMIT) | rules.MultiKrum(f),
        lambda x, w, f: plain.multi_krum(plain.clipped(x, LIMIT), w, f),
    ),
    "clip_norms_nnm_median": Case(
        lambda f: rules.ClipNorms(LIMIT) | rules.NNM(f) | rules.Median(),
        lambda x, w, f: plain.median(plain.nnm(plain.clipped(x, LIMIT), w, f), w),
        # All that were too long are equally long now, and in one dimension they are the same.
        is_clear=lambda x, w, f: has_clear_neighbours(plain.clipped(x, LIMIT), f),
    ),
}


def agrees(case: Case, rows: Tensor, weights: Tensor, f: int) -> None:
    result = case.make(f)(rows, weights)
    expected = case.plain(rows.double(), weights, f)
    assert result.dtype == rows.dtype and result.shape == rows.shape[1:]
    within = TOLERANCE[rows.dtype] * max(1.0, float(rows.double().abs().max()))
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=within)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_agrees_with_the_plain_rule(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    f = data.draw(st.integers(0, 3), "f")
    n = data.draw(st.integers(case.least(f), case.least(f) + 6), "n")
    d = data.draw(st.sampled_from([1, 2, 7, 64]), "d")
    dtype = data.draw(st.sampled_from(list(TOLERANCE)), "dtype")
    torch.manual_seed(data.draw(st.integers(0, 999), "seed"))
    rows = (
        torch.randn(n, d, dtype=torch.float64) * data.draw(st.sampled_from([1e-6, 1.0, 1e3]), "scale")
    ).to(dtype)
    weights = (
        torch.rand(n, dtype=torch.float64) + 0.5
        if data.draw(st.booleans(), "weighted")
        else torch.ones(n).double()
    )
    assume(case.is_clear(rows.double(), weights, f))
    agrees(case, rows, weights, f)


@pytest.mark.parametrize("name", CASES)
def test_agrees_where_products_are_taken_in_float32(name: str) -> None:
    torch.manual_seed(1)
    rows = torch.randn(11, 70_001)
    agrees(CASES[name], rows, torch.ones(11).double(), 2)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("clip_norms")])
def test_ties_and_duplicates_are_decided_by_number(name: str) -> None:
    torch.manual_seed(2)
    # Small whole numbers: all that is computed from them is exact, so ties are ties.
    for _ in range(10):
        rows = torch.randint(-2, 3, (11, 4)).float()
        rows[5] = rows[2]
        if CASES[name].is_clear(rows.double(), torch.ones(11).double(), 2):
            agrees(CASES[name], rows, torch.ones(11).double(), 2)


def test_geometric_median_agrees_and_is_no_worse_than_any_point_near_it() -> None:
    torch.manual_seed(3)
    for n, d in [(3, 2), (8, 5), (11, 300)]:
        rows, weights = torch.randn(n, d), torch.rand(n, dtype=torch.float64) + 0.5
        result = rules.GeometricMedian(iterations=2000)(rows, weights).double()
        objective = (weights * (rows.double() - result).norm(dim=1)).sum()
        reference = plain.geometric_median(rows.double(), weights)
        assert objective <= (weights * (rows.double() - reference).norm(dim=1)).sum() * (1 + 1e-5)
        if d > 2:
            torch.testing.assert_close(result, reference, rtol=0, atol=1e-5)


def test_geometric_median_of_a_majority_of_equals_is_that() -> None:
    rows = torch.tensor([[1.0, 2.0]] * 3 + [[9.0, 9.0], [-5.0, 0.0]])
    assert torch.equal(rules.GeometricMedian()(rows), rows[0])


def test_centred_clipping_starts_where_it_is_told() -> None:
    torch.manual_seed(4)
    rows, centre = torch.randn(7, 50), torch.randn(50)
    ones = torch.ones(7).double()
    rule = rules.CentredClipping(radius=RADIUS, iterations=2)
    expected = plain.centred_clipping(rows.double(), ones, centre.double(), RADIUS, 2)
    torch.testing.assert_close(rule(rows, centre=centre).double(), expected, rtol=0, atol=1e-5)
    following = rules.Following(rule)
    first = following(rows)
    assert torch.equal(following(rows), rule(rows, centre=first))


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_bucketing_gives_means_of_disjoint_buckets(size: int) -> None:
    torch.manual_seed(5)
    rows, weights = torch.randn(11, 8, dtype=torch.float64), torch.rand(11, dtype=torch.float64) + 0.5
    rule = rules.Bucketing(size, seed=3) | rules.Mean()
    # The weighted mean of weighted means is the weighted mean.
    torch.testing.assert_close(rule(rows, weights), plain.mean(rows, weights))
    draws = {tuple((rules.Bucketing(2) | rules.Median())(rows, step=step).tolist()) for step in range(5)}
    assert len(draws) > 1
    assert torch.equal(rule(rows, weights, step=7), rule(rows, weights, step=7))


@pytest.mark.parametrize("name", [name for name in CASES if name != "bulyan"])
def test_the_order_of_contributions_does_not_matter(name: str) -> None:
    torch.manual_seed(6)
    rows, weights, order = torch.randn(9, 40), torch.rand(9).double() + 0.5, torch.randperm(9)
    rule = CASES[name].make(2)
    torch.testing.assert_close(rule(rows, weights), rule(rows[order], weights[order]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_one_contribution_is_the_result(name: str) -> None:
    if CASES[name].least(0) == 1:
        row = torch.randn(5) / 100
        torch.testing.assert_close(CASES[name].make(0)(row[None]), row)


@pytest.mark.parametrize("name", CASES)
def test_who_has_no_weight_takes_no_part(name: str) -> None:
    torch.manual_seed(7)
    rows = torch.randn(13, 30)
    rule = CASES[name].make(2)
    weights = torch.ones(13)
    weights[[0, 6]] = 0
    poisoned = rows.clone()
    poisoned[[0, 6]] = torch.nan
    expected = rule(rows[weights > 0])
    torch.testing.assert_close(rule(poisoned, weights), expected, rtol=1e-6, atol=1e-7)
