"""When to compare states: every so many steps, or as often as it costs next to nothing.

*Next to nothing* (`auto`) is 0.5 % of the time. What a comparison costs is measured: how long training was
held for it, and the CPU time that copying and hashing took in threads of their own, as if no core were idle.
So the interval follows the size of the state and the speed of the machine, and is a second at least.
"""

from __future__ import annotations

from outlast.errors import ConfigError

AUTO = "auto"
SHARE_OF_TIME = 0.005
LEAST_S = 1.0
MOST_S = 600.0
FORGET = 0.5
"""How much the newest comparison counts in the average cost."""

Verify = str | int | None


class Rhythm:
    """Used under the engine's lock. `now` is the monotonic clock."""

    def __init__(self, every: str | int, now: float) -> None:
        self.every_steps = _parsed(every)
        self._chosen_step = 0
        self._chosen_at = now
        self._cost_s = 0.0

    def chosen(self, step: int, now: float) -> None:
        """The state after this step is being compared."""
        self._chosen_step, self._chosen_at = step, now

    def cost(self, cost_s: float) -> None:
        """What the newest comparison has taken from training."""
        weight = FORGET if self._cost_s else 1.0
        self._cost_s += weight * (cost_s - self._cost_s)

    @property
    def interval_s(self) -> float:
        return min(max(self._cost_s / SHARE_OF_TIME, LEAST_S), MOST_S)

    def wants(self, step: int, now: float, *, chief: bool) -> bool:
        """Whether the state after this step should be compared. Clocks differ, so by time one decides."""
        if self.every_steps:
            # After members have gone back, the newest one may lie ahead.
            return not 0 <= step - self._chosen_step < self.every_steps
        return chief and now - self._chosen_at >= self.interval_s


def _parsed(every: str | int) -> int:
    """Steps; 0 for `auto`."""
    if every == AUTO:
        return 0
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(
            f"verify = {every!r}: say after how many steps replicas compare their states (verify=100), leave "
            "it to Outlast (verify='auto'), or switch it off (verify=None)."
        )
    return every
