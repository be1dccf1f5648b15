"""When to save: every so many steps, every so many seconds, or as often as pays.

*As often as pays* (`auto`) is the rule of Young and Daly: with a save that costs C seconds of training and a
failure of everything every M seconds on average, saving every sqrt(2 C M) seconds loses the least. C is what
saves have cost so far: how much longer the steps were meanwhile (`pace.py`), and no less than the time that
training was held and the CPU time that the saving thread itself took from it. M is estimated from the
failures that this run has seen. A run loses nothing by the death of some of its replicas, only by that of
all; but failures of many at once are announced by failures of one, and too many saves cost little. So every
failure counts, and before the first one there is a guess.

The interval is at least a hundred times the cost, so that saving takes about one hundredth of the time, and
at most half an hour, whatever that costs.
"""

from __future__ import annotations

import math
import os

from outlast.errors import ConfigError

AUTO = "auto"
ASSUMED_FAILURE_EVERY_S = 4 * 3600.0
LEAST_S = 5.0
MOST_S = 1800.0
SHARE_OF_TIME = 0.01
FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 300.0
FORGET = 0.5
"""How much the newest save counts in the average cost."""

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

Every = str | int


class Cadence:
    """Used under the engine's lock. `now` is the monotonic clock."""

    def __init__(self, every: Every, now: float) -> None:
        self.every_steps, self._every_s = _parsed(every)
        self._began_at = self._saved_at = now
        self._failures = 0
        self._cost_s = 0.0
        self._newest_cost_s = 0.0
        self._counts_for = 1.0
        self._tries_failed = 0
        self._next_step = self.every_steps
        self._retry_at: float | None = None

    def failed_over(self) -> None:
        """A replica was lost."""
        self._failures += 1

    def decided(self, step: int) -> None:
        """The state after this step is being saved, or is what this replica began with."""
        self._retry_at = None
        if self.every_steps:
            self._next_step = (step // self.every_steps + 1) * self.every_steps

    def ended(self, now: float, *, committed: bool, held_s: float, worked_s: float) -> None:
        """A save is over. Training was held for so long, and writing took so much CPU time."""
        cost_s = held_s + worked_s / (os.cpu_count() or 1)
        if committed:
            self._newest_cost_s = cost_s
            self._counts_for = FORGET if self._cost_s else 1.0
            self._cost_s += self._counts_for * (cost_s - self._cost_s)
            self._tries_failed = 0
            self._saved_at = now
        else:
            # At once again, but not for ever: a storage that is away for an hour is asked less and less.
            pause_s = (
                min(FIRST_PAUSE_S * 2.0**self._tries_failed, MOST_PAUSE_S) if self._tries_failed else 0.0
            )
            self._tries_failed = min(self._tries_failed + 1, 20)
            self._retry_at = now + pause_s

    def slowed(self, lost_s: float) -> None:
        """The steps during the newest save took so much longer than others: it cost no less than that."""
        more_s = max(0.0, lost_s - self._newest_cost_s)
        self._newest_cost_s += more_s
        self._cost_s += self._counts_for * more_s

    def wants(self, step: int, now: float) -> bool:
        """Whether the state after this step should be saved."""
        if self._retry_at is not None:
            return now >= self._retry_at
        if self.every_steps:
            return step >= self._next_step
        return now - self._saved_at >= self.interval_s(now)

    def interval_s(self, now: float) -> float:
        if self._every_s:
            return self._every_s
        between_failures_s = (ASSUMED_FAILURE_EVERY_S + now - self._began_at) / (1 + self._failures)
        best_s = math.sqrt(2 * self._cost_s * between_failures_s)
        return min(max(best_s, self._cost_s / SHARE_OF_TIME, LEAST_S), MOST_S)


def _parsed(every: Every) -> tuple[int, float]:
    """Steps, seconds; both 0 for `auto`."""
    wrong = ConfigError(
        f"every = {every!r}: say how often to save as a number of steps (every=500), as a duration "
        "(every='90s', '10m', '1h'), or leave it to Outlast (every='auto')."
    )
    if isinstance(every, bool) or not isinstance(every, str | int):
        raise wrong
    if isinstance(every, int):
        if every < 1:
            raise wrong
        return every, 0.0
    if every == AUTO:
        return 0, 0.0
    number = every.rstrip("smhin")
    try:
        seconds = float(number) * _UNITS_S[every[len(number) :]]
    except (ValueError, KeyError):
        raise wrong from None
    if not 0 < seconds < math.inf:
        raise wrong
    return 0, seconds
