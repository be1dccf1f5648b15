"""Nobody moves: the last net, for what should not happen.

Who keeps others waiting is found by its progress (`hang.py`), and a frame is only ever lost with its
connection, of which both ends know. So members that all wait, each for the others, cannot be; unless there is
a mistake in this program, in a network or in a kernel that swallows bytes. A run that does not stop does not
stop for that either: the view is renewed, with the same members. That voids the attempt, all say what they
hold, and do the step again.

Nothing is lost by a renewal but the time of one step, so it needs no proof, only patience: what is on its way
may be large, and the network slow. The patience is several windows and several of the run's own steps, and
doubles with every renewal that did not help.

It does not matter in which view members wait. Those that wait in one that was interrupted are on their way
into the next, where all have to say something before anybody goes on; they are given as long for that, from
the interruption on.
"""

from outlast.protocol.messages import Phase, Pulse
from outlast.protocol.timing import Timing
from outlast.protocol.views import View

STEPS_OF_PATIENCE = 10


class Standstill:
    """What one leader has seen of it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._step = -1
        self._renewals: set[int] = set()
        """The views that were to end a standstill at that step."""
        self._interruption = -1
        """The last view that interrupted the members, and when it was first seen here."""
        self._interrupted_at = 0.0

    def found(self, pulses: list[Pulse], view: View, now: float) -> str:
        """Why the view has to be renewed; empty if it does not. There is a fresh pulse of every member."""
        if view.planned_since != self._interruption:
            self._interruption, self._interrupted_at = view.planned_since, now
        if not pulses or any(p.phase is not Phase.WAITING or p.stopped_s > 0 for p in pulses):
            return ""
        step = max(p.step for p in pulses)
        if step != self._step:
            self._step, self._renewals = step, set()
        late_s = now - self._interrupted_at
        quiet_s = min(p.quiet_s if p.view >= view.planned_since else min(p.quiet_s, late_s) for p in pulses)
        if quiet_s <= self._patience_s(pulses, len(self._renewals - {view.number + 1})):
            return ""
        self._renewals.add(view.number + 1)
        return (
            f"all members have waited for each other for {quiet_s:.0f} s after step {step}, so what one of "
            "them has said is lost: they do the next step again"
        )

    def _patience_s(self, pulses: list[Pulse], renewals: int) -> float:
        # Who waits has done its part of the step, so it does not matter whether it has warmed up; but if
        # nobody has, nobody knows how long a step takes.
        pace_s = max(p.pace_s for p in pulses)
        once_s = STEPS_OF_PATIENCE * pace_s if pace_s > 0 else self._timing.cold_within_s
        return (self._timing.standstill_s + once_s) * 2.0**renewals
