"""Phi accrual: regular beats make a short silence damning, late ones buy patience, within two bounds."""

import math
from itertools import pairwise

from outlast.protocol.detector import PHI_SUSPECT, BeatHistory

GAP_S = 0.1
AT_LEAST_S = 0.8
AT_MOST_S = 3.0


def after_gaps(*gaps_s: float) -> BeatHistory:
    """The history of a sender whose first beat came at 0 and the others after these gaps."""
    history = BeatHistory(GAP_S, now=0.0)
    for gap_s in gaps_s:
        history.heard(history.heard_at + gap_s)
    return history


def suspected_after(
    history: BeatHistory, at_least_s: float = AT_LEAST_S, at_most_s: float = AT_MOST_S
) -> float:
    """The length of silence, to a hundredth of a second, from which on the sender is suspected."""
    silences = [hundredth / 100 for hundredth in range(1000)]
    verdicts = [history.suspect(history.heard_at + s, at_least_s, at_most_s) for s in silences]
    first = verdicts.index(True)
    assert all(verdicts[first:]), "a longer silence is never less suspicious"
    return silences[first]


def test_regular_beats_make_a_silence_suspicious_as_soon_as_it_may_be() -> None:
    assert math.isclose(suspected_after(after_gaps(*[GAP_S] * 50)), AT_LEAST_S, abs_tol=0.011)


def test_regular_beats_alone_would_suspect_within_a_few_gaps() -> None:
    assert 3 * GAP_S < suspected_after(after_gaps(*[GAP_S] * 50), at_least_s=0.0) < 6 * GAP_S


def test_nobody_is_suspected_before_the_lower_bound_however_unlikely_the_silence() -> None:
    history = after_gaps(*[GAP_S] * 50)
    just_before = history.heard_at + AT_LEAST_S - 0.001
    assert history.phi(just_before) > PHI_SUSPECT
    assert not history.suspect(just_before, AT_LEAST_S, AT_MOST_S)


def test_beats_that_came_late_before_earn_patience() -> None:
    jittery = after_gaps(*[0.05, 0.05, 0.6] * 20)
    assert suspected_after(jittery) > 2 * AT_LEAST_S


def test_everybody_is_suspected_from_the_upper_bound_on_however_irregular_the_beats() -> None:
    wild = after_gaps(*[0.01, 6.0] * 20)
    at_bound = wild.heard_at + AT_MOST_S
    assert wild.phi(at_bound) < PHI_SUSPECT
    assert not wild.suspect(at_bound - 0.001, AT_LEAST_S, AT_MOST_S)
    assert wild.suspect(at_bound, AT_LEAST_S, AT_MOST_S)


def test_old_irregularity_is_forgotten() -> None:
    recovered = after_gaps(*[0.05, 0.05, 0.6] * 20, *[GAP_S] * 100)
    assert suspected_after(recovered) < suspected_after(after_gaps(*[0.05, 0.05, 0.6] * 20))
    assert math.isclose(suspected_after(recovered), AT_LEAST_S, abs_tol=0.011)


def test_a_sender_that_was_heard_once_is_judged_by_the_gap_expected_of_it() -> None:
    assert math.isclose(suspected_after(after_gaps()), AT_LEAST_S, abs_tol=0.011)


def test_phi_grows_with_the_silence() -> None:
    history = after_gaps(*[GAP_S] * 20)
    levels = [history.phi(history.heard_at + tenths / 10) for tenths in range(20)]
    assert all(later >= earlier for earlier, later in pairwise(levels))
    assert levels[0] < 1 < PHI_SUSPECT < levels[-1]


def test_an_endless_silence_is_infinitely_suspicious_and_no_arithmetic_error() -> None:
    assert after_gaps(*[GAP_S] * 20).phi(1e6) == math.inf


def test_forgiving_starts_the_silence_anew() -> None:
    history = after_gaps(*[GAP_S] * 50)
    woke_at = history.heard_at + 100.0
    assert history.suspect(woke_at, AT_LEAST_S, AT_MOST_S)
    history.forgive(woke_at)
    assert history.silence_s(woke_at) == 0.0
    assert not history.suspect(woke_at + AT_LEAST_S - 0.01, AT_LEAST_S, AT_MOST_S)
    assert history.suspect(woke_at + AT_LEAST_S + 0.01, AT_LEAST_S, AT_MOST_S)


def test_nothing_is_learned_from_a_forgiven_silence() -> None:
    history = after_gaps(*[GAP_S] * 50)
    history.forgive(history.heard_at + 100.0)
    history.heard(history.heard_at + GAP_S)
    assert math.isclose(suspected_after(history), AT_LEAST_S, abs_tol=0.011)


def test_a_clock_reading_from_before_the_last_beat_does_no_harm() -> None:
    history = after_gaps(GAP_S, -100.0, GAP_S)
    assert not history.suspect(history.heard_at - 1.0, AT_LEAST_S, AT_MOST_S)
    assert math.isclose(suspected_after(history), AT_LEAST_S, abs_tol=0.011)
