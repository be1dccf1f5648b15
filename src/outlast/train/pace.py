"""How much time saves take from training: measured, as the steps that were longer than usual.

Hashing and writing compete with training for cores, caches and memory, in threads of ours, of libraries and
of the kernel. Nobody can add that up, but the steps show it: those from the decision to save until the end of
the step in which the save ended, against those before. One that took several times as long as usual had
something else in it, an evaluation say, and does not count for more than that.
"""

from __future__ import annotations

from collections import deque

CALM_LEAST = 4
CALM_MOST = 32
LIMIT = 4.0
"""A step counts for no more than so many usual ones."""


class Pace:
    """Used under the engine's lock. `now` is the monotonic clock."""

    def __init__(self) -> None:
        self._calm: deque[float] = deque(maxlen=CALM_MOST)
        """How long the newest steps took during which nothing was saved."""
        self._last: float | None = None
        self._slow: list[float] = []
        self._saving = False
        self._ending = False

    def save_decided(self) -> None:
        self._saving, self._ending = True, False

    def save_ended(self) -> None:
        self._ending = self._saving

    def step(self, now: float) -> float | None:
        """Another step. Once for each save, how many seconds it has cost; None until then, or if nothing is
        known to compare with."""
        last, self._last = self._last, now
        if last is None:
            return None
        if not self._saving:
            self._calm.append(now - last)
            return None
        self._slow.append(now - last)
        if not self._ending:
            return None
        lost_s = self._lost_s()
        self._saving = self._ending = False
        self._slow = []
        return lost_s

    def _lost_s(self) -> float | None:
        if len(self._calm) < CALM_LEAST:
            return None
        most_s = LIMIT * sorted(self._calm)[len(self._calm) // 2]
        # The mean, since what now and then takes longer does so during saves as well.
        usual_s = sum(min(one, most_s) for one in self._calm) / len(self._calm)
        return max(0.0, sum(min(one, most_s) - usual_s for one in self._slow))
