"""One knob, from which no contradictory timeouts can follow."""

import pytest

from outlast.errors import ConfigError
from outlast.protocol.timing import LONGEST_WINDOW_S, SHORTEST_WINDOW_S, Timing


@pytest.mark.parametrize("window_s", [SHORTEST_WINDOW_S, 1.0, 7.5, LONGEST_WINDOW_S])
def test_every_timeout_leaves_room_for_the_ones_it_depends_on(window_s: float) -> None:
    timing = Timing(detect_within_s=window_s)
    # Several beats have to go missing before anybody is suspected, and before a complaint is forgotten.
    assert timing.silent_at_least_s >= 5 * timing.beat_every_s
    assert timing.complaint_holds_s >= 3 * timing.beat_every_s
    assert timing.silent_at_least_s < timing.silent_at_most_s
    # A new leader hears every living agent several times before it may suspect one.
    assert timing.trust_for_s > timing.silent_at_least_s
    # A leader that runs ticks often enough not to look asleep to itself, and renews in time.
    assert timing.stalled_after_s > 2 * timing.tick_every_s
    assert timing.lease_s / 3 > 2 * timing.tick_every_s
    # Who may come back by itself gets longer than it took to be noticed.
    assert timing.detect_within_s < timing.linger_s < timing.linger_stopped_s


@pytest.mark.parametrize("window_s", [0.0, -1.0, SHORTEST_WINDOW_S / 2, LONGEST_WINDOW_S * 2, float("nan")])
def test_a_window_outside_of_the_bounds_is_refused_by_name(window_s: float) -> None:
    with pytest.raises(ConfigError, match="detect_within_s"):
        Timing(detect_within_s=window_s)


def test_a_negative_wait_for_the_first_view_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="form_within_s"):
        Timing(form_within_s=-1.0)
