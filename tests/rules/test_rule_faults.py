"""What f contributors send does no harm: not NaN, not Inf, not 1e38, and not what was made to fool a rule."""

import itertools

import pytest
import torch

from outlast import rules
from outlast.errors import ConfigError
from outlast.rules import attacks

N, F = 11, 2

BY_COORDINATE = {
    "median": rules.Median(),
    "trimmed_mean": rules.TrimmedMean(F),
    "bulyan": rules.Bulyan(F),
    "krum": rules.Krum(F),
    "multi_krum": rules.MultiKrum(F),
    "mda": rules.MDA(F),
    "nnm_trimmed_mean": rules.NNM(F) | rules.TrimmedMean(F),
    "nnm_krum": rules.NNM(F) | rules.Krum(F),
    "nnm_mean": rules.NNM(F) | rules.MultiKrum(F),
    "bucketing_median": rules.Bucketing(2) | rules.Median(),
}
"""Results are means of honest values, or lie between such."""

BY_RADIUS = {
    "geometric_median": rules.GeometricMedian(),
    "geometric_median_short": rules.GeometricMedian(iterations=3),
    "centred_clipping": rules.CentredClipping(),
    "clip_norms_mean": rules.ClipNorms() | rules.Mean(),
    "clip_norms_nnm": rules.ClipNorms() | rules.NNM(F) | rules.MultiKrum(F),
}
"""Results are no farther out than an honest contribution is."""

VALUES = [float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1e20]


@pytest.mark.parametrize(
    ("d", "dtype"),
    [
        (1, torch.float32),
        (50, torch.float32),
        (50, torch.bfloat16),
        (50, torch.float64),
        (5000, torch.float32),
    ],
)
@pytest.mark.parametrize("name", [*BY_COORDINATE, *BY_RADIUS])
def test_absurd_rows_do_no_harm(name: str, d: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    honest = torch.randn(N - F, d).to(dtype)
    longest = honest.double().norm(dim=1).max()
    places = [(0, 1), (4, N - 1)]
    pairs = itertools.combinations_with_replacement(VALUES, 2) if d < 5000 else itertools.pairwise(VALUES)
    for (first, second), (k, (i, j)) in itertools.product(pairs, enumerate(places)):
        rows = torch.empty(N, d, dtype=dtype)
        rows[[r for r in range(N) if r not in (i, j)]] = honest
        rows[i], rows[j] = first, second
        if k:
            # A single bad value is as bad as a row of them.
            rows[i, 1:], rows[j, :-1] = honest[0, 1:], honest[1, :-1]
        result = (BY_COORDINATE | BY_RADIUS)[name](rows).double()
        assert result.isfinite().all()
        slack = 1.02 if dtype == torch.bfloat16 else 1.0001
        if name in BY_RADIUS:
            assert result.norm() <= slack * longest
        elif name not in ("bucketing_median",):
            low, high = honest.double().amin(0), honest.double().amax(0)
            assert (result >= low - 0.02 * (slack - 1) - 1e-5).all() and (
                result <= high + 1e-5 + 0.02 * (slack - 1)
            ).all()


@pytest.mark.parametrize("name", [*BY_COORDINATE, *BY_RADIUS])
def test_more_bad_ones_than_it_withstands_are_an_error_and_no_result(name: str) -> None:
    rows = torch.randn(N, 20)
    rows[:6] = torch.nan
    with pytest.raises(ConfigError, match="finite"):
        (BY_COORDINATE | BY_RADIUS)[name](rows)


def test_the_mean_believes_everybody() -> None:
    rows = torch.randn(N, 20)
    rows[3, 4] = torch.nan
    result = rules.Mean()(rows)
    assert result[4].isnan() and result.isnan().sum() == 1


def test_faults_found_before_count_among_f() -> None:
    torch.manual_seed(1)
    rows = torch.randn(N, 40)
    weights = torch.ones(N)
    weights[3] = 0
    for rule in (rules.TrimmedMean(F), rules.Krum(F), rules.NNM(F) | rules.TrimmedMean(F)):
        plan = rule.plan(N, rule.survey(rows), weights, faults_found=1)
        poisoned = rows.clone()
        poisoned[3] = torch.nan
        assert rule.needs.gram is False or torch.equal(plan.apply(poisoned), rule(poisoned))
        assert plan.apply(poisoned).isfinite().all()
        with pytest.raises(ConfigError, match="withstands 2"):
            rule.plan(N, rule.survey(rows), weights, faults_found=3)


@pytest.mark.parametrize("name", [*BY_COORDINATE, *BY_RADIUS])
@pytest.mark.parametrize(
    "attack", ["sign_flip", "ipm", "alie", "mimic", "gaussian", "worst_ipm", "worst_alie"]
)
def test_attacks_move_a_rule_less_than_honest_rows_differ(name: str, attack: str) -> None:
    torch.manual_seed(2)
    rule = (BY_COORDINATE | BY_RADIUS)[name]
    truth = torch.randn(200)
    honest = truth + 0.5 * torch.randn(N - F, 200)
    extra: dict[str, object] = {}
    if attack == "gaussian":
        extra = {"generator": torch.Generator().manual_seed(0), "scale": 100.0}
    elif attack.startswith("worst"):
        extra = {"rule": rule, "evaluations": 8}
    rows = torch.cat([honest, getattr(attacks, attack)(honest, F, **extra)])
    spread = (honest - honest.mean(0)).norm(dim=1).max()
    assert (rule(rows) - honest.mean(0)).norm() <= 1.5 * spread
