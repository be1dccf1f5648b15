"""Is it dead, or only late? Phi-accrual failure detection over heartbeats.

A fixed timeout has to choose between being slow and being fooled. This detector learns how regular the beats
of one sender are and asks how unlikely the present silence is: phi = -log10 of the probability that a beat
still comes after having been silent this long. Beats that come like clockwork make a short silence damning;
beats that already came late a few times (a loaded machine, a jittery network) buy the sender more patience.

Two bounds keep the promise of the one knob: nobody is suspected before `at_least_s`, and everybody is after
`at_most_s`. Gaps are modelled as normal, with a floor under the deviation, since a sender that has been
perfectly regular for a while is still allowed an ordinary hiccup.
"""

import math
from collections import deque

PHI_SUSPECT = 8.0
"""One false alarm in 10^8 gaps, if gaps behave as they did."""

REMEMBERED_GAPS = 64


class BeatHistory:
    """The beats of one sender."""

    def __init__(self, expected_gap_s: float, now: float) -> None:
        self.heard_at = now
        self._expected_gap_s = expected_gap_s
        self._gaps: deque[float] = deque([expected_gap_s], maxlen=REMEMBERED_GAPS)

    def heard(self, now: float) -> None:
        self._gaps.append(max(0.0, now - self.heard_at))
        self.heard_at = now

    def forgive(self, now: float) -> None:
        """Start the silence anew without learning from it: it was the listener who slept."""
        self.heard_at = now

    def silence_s(self, now: float) -> float:
        return now - self.heard_at

    def phi(self, now: float) -> float:
        mean = sum(self._gaps) / len(self._gaps)
        variance = sum((gap - mean) ** 2 for gap in self._gaps) / len(self._gaps)
        deviation = max(math.sqrt(variance), self._expected_gap_s / 2)
        beyond = (self.silence_s(now) - mean) / (deviation * math.sqrt(2))
        probability = math.erfc(beyond) / 2
        return math.inf if probability < 1e-300 else -math.log10(probability)

    def suspect(self, now: float, at_least_s: float, at_most_s: float) -> bool:
        silence = self.silence_s(now)
        if silence < at_least_s:
            return False
        return silence >= at_most_s or self.phi(now) >= PHI_SUSPECT
