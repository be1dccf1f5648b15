"""All wait for each other, and nobody is at fault."""

from outlast.protocol.messages import Phase, Pulse
from outlast.protocol.standstill import STEPS_OF_PATIENCE, Standstill
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, View

TIMING = Timing(detect_within_s=1.0, cold_within_s=60.0)
PACE_S = 0.5
PATIENCE_S = TIMING.standstill_s + STEPS_OF_PATIENCE * PACE_S
LONG_S = 1e6
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


def watching(view: View = VIEW) -> Standstill:
    """Of a leader that has known this view since time 0."""
    standstill = Standstill(TIMING)
    standstill.found([], view, 0.0)
    return standstill


def found(*pulses: Pulse, view: View = VIEW, now: float = LONG_S) -> bool:
    return bool(watching(view).found(list(pulses), view, now))


def test_all_that_wait_for_long_are_set_going_again() -> None:
    assert found(pulse(0), pulse(1))
    assert "7" in watching().found([pulse(0), pulse(1)], VIEW, LONG_S)


def test_all_have_to_wait_and_all_for_long() -> None:
    assert not found(pulse(0), pulse(1, phase=Phase.COMPUTING))
    assert not found(pulse(0), pulse(1, phase=Phase.ASIDE))
    assert not found(pulse(0), pulse(1, quiet_s=PATIENCE_S - 0.1))


def test_who_has_not_come_into_the_view_yet_is_on_its_way_but_not_for_ever() -> None:
    """All have to speak in it before anybody goes on, so all may come to wait in the view before."""
    assert not found(pulse(0), pulse(1, view=7), now=PATIENCE_S - 0.1)
    assert found(pulse(0, view=7), pulse(1, view=7), now=PATIENCE_S + 0.1)


def test_who_is_stopped_waits_for_nobody() -> None:
    assert not found(pulse(0), pulse(1, stopped_s=0.1))


def test_one_that_has_warmed_up_is_enough_to_know_the_pace() -> None:
    assert found(pulse(0), pulse(1, pace_s=0.0))
    long_s = TIMING.standstill_s + TIMING.cold_within_s
    cold = [pulse(replica, pace_s=0.0, quiet_s=long_s - 1) for replica in (0, 1)]
    assert not found(*cold)
    assert found(*(pulse(replica, pace_s=0.0, quiet_s=long_s + 1) for replica in (0, 1)))


def test_nobody_at_all_is_no_standstill() -> None:
    assert not found()


def renewed(view: View) -> View:
    return View(number=view.number + 1, members=view.members, planned_since=view.number + 1)


def test_patience_doubles_until_something_moves() -> None:
    standstill, view, now = watching(), VIEW, 0.0
    for renewals in range(3):
        patience_s = PATIENCE_S * 2**renewals
        pulses = [pulse(replica, quiet_s=patience_s + 0.1, view=view.number) for replica in (0, 1)]
        early = [pulse(replica, quiet_s=patience_s - 0.1, view=view.number) for replica in (0, 1)]
        assert not standstill.found(early, view, now + patience_s)
        assert standstill.found(pulses, view, now + patience_s)
        # The store may be slow to take it: that is no second renewal.
        assert standstill.found(pulses, view, now + patience_s + 0.1)
        view, now = renewed(view), now + patience_s + 0.2
        assert not standstill.found(pulses, view, now), "they have not heard of it yet"
    moved = [pulse(replica, step=8, view=view.number) for replica in (0, 1)]
    assert standstill.found(moved, view, now + PATIENCE_S + 0.1)
