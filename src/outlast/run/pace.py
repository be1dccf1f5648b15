"""How fast a run goes, and what faults have cost it, as seen by somebody who looks a few times a second."""

from collections import deque

WINDOW_S = 15.0
AT_LEAST_S = 1.0


class Pace:
    """The time of a step, over the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, step: int, now: float) -> None:
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()
        if self._seen and step == self._seen[-1][1]:
            return
        self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[0][0] > self._window_s:
            self._seen.popleft()

    def forget(self) -> None:
        self._seen.clear()

    @property
    def last(self) -> tuple[float, int] | None:
        """When the newest step was first seen, and which that is."""
        return self._seen[-1] if self._seen else None

    @property
    def steps(self) -> int:
        return self._seen[-1][1] - self._seen[0][1] if self._seen else 0

    @property
    def step_s(self) -> float:
        """0 while too little was seen to say it."""
        span_s = self._seen[-1][0] - self._seen[0][0] if self._seen else 0.0
        return span_s / self.steps if self.steps and span_s >= AT_LEAST_S else 0.0


class Toll:
    """The time that faults have cost: by how much longer it took, from the last step before a fault until all
    is as it was, than so many steps usually take. Steps that had to be done again count, and so do those that
    were slower because fewer replicas did them. Time that the script spends on other work does not."""

    def __init__(self) -> None:
        self.lost_s = 0.0
        self._usual = Pace()
        self._usual_s = 0.0
        self._since: tuple[float, int] | None = None
        """When and at which step the trouble began."""
        self._newest: tuple[float, int] = (0.0, 0)
        """When the newest step was first seen, and which that is."""
        self._clock = 0.0
        self._looked_at: float | None = None

    def saw(self, step: int, now: float, *, disturbed: bool, aside: bool = False) -> None:
        """`disturbed`: whether something has gone wrong and has not been put right yet."""
        if self._looked_at is not None and not aside:
            self._clock += now - self._looked_at
        self._looked_at = now
        if step != self._newest[1]:
            self._newest = self._clock, step
        if self._since is None and not disturbed:
            self._usual.saw(step, self._clock)
            self._usual_s = self._usual.step_s or self._usual_s
        elif self._since is None:
            self._since = self._usual.last or (self._clock, step)
        elif not disturbed and step > self._since[1]:
            self._settle(self._clock, step)

    def close(self) -> None:
        """The run is over; trouble that was not put right has lasted until its last step."""
        if self._since is not None:
            self._settle(*self._newest)

    def _settle(self, until: float, step: int) -> None:
        assert self._since is not None
        began, at = self._since
        if self._usual_s:
            self.lost_s += max(0.0, until - began - (step - at) * self._usual_s)
        self._since = None
        self._usual.forget()
        self._usual.saw(step, self._clock)
