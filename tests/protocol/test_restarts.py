"""Machines fail and are forgiven; programs that fail again and again are not."""

from itertools import pairwise
from typing import Any

import pytest

from outlast.errors import ConfigError
from outlast.protocol.restarts import RestartCount, RestartPolicy

POLICY = RestartPolicy(
    limit=5, limit_unjoined=2, first_delay_s=0.1, longest_delay_s=30.0, healthy_after_s=10.0
)


def short_life(count: RestartCount, joined: bool = True) -> float | None:
    return count.failed(lived_s=1.0, joined=joined, killed_in_progress=False)


def test_a_long_life_is_followed_by_another_at_once_however_often() -> None:
    count = RestartCount(POLICY)
    ends = [count.failed(lived_s=10.0, joined=True, killed_in_progress=False) for _ in range(20)]
    assert ends == [0.0] * 20


def test_a_life_killed_while_making_progress_is_followed_by_another_at_once_however_short() -> None:
    count = RestartCount(POLICY)
    ends = [count.failed(lived_s=0.5, joined=True, killed_in_progress=True) for _ in range(20)]
    assert ends == [0.0] * 20


def test_the_first_short_life_costs_the_first_wait_and_each_further_one_twice_the_wait_before() -> None:
    count = RestartCount(POLICY)
    waits = [short_life(count) for _ in range(4)]
    assert waits[0] == POLICY.first_delay_s
    assert all(later == pytest.approx(2 * earlier) for earlier, later in pairwise(waits))


def test_a_patient_policy_may_go_on_for_ever() -> None:
    count = RestartCount(RestartPolicy(limit=10**6, longest_delay_s=3.0))
    assert [short_life(count) for _ in range(1100)][-1] == 3.0


def test_the_wait_is_bounded() -> None:
    count = RestartCount(RestartPolicy(limit=40, first_delay_s=0.1, longest_delay_s=3.0))
    waits = [short_life(count) for _ in range(39)]
    assert max(wait for wait in waits if wait is not None) == 3.0
    assert waits[-1] == 3.0


def test_it_gives_up_after_the_limit_of_short_lives_in_a_row() -> None:
    count = RestartCount(POLICY)
    ends = [short_life(count) for _ in range(5)]
    assert [end is None for end in ends] == [False, False, False, False, True]


def test_a_healthy_life_starts_the_count_anew() -> None:
    count = RestartCount(POLICY)
    for _ in range(4):
        short_life(count)
    count.failed(lived_s=100.0, joined=True, killed_in_progress=False)
    assert count.tally.short_lives == 0
    assert [short_life(count) is None for _ in range(5)] == [False, False, False, False, True]


def test_a_program_that_never_joins_gets_fewer_tries_each_after_a_wait() -> None:
    count = RestartCount(POLICY)
    first, second = short_life(count, joined=False), short_life(count, joined=False)
    assert first is not None
    assert first > 0.0
    assert second is None


def test_once_a_life_has_joined_the_full_limit_holds_for_good() -> None:
    count = RestartCount(POLICY)
    short_life(count, joined=True)
    ends = [short_life(count, joined=False) for _ in range(4)]
    assert [end is None for end in ends] == [False, False, False, True]


@pytest.mark.parametrize(
    "settings",
    [
        {"limit": 0},
        {"limit_unjoined": 0},
        {"first_delay_s": -0.1},
        {"first_delay_s": 5.0, "longest_delay_s": 1.0},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RestartPolicy(**settings)


def test_a_long_life_that_was_ended_from_outside_is_healthy_even_if_the_program_never_joins() -> None:
    count = RestartCount(POLICY)
    for _ in range(10):
        assert count.failed(lived_s=POLICY.healthy_after_s, joined=False, killed_in_progress=False) == 0.0


def own_failure(
    count: RestartCount, *, lived_s: float, joined: bool = True, further: bool = False
) -> float | None:
    return count.failed(
        lived_s=lived_s, joined=joined, killed_in_progress=False, own_fault=True, went_further=further
    )


@pytest.mark.parametrize("lived_s", [1.0, 1000.0])
def test_failures_of_its_own_making_count_however_long_they_take(lived_s: float) -> None:
    count = RestartCount(POLICY)
    ends = [own_failure(count, lived_s=lived_s) for _ in range(5)]
    assert ends == [pytest.approx(0.1 * 2**n) for n in range(4)] + [None]
    count = RestartCount(POLICY)
    ends = [own_failure(count, lived_s=lived_s, joined=False) for _ in range(2)]
    assert ends == [POLICY.first_delay_s, None]


def test_a_failure_that_has_brought_the_job_further_is_the_first_of_a_new_row() -> None:
    count = RestartCount(POLICY)
    for _ in range(4):
        own_failure(count, lived_s=1.0)
    assert [own_failure(count, lived_s=20.0, further=True) for _ in range(10)] == [0.0] * 10
    assert [own_failure(count, lived_s=20.0) is None for _ in range(4)] == [False, False, False, True]
    assert count.in_a_row == 5


def test_a_kill_from_outside_leaves_the_row_of_own_failures_as_it_is() -> None:
    count = RestartCount(POLICY)
    for _ in range(4):
        own_failure(count, lived_s=20.0)
        assert count.failed(lived_s=20.0, joined=True, killed_in_progress=True, killed=True) == 0.0
    assert own_failure(count, lived_s=20.0) is None


def test_failures_that_come_soon_are_followed_by_longer_and_longer_waits_although_each_brings_a_step() -> (
    None
):
    count = RestartCount(POLICY)
    waits = [own_failure(count, lived_s=1.0, further=True) for _ in range(30)]
    assert waits[:4] == [0.0, 0.1, pytest.approx(0.2), pytest.approx(0.4)]
    assert waits[-1] == POLICY.longest_delay_s, "and it never gives up"
    assert own_failure(count, lived_s=POLICY.healthy_after_s, further=True) == 0.0
    assert own_failure(count, lived_s=1.0, further=True) == 0.0, "a row of its own"


def test_a_kill_from_outside_costs_no_wait_whatever_was_before() -> None:
    count = RestartCount(POLICY)
    for _ in range(10):
        own_failure(count, lived_s=1.0, further=True)
    assert count.failed(lived_s=1.0, joined=True, killed_in_progress=True, killed=True) == 0.0


def test_a_count_goes_on_from_what_somebody_else_has_counted() -> None:
    first = RestartCount(POLICY)
    for _ in range(4):
        own_failure(first, lived_s=20.0)
    assert own_failure(RestartCount(POLICY, first.tally), lived_s=20.0) is None
