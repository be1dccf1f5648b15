import dataclasses
import re

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import outlast
from outlast import rules
from outlast.errors import ConfigError


@pytest.mark.parametrize(
    ("rule", "n", "message"),
    [
        (rules.TrimmedMean(2), 4, "TrimmedMean(f=2) needs at least 5 contributions, but there are 4"),
        (rules.Krum(1), 2, "at least 3"),
        (rules.MultiKrum(1, keep=5), 5, "at least 6"),
        (rules.Bulyan(2), 10, "at least 11"),
        (rules.MDA(3), 6, "at least 7"),
        (rules.NNM(3) | rules.Median(), 6, "NNM(f=3) needs at least 7"),
        (rules.Bucketing(2) | rules.TrimmedMean(2), 8, "at least 5 contributions, but there are 4"),
    ],
)
def test_too_few_contributions_are_an_error_that_names_the_numbers(
    rule: rules.Rule, n: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        rule(torch.randn(n, 3))


@pytest.mark.parametrize(
    "rule", [rules.Median(), rules.TrimmedMean(1), rules.Bulyan(1), rules.NNM(1) | rules.Median()]
)
def test_more_contributions_than_can_be_ranked_are_an_error(rule: rules.Rule) -> None:
    with pytest.raises(ConfigError, match="at most 1024 contributions, but there are 1025"):
        rule.tolerates(1025)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rules.TrimmedMean(-1),
        lambda: rules.Krum(1.5),
        lambda: rules.Krum(True),
        lambda: rules.MultiKrum(1, keep=0),
        lambda: rules.MDA(17),
        lambda: rules.Bucketing(0),
        lambda: rules.ClipNorms(0.0),
        lambda: rules.CentredClipping(radius=float("inf")),
        lambda: rules.GeometricMedian(iterations=0),
        lambda: rules.GeometricMedian(smoothing=None),
    ],
)
def test_a_setting_that_cannot_work_is_an_error_at_once(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("updates", "weights"),
    [
        ([], None),
        (torch.randn(0, 3), None),
        (torch.tensor(1.0), None),
        ([torch.randn(3), torch.randn(4)], None),
        ([torch.randn(3), torch.randn(3).double()], None),
        ([{"a": torch.randn(3)}, {"b": torch.randn(3)}], None),
        ([{"a": 1.0}], None),
        (["x"], None),
        (torch.ones(3, 3, dtype=torch.int64), None),
        (torch.randn(3, 3, dtype=torch.complex64), None),
        (torch.randn(3, 3), [1.0, 1.0]),
        (torch.randn(3, 3), [1.0, -1.0, 1.0]),
        (torch.randn(3, 3), [1.0, float("nan"), 1.0]),
        (torch.randn(3, 3), [0.0, 0.0, 0.0]),
        (torch.randn(3, 3), ["1", "1", "1"]),
        (torch.randn(3, 3), [None, None, None]),
        (torch.randn(3, 3, device="meta"), None),
    ],
)
def test_contributions_that_do_not_fit_together_are_an_error(
    updates: object, weights: list[float] | None
) -> None:
    for rule in (rules.Mean(), rules.Median(), rules.Krum(0)):
        with pytest.raises(ConfigError):
            rule(updates, weights)


def test_only_rules_with_a_centre_take_one() -> None:
    with pytest.raises(ConfigError, match="no centre"):
        rules.Median()(torch.randn(3, 3), centre=torch.zeros(3))
    with pytest.raises(ConfigError, match="shapes"):
        rules.CentredClipping()(torch.randn(3, 3), centre=torch.zeros(4))
    with pytest.raises(ConfigError, match="shapes"):
        rules.CentredClipping()(torch.randn(3, 3), centre=[0.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match="shapes"):
        rules.CentredClipping()([{"a": torch.randn(3)}] * 3, centre=torch.zeros(3))
    with pytest.raises(ConfigError, match="not finite"):
        rules.CentredClipping()(torch.randn(3, 3), centre=torch.full((3,), torch.nan))


def test_pre_aggregations_can_be_put_together_in_any_order() -> None:
    one, two, three = rules.NNM(1), rules.ClipNorms(), rules.Bucketing(1)
    assert one | (two | three) | rules.Median() == one | two | three | rules.Median()
    assert (one | two) | (three | one) | rules.Median() == one | two | three | one | rules.Median()
    for nonsense in (5, rules.Median):
        with pytest.raises(TypeError):
            one | nonsense  # type: ignore[operator]
        with pytest.raises(TypeError):
            (one | two) | nonsense  # type: ignore[operator]


def test_shapes_dtypes_and_keys_come_back_as_they_went_in() -> None:
    parameters = torch.nn.BatchNorm2d(4)
    states = []
    for k in range(5):
        state = {key: value.clone() for key, value in parameters.state_dict().items()}
        state["num_batches_tracked"] += [3, 9, 3, 2**40, 5][k]
        state["half"] = torch.full((2, 3), float(k), dtype=torch.float16)
        state["flag"] = torch.tensor([k > 1, k > 2])
        states.append(state)
    for rule in (rules.Median(), rules.Krum(1), rules.NNM(1) | rules.TrimmedMean(1)):
        result = rule(states)
        assert list(result) == list(states[0])
        assert all(result[k].shape == v.shape and result[k].dtype == v.dtype for k, v in states[0].items())
        assert result["num_batches_tracked"] == 5 and result["flag"].tolist() == [True, False]


def test_parameters_and_empty_tensors_can_be_aggregated_and_inputs_stay_what_they_are() -> None:
    updates = [torch.nn.Parameter(torch.randn(3, 2)) for _ in range(5)]
    before = [update.detach().clone() for update in updates]
    for rule in (
        rules.Median(),
        rules.Krum(1),
        rules.GeometricMedian(),
        rules.Bulyan(0),
        rules.NNM(1) | rules.Median(),
    ):
        result = rule(updates)
        assert result.shape == (3, 2) and not result.requires_grad
        assert result.data_ptr() not in [update.data_ptr() for update in updates]
        assert rule([torch.empty(0)] * 5).shape == (0,)
    assert all(torch.equal(a, b) for a, b in zip(updates, before, strict=True))


def test_results_can_go_where_the_last_ones_were() -> None:
    rows, out = torch.randn(7, 3, 4), torch.empty(3, 4)
    for rule in (rules.Median(), rules.Krum(1), rules.NNM(1) | rules.Median(), rules.Mean()):
        assert rule(rows, out=out).data_ptr() == out.data_ptr()
        assert torch.equal(out, rule(rows))
    for wrong in (torch.empty(4, 3), torch.empty(3, 4).double(), torch.empty(4, 3).t()):
        with pytest.raises(ConfigError, match="out has"):
            rules.Median()(rows, out=wrong)


def test_rules_are_values_that_say_what_they_are() -> None:
    rule = rules.ClipNorms(2.0) | rules.NNM(f=1) | rules.TrimmedMean(f=1)
    assert rule == rules.ClipNorms(2.0) | (rules.NNM(f=1) | rules.TrimmedMean(f=1))
    assert str(rule) == "ClipNorms(limit=2.0) | NNM(f=1) | TrimmedMean(f=1)"
    assert hash(rule) == hash(rules.ClipNorms(2.0) | rules.NNM(f=1) | rules.TrimmedMean(f=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        rules.Krum(1).f = 2  # type: ignore[misc]
    assert outlast.rules is rules


def test_nothing_grows_with_the_input_but_the_result() -> None:
    # Whatever a rule allocates beyond its result is a few blocks; a second copy of the rows would show.
    rows = torch.randn(16, 400_000)
    for rule in (
        rules.TrimmedMean(2),
        rules.MultiKrum(2),
        rules.GeometricMedian(),
        rules.NNM(2) | rules.Median(),
    ):
        with rules.eager(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            rule(rows)
        largest = max(abs(event.self_cpu_memory_usage) for event in recorded.events())
        assert largest <= 16 * 65536 * 4 + 1024


def test_a_rule_comes_last() -> None:
    with pytest.raises(ConfigError, match=r"a rule comes last.*NNM\(f=1\) \| rules.TrimmedMean"):
        rules.TrimmedMean(f=1) | rules.NNM(f=1)
    with pytest.raises(ConfigError, match="a rule comes last"):
        rules.Median() | 3
