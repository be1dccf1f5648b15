"""What saves cost, and how seldom `auto` then makes them."""

import pytest

from outlast.train.cadence import LEAST_S, SHARE_OF_TIME, Cadence


def after_a_save(held_s: float = 0.0, worked_s: float = 0.0) -> Cadence:
    cadence = Cadence("auto", 0.0)
    for _ in range(1000):
        cadence.failed_over()
    cadence.ended(10.0, committed=True, held_s=held_s, worked_s=worked_s)
    return cadence


def test_a_save_costs_what_the_steps_lost_if_that_is_more_than_was_counted() -> None:
    cadence = after_a_save(held_s=0.01)
    assert cadence.interval_s(10.0) == LEAST_S
    cadence.slowed(0.5)
    assert cadence.interval_s(10.0) == pytest.approx(0.5 / SHARE_OF_TIME)


def test_a_save_costs_what_was_counted_if_the_steps_show_less() -> None:
    cadence = after_a_save(held_s=0.5)
    before_s = cadence.interval_s(10.0)
    cadence.slowed(0.1)
    assert cadence.interval_s(10.0) == before_s


def test_the_cost_of_several_saves_is_averaged_with_the_newest_counting_most() -> None:
    cadence = after_a_save()
    cadence.slowed(1.0)
    cadence.ended(20.0, committed=True, held_s=0.0, worked_s=0.0)
    cadence.slowed(0.5)
    assert cadence.interval_s(20.0) == pytest.approx(0.75 / SHARE_OF_TIME)
