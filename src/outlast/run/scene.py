"""How a run stands, in words that anybody knows who has trained with several processes before.

A `Scene` is what a terminal, a log and `outlast status` show, each in its own way. It is made from the
coordinator's answer alone (`scene_of`); who has watched the run for a while adds what has happened, see
`story.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.protocol.messages import Phase, Pulse, Status
from outlast.protocol.views import Seat, Standing
from outlast.run.words import counted, duration, rate

WAITS_AFTER_S = 2.0
"""Every step has its moment of waiting for others; only one that lasts is worth a word."""

TRAINING = "training"
STOPPING = "stopping"


@dataclass(frozen=True, kw_only=True)
class ReplicaLine:
    """One replica: what it does, as a word or a few."""

    replica: int
    does: str
    step: int | None = None
    pid: int = 0
    agent: str = ""
    good: bool = True
    """Whether all is well with it."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    run: str
    stage: str = "starting"
    """What is going on."""
    detail: str = ""
    """How far that has come; changes often."""
    step: int = 0
    total: int = 0
    """0 if it is not known."""
    loss: float | None = None
    step_s: float = 0.0
    """How long a step takes; 0 if it is not known."""
    samples: int = 0
    """How many samples a step has; 0 if it is not known."""
    training: int = 0
    wanted: int = 0
    """How many replicas train, and how many were asked for."""
    checkpoint: str = ""
    fault: str = ""
    """The last thing that went wrong, and what came of it."""
    replicas: tuple[ReplicaLine, ...] = ()
    troubles: tuple[str, ...] = ()

    @property
    def left_s(self) -> float | None:
        """How long it takes at this pace."""
        return (self.total - self.step) * self.step_s if self.step_s and self.total > self.step else None

    @property
    def trains(self) -> bool:
        return self.stage == TRAINING

    def progress(self) -> list[str]:
        """Loss, speed and time left, as far as they are known."""
        told = []
        if self.loss is not None:
            told.append(f"loss {self.loss:.4g}")
        if self.step_s:
            steps = f"{rate(1 / self.step_s)} steps/s"
            told.append(f"{rate(self.samples / self.step_s)} samples/s" if self.samples else steps)
        if self.left_s is not None:
            told.append(f"{duration(self.left_s)} left")
        return told

    def members(self) -> str:
        return f"{self.training} of {counted(self.wanted, 'replica')} training"

    def steps(self) -> str:
        return f"step {self.step:,} of {self.total:,}" if self.total else f"step {self.step:,}"


def scene_of(status: Status, *, step_s: float = 0.0, fault: str = "", preload: Sequence[str] = ()) -> Scene:
    """`step_s`: how long a step takes, if the caller knows better than the agents."""
    pulses = {pulse.replica: pulse for pulse in status.pulses}
    newest = max(status.pulses, key=lambda pulse: pulse.step, default=None)
    paces = [pulse.pace_s for pulse in status.pulses if pulse.pace_s]
    wanted = status.replicas or len(status.view.members)
    return Scene(
        run=status.job,
        stage=_stage(status, preload),
        detail=_detail(status),
        # A run that goes on from a checkpoint is at its step before it has made any.
        step=max([0, *(max(pulse.step, pulse.saved) for pulse in status.pulses)]),
        total=max([0, *(pulse.total for pulse in status.pulses)]),
        loss=newest.loss if newest is not None else None,
        step_s=step_s or max(paces, default=0.0),
        samples=max([0, *(pulse.samples for pulse in status.pulses)]),
        training=len(status.view.members),
        wanted=wanted,
        checkpoint=_checkpoint(status),
        fault=fault or _charge(status),
        replicas=_lines(status, pulses, preload),
        troubles=_troubles(status),
    )


def lacking(status: Status) -> str:
    """What keeps training from going on, if it is a lack of replicas; or nothing."""
    forming = not status.view.members and status.needed > 1
    if status.outcome is not None or not (status.view.paused or forming):
        return ""
    there = len(status.view.members) or sum(seat.present for seat in status.seats)
    if not 0 < there < status.needed:
        return ""
    return f"waiting: {there} of at least {counted(status.needed, 'replica')}"


def _stage(status: Status, preload: Sequence[str]) -> str:
    view = status.view
    if status.outcome is not None:
        return "finished" if status.outcome.finished else f"failed: {status.outcome.reason}"
    if words := lacking(status):
        return words
    if not view.members:
        if view.lineage:
            return "all replicas were lost, and are being started again"
        there = sum(seat.present for seat in status.seats)
        if there and there >= status.replicas:
            return "forming the group"
        born = any(pulse.pid for pulse in status.starting)
        return first_stage(preload) if not there and not born else "starting replicas"
    pulses = [pulse for pulse in status.pulses if view.member(pulse.replica) is not None]
    if pulses and all(pulse.phase is Phase.STARTING for pulse in pulses):
        if any(pulse.saves for pulse in pulses):
            return "looking for a checkpoint to go on from"
        return "giving all replicas the same state"
    if pulses and all(pulse.phase is Phase.DONE for pulse in pulses):
        return "finishing"
    return TRAINING


def first_stage(preload: Sequence[str]) -> str:
    """What goes on before anybody can be asked."""
    return f"importing {', '.join(preload)}" if preload else "starting replicas"


def _detail(status: Status) -> str:
    there = sum(seat.present for seat in status.seats)
    if status.view.members or status.view.lineage or not there or there >= status.replicas:
        return ""
    return f"{there} of {status.replicas} {'has' if there == 1 else 'have'} joined"


def _lines(status: Status, pulses: dict[int, Pulse], preload: Sequence[str]) -> tuple[ReplicaLine, ...]:
    starting = {pulse.replica: pulse for pulse in status.starting}
    several = len({seat.agent for seat in status.seats} - {""}) > 1
    lines = {}
    for seat in status.seats:
        pulse = pulses.get(seat.replica)
        does, good = _does(status, seat, pulse, starting.get(seat.replica))
        lines[seat.replica] = ReplicaLine(
            replica=seat.replica,
            does=does,
            step=pulse.step if pulse is not None and seat.present and pulse.step else None,
            pid=pulse.pid if pulse is not None else 0,
            agent=seat.agent if several else "",
            good=good,
        )
    for replica, pulse in starting.items():
        if replica not in lines:
            imports = preload and not pulse.pid
            does = f"importing {', '.join(preload)}" if imports else "starting"
            lines[replica] = ReplicaLine(replica=replica, does=does, pid=pulse.pid)
    return tuple(lines[replica] for replica in sorted(lines))


def _does(status: Status, seat: Seat, pulse: Pulse | None, next_one: Pulse | None) -> tuple[str, bool]:
    """In a few words, and whether all is well."""
    if seat.standing is Standing.FINISHED:
        return "finished", True
    if seat.barred:
        return f"excluded after {counted(seat.offences, 'wrong result')}", False
    if pulse is not None and pulse.stopped_s > 0:
        return f"stopped for {duration(pulse.stopped_s)}", False
    if not seat.present:
        return ("restarting", False) if status.outcome is None else ("ended", True)
    if next_one is not None:
        return "restarting", False
    if seat.standing is Standing.LEARNER:
        if status.replicas and seat.replica >= status.replicas:
            return "following, to save checkpoints", True
        return ("catching up" if status.view.members else "waiting for the others"), True
    if pulse is None:
        return "not heard from", False
    if status.view.paused:
        return "waiting for more replicas", False
    match pulse.phase:
        case Phase.STARTING:
            return "getting its state", True
        case Phase.ASIDE:
            return "at other work (job.aside)", True
        case Phase.DONE:
            return "done, waiting for the others", True
        case Phase.WAITING if pulse.quiet_s >= WAITS_AFTER_S:
            return f"waiting for others since {duration(pulse.quiet_s)}", True
        case _:
            return TRAINING, True


def newest_saved(status: Status) -> Pulse | None:
    """Who knows best what is saved; None if the script has nothing saved."""
    saving = [pulse for pulse in status.pulses if pulse.saves]
    return max(saving, key=lambda pulse: (pulse.saved, pulse.saved_ago_s is not None), default=None)


def _checkpoint(status: Status) -> str:
    """The newest one and its age."""
    newest = newest_saved(status)
    if newest is None:
        return ""
    trouble = status.saving.partition("; ")[2]
    words = f"step {newest.saved:,}" if newest.saved >= 0 else "none yet"
    if newest.saved >= 0 and newest.saved_ago_s is not None:
        words += f", {duration(newest.saved_ago_s)} ago"
    return f"{words}; {trouble}" if trouble else words


def _charge(status: Status) -> str:
    if not status.charges:
        return ""
    last = status.charges[-1]
    whose = f"replica {last.replica}" if last.replica >= 0 else "nobody in particular"
    return f"step {last.step}, {whose}: {last.reason}"


def _troubles(status: Status) -> tuple[str, ...]:
    told = []
    if status.silent:
        told.append(f"not heard from: {', '.join(status.silent)}")
    if status.rejected:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(status.rejected.items()))
        told.append(f"turned away: {reasons}")
    if status.trouble:
        told.append(status.trouble)
    return tuple(told)
