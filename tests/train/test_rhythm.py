import pytest

from outlast.errors import ConfigError
from outlast.train.rhythm import LEAST_S, MOST_S, SHARE_OF_TIME, Rhythm


def test_by_steps_everybody_thinks_so_and_nobody_looks_at_the_clock() -> None:
    rhythm = Rhythm(10, 0.0)
    assert [step for step in range(1, 25) if rhythm.wants(step, 0.0, chief=False)] == list(range(10, 25))
    rhythm.chosen(12, 0.0)
    assert not rhythm.wants(21, 1e9, chief=True)
    assert rhythm.wants(22, 0.0, chief=True)


def test_after_going_back_the_newest_comparison_may_lie_ahead() -> None:
    rhythm = Rhythm(10, 0.0)
    rhythm.chosen(30, 0.0)
    assert rhythm.wants(21, 0.0, chief=False)


def test_auto_is_half_a_per_cent_of_the_time_and_the_chief_decides() -> None:
    rhythm = Rhythm("auto", 0.0)
    assert rhythm.interval_s == LEAST_S
    rhythm.cost(0.05)
    assert rhythm.interval_s == pytest.approx(0.05 / SHARE_OF_TIME)
    rhythm.chosen(5, 100.0)
    assert not rhythm.wants(6, 109.0, chief=True)
    assert rhythm.wants(6, 110.5, chief=True)
    assert not rhythm.wants(6, 110.5, chief=False)
    rhythm.cost(1e6)
    assert rhythm.interval_s == MOST_S


@pytest.mark.parametrize("every", [0, -1, True, "often", 1.5])
def test_what_is_no_rhythm_is_refused(every: object) -> None:
    with pytest.raises(ConfigError, match="verify = "):
        Rhythm(every, 0.0)  # type: ignore[arg-type]
