"""An agent's decisions: which processes to run, what to tell of them, when to start them again.

The agent is the only one that *knows* whether a process lives: it is its parent. So its word on exits is
proof, and it is told to the coordinator until the coordinator has agreed on it. Everything else that it sees
(progress, being stopped) goes into every beat, and the coordinator draws the conclusions.

Processes are numbered in the order of their start, across restarts of the agent itself (its *boot*, which
grows with each), so that late news of an old process can never be mistaken for news of a new one.
"""

from dataclasses import dataclass, field

from outlast.protocol.hang import Pace
from outlast.protocol.messages import (
    Beat,
    BeatAck,
    Check,
    Departure,
    Ended,
    Fetch,
    GaveUp,
    Message,
    Phase,
    Pulse,
    ViewNews,
)
from outlast.protocol.restarts import RestartCount, RestartPolicy
from outlast.protocol.timing import Timing
from outlast.protocol.views import Outcome, View, process_number

LAST_WORDS_LIMIT = 8192


@dataclass(frozen=True)
class StartReplica:
    replica: int
    process: int
    again: bool = False
    """Not its first start in this run: others are probably training, and should not feel it."""


@dataclass(frozen=True)
class KillReplica:
    replica: int
    process: int
    reason: str


@dataclass(frozen=True)
class AskToLeave:
    """Have the replica leave at its next step."""

    replica: int
    process: int


@dataclass(frozen=True)
class TellCoordinator:
    message: Message


@dataclass(frozen=True)
class JobEnded:
    outcome: Outcome


AgentAction = StartReplica | KillReplica | AskToLeave | TellCoordinator | JobEnded


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the agent sees of a living process right now."""

    pid: int = 0
    incarnation: int = 0
    view: int = 0
    step: int = 0
    phase: Phase = Phase.STARTING
    quiet_s: float = 0.0
    stopped_s: float = 0.0
    shard: int = -1


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended."""

    how: str
    """For people: "was killed by SIGKILL", "exited with status 1"."""
    clean: bool = False
    killed: bool = False
    own_fault: bool = False
    """An uncaught exception or a crash, rather than something that was done to it."""
    last_words: str = ""


@dataclass
class _Life:
    """One process of one replica."""

    process: int
    started_at: float
    sample: Sample = field(default_factory=Sample)
    pace: Pace = field(default_factory=Pace)
    evicted_at: float | None = None
    stopped_at: float = float("-inf")
    """When it was last seen stopped."""
    killed: bool = False
    failing: bool = False


class AgentCore:
    """One agent and its replicas."""

    def __init__(
        self, *, agent: str, boot: int, replicas: tuple[int, ...], timing: Timing, policy: RestartPolicy
    ) -> None:
        self.agent = agent
        self.boot = boot
        self.view = View()
        self.outcome: Outcome | None = None
        self.leaving = False
        self._timing = timing
        self._serial = 0
        self._beats = 0
        self._beat_at = float("-inf")
        self._counts = {replica: RestartCount(policy) for replica in replicas}
        self._lives: dict[int, _Life] = {}
        self._started: set[int] = set()
        self._start_at: dict[int, float] = {}
        self._departures: dict[int, Departure] = {}
        self._gave_up: GaveUp | None = None
        self._barred: set[int] = set()

    def living(self) -> dict[int, int]:
        """Replica → process, of all that run."""
        return {replica: life.process for replica, life in self._lives.items()}

    @property
    def settled(self) -> bool:
        """Whether nothing runs and everything that happened has been agreed on."""
        return not self._lives and not self._start_at and not self._departures

    def start(self, now: float) -> list[AgentAction]:
        return [action for replica in self._counts for action in self._start(replica, now)]

    def tick(self, now: float) -> list[AgentAction]:
        actions: list[AgentAction] = []
        for replica in [replica for replica, at in self._start_at.items() if now >= at]:
            del self._start_at[replica]
            actions += self._start(replica, now)
        actions += self._replace_evicted(now)
        if now - self._beat_at >= self._timing.beat_every_s:
            actions += self.beat(now)
        return actions

    def sampled(self, samples: dict[int, Sample], now: float) -> None:
        for replica, sample in samples.items():
            life = self._lives.get(replica)
            if life is None:
                continue
            if sample.incarnation != life.sample.incarnation:
                life.evicted_at = None
                life.pace = Pace()
            life.sample = sample
            if sample.stopped_s > 0:
                life.stopped_at = now
            if sample.phase is not Phase.STARTING:
                life.pace.note(sample.step, now)

    def exited(self, replica: int, process: int, ending: Exit, now: float) -> list[AgentAction]:
        life = self._lives.get(replica)
        if life is None or life.process != process:
            return []
        del self._lives[replica]
        how = "leaves" if self.leaving else "has finished" if ending.clean else ending.how
        finished = ending.clean and not self.leaving
        if self.outcome is not None:
            return []
        at_work = ending.own_fault and life.sample.shard >= 0
        self._departures[process] = Departure(
            replica=replica,
            process=process,
            how=how,
            finished=finished,
            in_order=ending.clean and life.sample.phase is Phase.DONE,
            step=life.sample.step if at_work else -1,
            shard=life.sample.shard if at_work else -1,
            last_words=ending.last_words[-LAST_WORDS_LIMIT:] if at_work else "",
        )
        if not finished and not self.leaving and replica not in self._barred:
            self._plan_restart(replica, life, ending, now)
        return self.beat(now)

    def preempted(self, now: float) -> list[AgentAction]:
        """The machine is about to go: have every replica leave in order, and start none again."""
        self.leaving = True
        self._start_at.clear()
        asks = [AskToLeave(replica, life.process) for replica, life in self._lives.items()]
        return [*asks, *self.beat(now)]

    def received(self, message: Message, now: float) -> list[AgentAction]:
        match message:
            case BeatAck():
                for process in message.noted:
                    self._departures.pop(process, None)
                self._barred |= set(message.barred)
                for replica in self._barred & self._start_at.keys():
                    del self._start_at[replica]
                for life in self._lives.values():
                    life.failing |= life.process in message.failing
                    if life.process not in message.evicted:
                        life.evicted_at = None
                    elif life.evicted_at is None:
                        life.evicted_at = now
                if message.view > self.view.number:
                    return [TellCoordinator(Fetch())]
            case ViewNews() if message.view.number > self.view.number:
                self.view = message.view
            case Check():
                return self.beat(now)
            case Ended() if self.outcome is None:
                self.outcome = message.outcome
                self._start_at.clear()
                self._departures.clear()
                return [JobEnded(message.outcome)]
        return []

    def beat(self, now: float) -> list[AgentAction]:
        self._beats += 1
        self._beat_at = now
        return [
            TellCoordinator(
                Beat(
                    agent=self.agent,
                    boot=self.boot,
                    number=self._beats,
                    pulses=tuple(self._pulse(replica, life) for replica, life in self._lives.items()),
                    departures=tuple(self._departures.values()),
                    gave_up=self._gave_up,
                )
            )
        ]

    def _pulse(self, replica: int, life: _Life) -> Pulse:
        return Pulse(
            replica=replica,
            process=life.process,
            pid=life.sample.pid,
            incarnation=life.sample.incarnation,
            view=life.sample.view,
            step=life.sample.step,
            phase=life.sample.phase,
            quiet_s=life.sample.quiet_s,
            pace_s=life.pace.step_s,
            stopped_s=life.sample.stopped_s,
            shard=life.sample.shard,
        )

    def _start(self, replica: int, now: float) -> list[AgentAction]:
        self._serial += 1
        process = process_number(self.boot, self._serial)
        self._lives[replica] = _Life(process, now)
        again = self.boot > 1 or replica in self._started
        self._started.add(replica)
        return [StartReplica(replica, process, again)]

    def _plan_restart(self, replica: int, life: _Life, ending: Exit, now: float) -> None:
        delay = self._counts[replica].failed(
            lived_s=now - life.started_at,
            joined=life.sample.incarnation > 0,
            # Killing one that is failing only shortens its exit, which makes it no less its own failure.
            killed_in_progress=ending.killed and life.pace.progressed and not life.failing,
            killed=ending.killed and not life.failing,
        )
        if delay is not None:
            self._start_at[replica] = now + delay
        elif self._gave_up is None:
            tries = self._counts[replica].short_lives
            often = f"{tries} times in a row" if tries > 1 else "at once"
            self._gave_up = GaveUp(
                replica=replica,
                reason=f"replica {replica} {ending.how}, {often}"
                + ("; its last words:" if ending.last_words.strip() else ""),
                last_words=ending.last_words[-LAST_WORDS_LIMIT:],
            )

    def _replace_evicted(self, now: float) -> list[AgentAction]:
        """Kill replicas that were evicted and do not come back by themselves."""
        actions: list[AgentAction] = []
        if self.leaving or self.outcome is not None:
            return actions
        for replica, life in self._lives.items():
            if life.killed:
                continue
            if replica in self._barred:
                life.killed = True
                why = "was found to compute wrong results again and again, and is not let in any more"
                actions.append(KillReplica(replica, life.process, why))
                continue
            if life.evicted_at is None:
                continue
            # One that was stopped until a moment ago has had no chance to come back.
            since = life.evicted_at if life.sample.stopped_s > 0 else max(life.evicted_at, life.stopped_at)
            if now - since >= self._linger_s(life, now):
                life.killed = True
                why = "failed and did not end" if life.failing else "was evicted and did not come back"
                actions.append(KillReplica(replica, life.process, why))
        return actions

    def _linger_s(self, life: _Life, now: float) -> float:
        if life.sample.stopped_s > 0:
            return self._timing.linger_stopped_s
        quiet_s = min(life.sample.quiet_s, now - life.stopped_at)
        still = quiet_s >= self._timing.detect_within_s and not life.failing
        return self._timing.linger_still_s if still else self._timing.linger_s
