"""A hang is judged by progress, and only while others wait for it."""

import pytest

from outlast.protocol.hang import STEPS_OF_PATIENCE, WARM_AFTER_STEPS, Pace, hung
from outlast.protocol.messages import Phase, Pulse

VIEW = 4
WINDOW_S = 1.0
COLD_S = 600.0
PACE_S = 0.2
PATIENCE_S = WINDOW_S + STEPS_OF_PATIENCE * PACE_S


def pulse(
    replica: int,
    phase: Phase,
    *,
    quiet_s: float = 2 * PATIENCE_S,
    step: int = 7,
    view: int = VIEW,
    pace_s: float = PACE_S,
) -> Pulse:
    return Pulse(
        replica=replica, process=1, view=view, step=step, phase=phase, quiet_s=quiet_s, pace_s=pace_s
    )


def stuck(*pulses: Pulse) -> list[int]:
    return [p.replica for p in hung(list(pulses), all_seen=True, view=VIEW, window_s=WINDOW_S, cold_s=COLD_S)]


def test_who_computes_for_too_long_while_a_peer_waits_is_hung() -> None:
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.COMPUTING)) == [1]


def test_nobody_is_hung_while_nobody_waits() -> None:
    assert stuck(pulse(0, Phase.COMPUTING), pulse(1, Phase.COMPUTING)) == []
    assert stuck() == []


def test_a_peer_that_has_only_begun_to_wait_is_no_reason() -> None:
    assert stuck(pulse(0, Phase.WAITING, quiet_s=WINDOW_S - 0.01), pulse(1, Phase.COMPUTING)) == []
    assert stuck(pulse(0, Phase.WAITING, quiet_s=WINDOW_S), pulse(1, Phase.COMPUTING)) == [1]


def test_who_is_behind_in_its_last_pulse_is_no_witness_against_others_who_are() -> None:
    # Two that waited for a machine that slept; its pulses, which are newer, show what all have done since.
    behind = [pulse(replica, Phase.WAITING, step=7) for replica in (0, 2)]
    ahead = [pulse(replica, Phase.WAITING, step=8, quiet_s=0.1) for replica in (1, 3)]
    assert stuck(*behind, *ahead) == []
    assert stuck(*behind, pulse(1, Phase.WAITING, step=8)) == [0, 2]


def test_patience_is_a_window_and_three_of_the_runs_own_steps() -> None:
    waiting = pulse(0, Phase.WAITING)
    assert stuck(waiting, pulse(1, Phase.COMPUTING, quiet_s=PATIENCE_S - 0.01)) == []
    assert stuck(waiting, pulse(1, Phase.COMPUTING, quiet_s=PATIENCE_S + 0.01)) == [1]


def test_the_slowest_member_sets_the_pace_of_all() -> None:
    quiet_s = PATIENCE_S + 0.01
    slow_peer = pulse(0, Phase.WAITING, pace_s=10 * PACE_S)
    assert stuck(slow_peer, pulse(1, Phase.COMPUTING, quiet_s=quiet_s)) == []


def test_a_life_that_has_not_warmed_up_has_the_long_limit() -> None:
    waiting = pulse(0, Phase.WAITING, quiet_s=2 * COLD_S)
    assert stuck(waiting, pulse(1, Phase.COMPUTING, quiet_s=COLD_S - 1, pace_s=0.0)) == []
    assert stuck(waiting, pulse(1, Phase.COMPUTING, quiet_s=COLD_S + 1, pace_s=0.0)) == [1]


def test_work_that_was_declared_is_never_a_hang() -> None:
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.ASIDE, quiet_s=10 * COLD_S)) == []


def test_who_has_done_all_its_work_is_not_judged() -> None:
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.DONE, quiet_s=10 * COLD_S)) == []


def test_a_member_that_never_gets_going_is_judged_by_the_limit_for_cold_ones() -> None:
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.STARTING, pace_s=0.0, quiet_s=COLD_S - 1)) == []
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.STARTING, pace_s=0.0, quiet_s=COLD_S + 1)) == [1]


def test_who_still_waits_in_a_view_that_is_over_is_hung() -> None:
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.WAITING, view=VIEW - 1)) == [1]


def test_who_still_waits_at_a_step_that_is_over_is_hung() -> None:
    assert stuck(pulse(0, Phase.WAITING, step=8), pulse(1, Phase.WAITING, step=7)) == [1]


def test_those_who_wait_are_not_blamed_while_somebody_computes() -> None:
    behind = pulse(2, Phase.WAITING, view=VIEW - 1)
    busy = pulse(1, Phase.COMPUTING, quiet_s=0.1)
    assert stuck(pulse(0, Phase.WAITING), busy, behind) == []


def test_a_wait_in_an_old_view_says_nothing_about_the_present_one() -> None:
    assert stuck(pulse(0, Phase.WAITING, view=VIEW - 1), pulse(1, Phase.COMPUTING)) == []


def test_all_waiting_for_each_other_at_the_same_step_is_nobodys_hang() -> None:
    assert stuck(pulse(0, Phase.WAITING), pulse(1, Phase.WAITING)) == []


def paced(*notes: tuple[float, int]) -> Pace:
    pace = Pace()
    for at, step in notes:
        pace.note(step, at)
    return pace


def test_fast_steps_count_although_they_are_seen_as_few_changes() -> None:
    assert paced((0.0, 0), (0.1, 8), (0.2, 18)).step_s == pytest.approx(0.01)


def test_a_life_is_cold_until_it_has_made_a_few_steps() -> None:
    steps = [(n * PACE_S, 100 + n) for n in range(WARM_AFTER_STEPS + 2)]
    assert paced(*steps[:-1]).step_s == 0.0
    assert paced(*steps).step_s == pytest.approx(PACE_S)


def test_steps_that_the_looker_missed_count_too() -> None:
    assert paced(*((float(second), 10 * second) for second in range(7))).step_s == pytest.approx(0.1)


def test_a_joiner_that_jumps_to_the_others_step_is_not_warm_for_that() -> None:
    assert paced((0.0, 0), (0.1, 500)).step_s == 0.0


def test_looking_often_does_not_make_a_run_look_fast() -> None:
    looks = [(n * 0.01, n // 100) for n in range(1000)]
    assert paced(*looks).step_s == pytest.approx(1.0)


def test_the_pace_follows_the_latest_steps() -> None:
    slow_start = [(n * 10.0, n) for n in range(20)]
    fast_later = [(190.0 + n * 0.1, 19 + n) for n in range(1, 40)]
    assert paced(*slow_start, *fast_later).step_s == pytest.approx(0.1)


def test_standing_at_a_step_is_no_progress_and_a_further_step_is() -> None:
    assert not paced().progressed
    assert not paced((0.0, 100), (1.0, 100)).progressed
    assert paced((0.0, 100), (1.0, 101)).progressed


def test_a_rollback_makes_a_life_cold_again_instead_of_giving_a_negative_pace() -> None:
    warm = [(n * PACE_S, 100 + n) for n in range(10)]
    assert paced(*warm, (5.0, 50)).step_s == 0.0
    onwards = [(5.0 + n * PACE_S, 50 + n) for n in range(20)]
    assert paced(*warm, *onwards).step_s == pytest.approx(PACE_S), "and then warm again"


def test_nobody_who_waits_is_blamed_while_a_member_is_out_of_sight() -> None:
    pulses = [pulse(0, Phase.WAITING, step=8), pulse(1, Phase.WAITING, step=7)]
    assert hung(pulses, all_seen=False, view=VIEW, window_s=WINDOW_S, cold_s=COLD_S) == []
    pulses.append(pulse(2, Phase.COMPUTING))
    blamed = hung(pulses, all_seen=False, view=VIEW, window_s=WINDOW_S, cold_s=COLD_S)
    assert [one.replica for one in blamed] == [2], "who computes is to blame whoever else is not seen"


def test_planned_views_may_differ_as_long_as_the_step_does_not() -> None:
    """Who waits in any view since the last interruption waits rightly, and keeps nobody waiting."""
    ahead = pulse(0, Phase.WAITING, view=VIEW + 1)
    assert stuck(ahead, pulse(1, Phase.COMPUTING, view=VIEW)) == [1]
    assert stuck(pulse(0, Phase.WAITING, view=VIEW), pulse(1, Phase.COMPUTING, view=VIEW + 1)) == [1]
    assert stuck(ahead, pulse(1, Phase.WAITING, view=VIEW + 1)) == []


def test_of_two_that_wait_at_the_same_step_the_one_in_the_older_planned_view_has_missed_something() -> None:
    assert stuck(pulse(0, Phase.WAITING, view=VIEW + 1), pulse(1, Phase.WAITING, view=VIEW)) == [1]


def test_who_has_nothing_yet_may_be_waiting_for_one_that_computes() -> None:
    """It is to be given the state by the one that hangs (simulator, seed 20752)."""
    waits, blank = pulse(0, Phase.WAITING), pulse(2, Phase.STARTING, step=0)
    assert stuck(waits, blank, pulse(1, Phase.COMPUTING)) == [1]
    assert stuck(waits, blank, pulse(1, Phase.COMPUTING, quiet_s=0.1)) == []
    assert stuck(waits, blank) == [2]
