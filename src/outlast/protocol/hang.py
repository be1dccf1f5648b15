"""Alive but stuck: judging a replica by its progress.

A process can beat, hold its connections and still do nothing: a deadlock, a lost disk, a kernel that never
returns. What gives it away is that *others wait for it*. A replica is judged hung when

- it claims to be computing, or to be waiting in a view or at a step that is over, and has made no progress
  for one detection window plus three of the run's own steps, not counting time in which it was ready to run
  and the machine gave it no CPU;
- at least one peer has been waiting for a window too, having done its part, in a view that is not over;
- and it has warmed up. The first steps of a life compile, allocate and fill caches, and say nothing about
  the later ones; they have a long, fixed limit instead. It is the agent that knows when a life has warmed
  up (it reports a pace from then on), because an agent lives as long as its replicas and a leader may not.

After an interruption, the view that interrupted is the oldest that is not over. Planned views come into force
at the same step everywhere, so of two members that wait at the same step, the one in the older view has
missed something, just as one that waits at an older step has.

Work that the user has declared (`Phase.ASIDE`) is never a hang. If nobody waits, nobody is harmed.
"""

from collections import deque

from outlast.protocol.messages import Phase, Pulse

STEPS_OF_PATIENCE = 3
WARM_AFTER_STEPS = 5


PACE_CHANGES = 16


class Pace:
    """How long the steps of one life take, as seen by somebody who looks now and then."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._began_at: int | None = None
        self._changes: deque[tuple[float, int]] = deque(maxlen=PACE_CHANGES)

    def note(self, step: int, now: float) -> None:
        if self._seen is None or step < self._seen:
            # A new beginning, of this life or of another one in the same process.
            self._began_at = None
            self._changes.clear()
        elif step > self._seen:
            # A joiner jumps to the step of the others: the first change says nothing about its pace.
            if self._began_at is None:
                self._began_at = step
            self._changes.append((now, step))
        self._seen = step

    @property
    def progressed(self) -> bool:
        return self._began_at is not None

    @property
    def step_s(self) -> float:
        """The mean time of the last few steps; 0 while the life is cold."""
        # Whoever looks now and then sees several fast steps as one change, so steps are counted.
        if self._began_at is None or self._changes[-1][1] - self._began_at < WARM_AFTER_STEPS:
            return 0.0
        (first_at, first), (last_at, last) = self._changes[0], self._changes[-1]
        return max(0.0, (last_at - first_at) / (last - first)) if last > first else 0.0


def hung(pulses: list[Pulse], *, all_seen: bool, view: int, window_s: float, cold_s: float) -> list[Pulse]:
    """Those of the members' pulses that show a hang. `all_seen` says whether there is a fresh one of every
    member, `view` is the oldest that is not over, and `cold_s` is the limit for lives not yet warm."""
    waiting = [pulse for pulse in pulses if pulse.phase is Phase.WAITING and pulse.view >= view]
    if not waiting:
        return []
    suspects = _waited_for(pulses, all_seen, view, max((pulse.step, pulse.view) for pulse in waiting))
    # Pulses of different machines are of different moments: those who have just been waiting for somebody
    # that is back, and are a step behind in their last pulse, are no witnesses against each other.
    if not any(pulse.quiet_s >= window_s for pulse in waiting if pulse not in suspects):
        return []
    # The slowest pace counts: a run is as fast as its slowest member.
    patience_s = window_s + STEPS_OF_PATIENCE * max(pulse.pace_s for pulse in pulses)
    return [
        pulse
        for pulse in suspects
        if pulse.quiet_s > (patience_s if pulse.pace_s > 0 else max(cold_s, patience_s))
    ]


def _waited_for(pulses: list[Pulse], all_seen: bool, view: int, newest: tuple[int, int]) -> list[Pulse]:
    """Whom the others wait for: whoever computes; if nobody does, whoever starts, since one that has nothing
    yet may be waiting itself, to be given the state by one that computes; then whoever waits in the past. But
    that nobody computes is only known when everybody is seen: else all may be waiting for the one that is
    not."""
    computing = [pulse for pulse in pulses if pulse.phase is Phase.COMPUTING]
    starting = [pulse for pulse in pulses if pulse.phase is Phase.STARTING]
    waiting = [pulse for pulse in pulses if pulse.phase is Phase.WAITING]
    in_old_view = [pulse for pulse in waiting if pulse.view < view]
    behind = [pulse for pulse in waiting if (pulse.step, pulse.view) < newest]
    if computing or starting or not all_seen:
        return computing or starting
    return in_old_view or behind
