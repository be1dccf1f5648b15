"""All wait for each other, and nobody is at fault."""

from outlast.protocol.messages import Phase, Pulse
from outlast.protocol.standstill import STEPS_OF_PATIENCE, Standstill
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, View

TIMING = Timing(detect_within_s=1.0, cold_within_s=60.0)
PACE_S = 0.5
PATIENCE_S = TIMING.standstill_s + STEPS_OF_PATIENCE * PACE_S
VIEW = View(number=9, members=(Member(0, 1), Member(1, 1)), planned_since=8)


def pulse(
    replica: int,
    *,
    quiet_s: float = PATIENCE_S + 1,
    phase: Phase = Phase.WAITING,
    view: int = 9,
    step: int = 7,
    pace_s: float = PACE_S,
    stopped_s: float = 0.0,
) -> Pulse:
    return Pulse(
        replica=replica,
        process=1,
        view=view,
        step=step,
        phase=phase,
        quiet_s=quiet_s,
        pace_s=pace_s,
        stopped_s=stopped_s,
    )


def watch(
    standstill: Standstill, pulses: list[Pulse], view: View = VIEW, *, for_s: float, behind: int = -1
) -> str:
    """A leader looks now and once more; everybody has adopted the view but the one that is behind."""
    adopted = {p.replica: view.number - 9 * (p.replica == behind) for p in pulses}
    assert not standstill.found(pulses, adopted, view, 1000.0)
    return standstill.found(pulses, adopted, view, 1000.0 + for_s)


def found(*pulses: Pulse, for_s: float = PATIENCE_S + 1, behind: int = -1) -> bool:
    return bool(watch(Standstill(TIMING), list(pulses), for_s=for_s, behind=behind))


def test_all_that_wait_for_long_are_set_going_again() -> None:
    assert found(pulse(0), pulse(1))
    assert "after step 7" in watch(Standstill(TIMING), [pulse(0), pulse(1)], for_s=PATIENCE_S + 1)


def test_who_agrees_with_others_where_to_go_on_has_not_taken_part_yet() -> None:
    assert found(pulse(0), pulse(1, view=7))


def test_all_have_to_wait_and_all_for_long() -> None:
    assert not found(pulse(0), pulse(1, phase=Phase.COMPUTING))
    assert not found(pulse(0), pulse(1, phase=Phase.ASIDE))
    assert not found(pulse(0), pulse(1, quiet_s=PATIENCE_S - 0.1))
    assert not found(pulse(0), pulse(1), for_s=PATIENCE_S - 0.1)


def test_who_has_not_come_into_the_view_yet_is_on_its_way() -> None:
    assert not found(pulse(0), pulse(1, view=7), behind=1)


def test_who_is_stopped_waits_for_nobody() -> None:
    assert not found(pulse(0), pulse(1, stopped_s=0.1))


def test_one_that_has_warmed_up_is_enough_to_know_the_pace() -> None:
    assert found(pulse(0), pulse(1, pace_s=0.0))
    long_s = TIMING.standstill_s + TIMING.cold_within_s
    cold = [pulse(replica, pace_s=0.0, quiet_s=2 * long_s) for replica in (0, 1)]
    assert not found(*cold, for_s=long_s - 1)
    assert found(*cold, for_s=long_s + 1)


def test_nobody_at_all_is_no_standstill() -> None:
    assert not found()


def renewed(view: View) -> View:
    return View(number=view.number + 1, members=view.members, planned_since=view.number + 1)


def test_patience_doubles_until_something_moves() -> None:
    standstill, view = Standstill(TIMING), VIEW
    pulses = [pulse(replica, quiet_s=1e6) for replica in (0, 1)]
    for renewals in range(3):
        patience_s = PATIENCE_S * 2**renewals
        assert not watch(standstill, pulses, view, for_s=patience_s - 0.1)
        adopted = {0: view.number, 1: view.number}
        assert standstill.found(pulses, adopted, view, 1000.0 + patience_s + 0.1)
        # The store may be slow to take it: that is no second renewal.
        assert standstill.found(pulses, adopted, view, 1000.0 + patience_s + 0.2)
        view = renewed(view)
    moved = [pulse(replica, step=8, quiet_s=1e6) for replica in (0, 1)]
    assert watch(standstill, moved, view, for_s=PATIENCE_S + 0.1)
