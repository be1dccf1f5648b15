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


def found(*pulses: Pulse, view: View = VIEW) -> bool:
    return bool(Standstill(TIMING).found(list(pulses), view))


def test_all_that_wait_for_long_are_set_going_again() -> None:
    assert found(pulse(0), pulse(1))
    assert "7" in Standstill(TIMING).found([pulse(0), pulse(1)], VIEW)


def test_all_have_to_wait_and_all_for_long() -> None:
    assert not found(pulse(0), pulse(1, phase=Phase.COMPUTING))
    assert not found(pulse(0), pulse(1, phase=Phase.ASIDE))
    assert not found(pulse(0), pulse(1, quiet_s=PATIENCE_S - 0.1))


def test_who_has_not_come_into_the_view_yet_is_on_its_way() -> None:
    assert not found(pulse(0), pulse(1, view=7))


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
    standstill, view = Standstill(TIMING), VIEW
    for renewals in range(3):
        patience_s = PATIENCE_S * 2**renewals
        early = [pulse(replica, quiet_s=patience_s - 0.1, view=view.number) for replica in (0, 1)]
        late = [pulse(replica, quiet_s=patience_s + 0.1, view=view.number) for replica in (0, 1)]
        assert not standstill.found(early, view)
        assert standstill.found(late, view)
        # The store may be slow to take it: that is no second renewal.
        assert standstill.found(late, view)
        view = renewed(view)
    moved = [pulse(replica, step=8, view=view.number) for replica in (0, 1)]
    assert standstill.found(moved, view)
