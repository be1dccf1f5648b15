"""Neighbourhoods that are ranked by their exchanges give what their mixtures would."""

import pytest
import torch
from torch import Tensor

from outlast import rules
from outlast.rules import exchanges
from outlast.rules.exchanges import as_exchanges
from outlast.rules.kernels import Middle

F = 3
NNM = rules.NNM(F) | rules.TrimmedMean(F)


def contributions(n: int = 16, liars: float | None = None) -> Tensor:
    rows = torch.randn(n, 5000, generator=torch.Generator().manual_seed(n))
    if liars is not None:
        rows[:F] = liars * rows[:F].sign()
    return rows


def mixed(rows: Tensor) -> Tensor:
    return NNM.plan(len(rows), NNM.survey(rows)).mix


@pytest.fixture
def _worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "PAYS_ELEMENTS", 1)


@pytest.mark.usefixtures("_worthwhile")
@pytest.mark.parametrize("liars", [None, 0.1, 30.0, 1e8, 1e30, 3e38])
@pytest.mark.parametrize("n", [2 * F + 1, 11, 16])
@pytest.mark.parametrize("last", [rules.TrimmedMean(F), rules.Median()], ids=str)
def test_the_middle_is_that_of_the_mixtures(last: rules.Rule, n: int, liars: float | None) -> None:
    rows, rule = contributions(n, liars), rules.NNM(F) | last
    with rules.eager():
        found = rule(rows)
    mix = mixed(rows)
    torch.testing.assert_close(found.double(), last(mix @ rows.double()), rtol=1e-5, atol=1e-5)
    assert found.abs().max() < 10


@pytest.mark.usefixtures("_worthwhile")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_computed_as_ever(dtype: torch.dtype) -> None:
    rows = contributions().to(dtype)
    with rules.eager():
        found = NNM(rows)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), NNM(rows.double()), rtol=1e-2, atol=1e-2)


def test_no_liar_is_part_of_the_base() -> None:
    rows = contributions(liars=1e30)
    found = as_exchanges(Middle(F, 16 - F), mixed(rows))
    assert found is not None
    kernel, given = found
    assert not set(range(F)) & set(given[: kernel.base])
    assert len(given) == kernel.base + 2 * F * 16


def test_mixtures_of_another_kind_are_made() -> None:
    kernel, rows = Middle(F, 16 - F), contributions()
    assert as_exchanges(kernel, torch.eye(16, dtype=torch.float64)) is None
    weighted = NNM.plan(16, NNM.survey(rows), [1.0 + k for k in range(16)]).mix
    assert as_exchanges(kernel, weighted) is None
    everyone = torch.full((16, 16), 1 / 16, dtype=torch.float64)
    assert as_exchanges(kernel, everyone) is None
    many = contributions(40)
    assert as_exchanges(Middle(F, 37), NNM.plan(40, NNM.survey(many)).mix) is None


def test_what_is_small_is_mixed_as_before() -> None:
    rows = contributions()
    plan = NNM.plan(16, NNM.survey(rows))
    expected = rules.TrimmedMean(F)(plan.mix.float() @ rows)
    assert torch.equal(plan.apply(rows), expected)
