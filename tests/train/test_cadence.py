"""When to save: what users may say, the rule of Young and Daly, its bounds, and trying again."""

import math
from typing import Any

import pytest

from outlast.errors import ConfigError
from outlast.train.cadence import ASSUMED_FAILURE_EVERY_S, LEAST_S, MOST_PAUSE_S, MOST_S, Cadence


def after_a_save(every: Any = "auto", *, cost_s: float, now: float = 0.0) -> Cadence:
    cadence = Cadence(every, 0.0)
    cadence.decided(1)
    cadence.ended(now, committed=True, held_s=cost_s, worked_s=0.0)
    return cadence


@pytest.mark.parametrize(("every", "seconds"), [("90s", 90), ("10m", 600), ("2min", 120), ("1.5h", 5400)])
def test_durations(every: Any, seconds: float) -> None:
    cadence = Cadence(every, 100.0)
    assert not cadence.wants(1, 100.0 + seconds - 0.01) and cadence.wants(1, 100.0 + seconds)


@pytest.mark.parametrize(
    "every",
    [
        0,
        -3,
        True,
        None,
        "",
        "5",
        "fast",
        "10x",
        "-5s",
        "s",
        "infs",
        "nans",
        math.inf,
        math.nan,
        0.0,
        [5],
        "autos",
    ],
)
def test_what_is_no_frequency_is_refused_with_examples(every: Any) -> None:
    with pytest.raises(ConfigError, match="every=500"):
        Cadence(every, 0.0)


def test_every_so_many_steps_whatever_the_time() -> None:
    cadence = Cadence(5, 0.0)
    assert [step for step in range(1, 12) if cadence.wants(step, 1e9)] == [5, 6, 7, 8, 9, 10, 11], (
        "until it is done"
    )
    cadence.decided(5)
    assert not cadence.wants(9, 1e9) and cadence.wants(10, 0.0)
    cadence.decided(13)
    assert not cadence.wants(14, 0.0) and cadence.wants(15, 0.0), "multiples stay multiples"


def test_the_rule_of_young_and_daly() -> None:
    cadence = after_a_save(cost_s=0.1)
    assert cadence.interval_s(0.0) == pytest.approx(math.sqrt(2 * 0.1 * ASSUMED_FAILURE_EVERY_S))
    cadence.failed_over()
    cadence.failed_over()
    cadence.failed_over()
    assert cadence.interval_s(0.0) == pytest.approx(math.sqrt(2 * 0.1 * ASSUMED_FAILURE_EVERY_S / 4))


def test_bounds() -> None:
    assert Cadence("auto", 0.0).interval_s(0.0) == LEAST_S, "the first save shows what one costs"
    assert after_a_save(cost_s=1e-9).interval_s(0.0) == LEAST_S
    assert after_a_save(cost_s=1e6).interval_s(0.0) == MOST_S
    many = after_a_save(cost_s=5.0)
    for _ in range(1000):
        many.failed_over()
    assert many.interval_s(0.0) == 500.0, "no more than a hundredth of the time"


def test_the_newest_costs_count_most() -> None:
    cadence = after_a_save(cost_s=4.0)
    for _ in range(20):
        cadence.ended(0.0, committed=True, held_s=1.0, worked_s=0.0)
    assert cadence.interval_s(0.0) == pytest.approx(math.sqrt(2 * ASSUMED_FAILURE_EVERY_S), rel=0.01)


@pytest.mark.parametrize("every", [5, "10m", "auto"])
def test_a_save_that_failed_is_due_at_once_and_then_less_and_less_often(every: Any) -> None:
    cadence = after_a_save(every, cost_s=0.1)
    pauses = []
    now = 1000.0
    for _ in range(16):
        cadence.decided(6)
        cadence.ended(now, committed=False, held_s=0.1, worked_s=0.1)
        tried = (0.0, *(0.5 * 2**n for n in range(10)), MOST_PAUSE_S)
        again = next(pause_s for pause_s in tried if cadence.wants(6, now + pause_s))
        pauses.append(again)
        now += again
    assert pauses[0] == 0.0 and pauses == sorted(pauses) and pauses[-1] == MOST_PAUSE_S
    cadence.decided(6)
    cadence.ended(now, committed=True, held_s=0.1, worked_s=0.1)
    assert not cadence.wants(7, now)
