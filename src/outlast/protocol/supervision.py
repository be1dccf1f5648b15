"""An agent's decisions: which processes to run, what to tell of them, when to start them again.

The agent is the only one that *knows* whether a process lives: it is its parent. So its word on exits is
proof, and it is told to the coordinator until the coordinator has agreed on it. Everything else that it sees
(progress, being stopped) goes into every beat, and the coordinator draws the conclusions.

Whether a replica has done its work is for itself to say, on its page (`Phase.DONE`), and never for its exit
status: a library that calls `os._exit(0)` in the middle of a step has ended nothing. Once a process has
joined, every exit without that word is a death, and one of its own making. A script that never joins has only
its status to speak for it.

Processes are numbered in the order of their start, across restarts of the agent itself (its *boot*, which
grows with each), so that late news of an old process can never be mistaken for news of a new one.

Where machines join a job, an agent is taken on first (`Enlist`): it is given its boot, and then told with
every answer which replicas are in its care. See `placing.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outlast.protocol.hang import Pace
from outlast.protocol.messages import (
    Beat,
    BeatAck,
    Check,
    Declined,
    Departure,
    Ended,
    Enlist,
    Enlisted,
    Fetch,
    GaveUp,
    Message,
    Phase,
    Pulse,
    ViewNews,
)
from outlast.protocol.restarts import Legacy, RestartCount, RestartPolicy
from outlast.protocol.timing import Timing
from outlast.protocol.views import Outcome, View, boot_of, process_number, serial_of

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
class TellPeople:
    """Something about a replica that its exit status does not show."""

    replica: int
    what: str


@dataclass(frozen=True)
class JobEnded:
    outcome: Outcome


@dataclass(frozen=True)
class NotTakenOn:
    """This agent has no part in the job, or not any more: end everything."""

    reason: str


AgentAction = StartReplica | KillReplica | AskToLeave | TellCoordinator | TellPeople | JobEnded | NotTakenOn


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
    joined: bool = False
    """Whether the process has ever asked to take part; between two lives of it, it has no incarnation."""
    contributed: int = 0
    """The newest step whose result it has helped to compute."""
    ended: bool = False
    """Whether it has come to the end of its loop of steps."""
    closes: bool = False
    """Whether it has left the loop for good, and the job is done when its program has ended well."""
    total: int = 0
    loss: float | None = None
    samples: int = 0
    saves: bool = False
    saved: int = -1
    saved_ago_s: float | None = None
    """These are for people; see `Pulse`."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a process ended."""

    how: str
    """For people: "was killed by SIGKILL", "exited with status 1"."""
    clean: bool = False
    """With status 0, which says nothing about the work of a process that has joined."""
    killed: bool = False
    own_fault: bool = False
    """An uncaught exception, an exit before its time or a crash, rather than something done to it."""
    last_words: str = ""


@dataclass
class _Life:
    """One process of one replica."""

    process: int
    started_at: float
    behind: int
    """The newest step that any life of the job had reached when this one began."""
    joined: bool = False
    sample: Sample = field(default_factory=Sample)
    pace: Pace = field(default_factory=Pace)
    evicted_at: float | None = None
    stopped_at: float = float("-inf")
    """When it was last seen stopped."""
    killed: bool = False
    failing: bool = False
    moved: bool = False
    """Its replica was given another place, and it is to end."""

    @property
    def done(self) -> bool:
        return self.sample.phase is Phase.DONE

    @property
    def went_further(self) -> bool:
        """Whether the job has come further than ever with the help of this life."""
        return self.sample.contributed > self.behind


class AgentCore:
    """One agent and its replicas."""

    def __init__(
        self,
        *,
        agent: str,
        boot: int,
        replicas: tuple[int, ...],
        timing: Timing,
        policy: RestartPolicy,
        legacy: Legacy | None = None,
        enlist: Enlist | None = None,
    ) -> None:
        """`legacy` is what an agent before this one has counted. One that has to `enlist` first is told its
        boot and its replicas by the leader."""
        legacy = legacy or Legacy()
        self._enlist = enlist
        self._tallies = legacy.tallies
        self._places: dict[int, int] = {}
        self._untold: dict[int, tuple[Sample, Exit]] = {}
        self._acked = 0
        self.agent = agent
        self.boot = boot
        self.view = View()
        self.outcome: Outcome | None = None
        self.leaving = False
        self._timing = timing
        self._serial = 0
        self._beats = 0
        self._beat_at = float("-inf")
        self._policy = policy
        self._counts = {replica: RestartCount(policy, legacy.tallies.get(replica)) for replica in replicas}
        self._lives: dict[int, _Life] = {}
        self._started: set[int] = set()
        self._start_at: dict[int, float] = {}
        self._departures: dict[int, Departure] = {}
        self._gave_up: GaveUp | None = None
        self._barred: set[int] = set()
        self._furthest = legacy.furthest
        """The newest step that any life of the job is known to have reached."""

    def living(self) -> dict[int, int]:
        """Replica → process, of all that run."""
        return {replica: life.process for replica, life in self._lives.items()}

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The exits that have not been agreed on yet."""
        return tuple(self._departures.values())

    @property
    def legacy(self) -> Legacy:
        """What the next agent has to know, should this one die."""
        return Legacy({replica: count.tally for replica, count in self._counts.items()}, self._furthest)

    @property
    def settled(self) -> bool:
        """Whether nothing runs and everything that happened has been agreed on."""
        return not self._lives and not self._start_at and not self._departures

    def start(self, now: float, untold: Mapping[int, tuple[Sample, Exit]] | None = None) -> list[AgentAction]:
        """Begin. `untold` are the last lives under an agent before this one, as far as that one was stopped
        when they ended: they are judged as if they had ended here, so that work that is done stays done."""
        self._untold = dict(untold or {})
        if self._enlist is not None:
            return self.beat(now)
        return [action for replica in list(self._counts) for action in self._begin(replica, now)]

    def _begin(self, replica: int, now: float) -> list[AgentAction]:
        """Its first life here, or what is left to say of the last one under an agent before this one."""
        if replica not in self._untold:
            return self._start(replica, now)
        sample, ending = self._untold.pop(replica)
        life = _Life(self._next_process(replica), now, self._furthest, joined=sample.joined)
        life.sample, self._lives[replica] = sample, life
        return self.exited(replica, life.process, ending, now)

    def tick(self, now: float) -> list[AgentAction]:
        actions: list[AgentAction] = []
        due = [replica for replica, at in self._start_at.items() if now >= at]
        for replica in due:
            del self._start_at[replica]
            actions += self._start(replica, now)
        actions += self._replace_evicted(now)
        if now - self._beat_at >= self._timing.beat_due_s:
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
            life.joined |= sample.joined or sample.incarnation > 0
            self._furthest = max(self._furthest, sample.step)
            if sample.stopped_s > 0:
                life.stopped_at = now
            if sample.phase is not Phase.STARTING:
                life.pace.note(sample.step, now)

    def exited(self, replica: int, process: int, ending: Exit, now: float) -> list[AgentAction]:
        life = self._lives.get(replica)
        if life is None or life.process != process:
            return []
        del self._lives[replica]
        if self.outcome is not None:
            return []
        said: list[AgentAction] = []
        if self._too_early(life, ending):
            ending = replace(ending, how=_in_the_middle(life, ending), clean=False, own_fault=True)
            said.append(TellPeople(replica, ending.how))
        how = "leaves" if self.leaving else "has finished" if ending.clean else ending.how
        finished = ending.clean and not self.leaving
        at_work = ending.own_fault and life.sample.shard >= 0
        self._departures[process] = Departure(
            replica=replica,
            process=process,
            how=how,
            finished=finished,
            in_order=ending.clean and life.done,
            closes=finished and life.sample.closes,
            # Its page names the newest step that it has the result of.
            step=life.sample.step + 1 if at_work else -1,
            shard=life.sample.shard if at_work else -1,
            last_words=ending.last_words[-LAST_WORDS_LIMIT:] if at_work else "",
        )
        if life.moved:
            if replica in self._counts and not self.leaving:
                # It was taken away and given back meanwhile.
                self._start_at[replica] = now
        elif not finished and not self.leaving and replica not in self._barred:
            if (life.sample.ended or life.done) and (ending.own_fault or life.failing):
                self._give_up_at_the_end(replica, life, ending)
            else:
                self._plan_restart(replica, life, ending, now)
        return [*said, *self.beat(now)]

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
                self._furthest = max(self._furthest, message.furthest)
                for replica in self._barred & self._start_at.keys():
                    del self._start_at[replica]
                for life in self._lives.values():
                    life.failing |= life.process in message.failing
                    if life.process not in message.evicted:
                        life.evicted_at = None
                    elif life.evicted_at is None:
                        life.evicted_at = now
                adopted = [action for one in message.adopted for action in self._adopt(*one, now)]
                if self._enlist is not None and message.number > self._acked:
                    self._acked = message.number
                    adopted += self._take_care(dict(message.places), now)
                if message.view > self.view.number:
                    return [*adopted, TellCoordinator(Fetch())]
                return adopted
            case ViewNews() if message.view.number > self.view.number:
                self.view = message.view
            case Check():
                return self.beat(now)
            case Enlisted() if self._enlist is not None and message.start == self._enlist.start:
                if not self.boot:
                    self.boot = message.boot
                    return self.beat(now)
            case Declined() if self._is_meant(message):
                return [NotTakenOn(message.reason)]
            case Ended() if self.outcome is None:
                self.outcome = message.outcome
                self._start_at.clear()
                self._departures.clear()
                return [JobEnded(message.outcome)]
        return []

    def _is_meant(self, message: Declined) -> bool:
        if self._enlist is None:
            return False
        return message.boot == self.boot if self.boot else message.start == self._enlist.start

    def beat(self, now: float) -> list[AgentAction]:
        self._beat_at = now
        if not self.boot and self._enlist is not None:
            return [TellCoordinator(self._enlist)]
        self._beats += 1
        return [
            TellCoordinator(
                Beat(
                    agent=self.agent,
                    boot=self.boot,
                    number=self._beats,
                    pulses=tuple(self._pulse(replica, life) for replica, life in self._lives.items()),
                    departures=tuple(self._departures.values()),
                    gave_up=self._gave_up,
                    leaving=self.leaving,
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
            total=life.sample.total,
            loss=life.sample.loss,
            samples=life.sample.samples,
            saves=life.sample.saves,
            saved=life.sample.saved,
            saved_ago_s=life.sample.saved_ago_s,
        )

    def _start(self, replica: int, now: float) -> list[AgentAction]:
        before = self._furthest > 0 if self._enlist is not None else self.boot > 1
        again = before or replica in self._started
        process = self._next_process(replica)
        self._lives[replica] = _Life(process, now, behind=self._furthest)
        return [StartReplica(replica, process, again)]

    def _too_early(self, life: _Life, ending: Exit) -> bool:
        """Whether it ended as if all were well, and had not said so."""
        return ending.clean and life.joined and not life.done and not self.leaving

    def _adopt(self, replica: int, process: int, now: float) -> list[AgentAction]:
        """Care for a replica whose own agent has left. Its processes are numbered on from its newest one."""
        if replica in self._counts or self.leaving or self.boot < boot_of(process):
            return []
        self._counts[replica] = RestartCount(self._policy)
        if self.boot == boot_of(process):
            self._serial = max(self._serial, serial_of(process))
        words = f"is started by {self.agent}, since its own agent has left"
        return [TellPeople(replica, words), *self._start(replica, now)]

    def _take_care(self, places: dict[int, int], now: float) -> list[AgentAction]:
        """Run these, and no others."""
        actions: list[AgentAction] = []
        for replica in [replica for replica in self._counts if self._places[replica] != places.get(replica)]:
            del self._counts[replica], self._places[replica]
            self._start_at.pop(replica, None)
            life = self._lives.get(replica)
            if life is None:
                continue
            life.moved = True
            if not life.killed:
                life.killed = True
                actions.append(KillReplica(replica, life.process, "is in the care of another machine now"))
        for replica, place in places.items():
            if replica in self._counts or self.leaving or self.outcome is not None:
                continue
            self._counts[replica] = RestartCount(self._policy, self._tallies.get(replica))
            self._places[replica] = place
            if replica not in self._lives:
                actions += self._begin(replica, now)
        return actions

    def _next_process(self, replica: int) -> int:
        self._serial += 1
        self._started.add(replica)
        return process_number(max(self.boot, self._places.get(replica, 0)), self._serial)

    def _plan_restart(self, replica: int, life: _Life, ending: Exit, now: float) -> None:
        # Killing one that is failing only shortens its exit, which makes it no less its own failure.
        own_fault = ending.own_fault or life.failing
        delay = self._counts[replica].failed(
            lived_s=now - life.started_at,
            joined=life.joined,
            killed_in_progress=ending.killed and life.pace.progressed and not own_fault,
            killed=ending.killed and not own_fault,
            own_fault=own_fault,
            went_further=life.went_further,
        )
        if delay is not None:
            self._start_at[replica] = now + delay
        elif self._gave_up is None:
            tries = self._counts[replica].in_a_row
            often = f"{tries} times in a row" if tries > 1 else "at once"
            self._gave_up = GaveUp(
                replica=replica,
                reason=f"replica {replica} {ending.how}, {often}"
                + ("; its last words:" if ending.last_words.strip() else ""),
                last_words=ending.last_words[-LAST_WORDS_LIMIT:],
            )

    def _give_up_at_the_end(self, replica: int, life: _Life, ending: Exit) -> None:
        """What fails after the last step fails again: nothing is left to train that could make a difference,
        and training it all once more would not either."""
        if self._gave_up is None:
            self._gave_up = GaveUp(
                replica=replica,
                reason=f"replica {replica} {ending.how}, after the last step ({life.sample.step})"
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


def _in_the_middle(life: _Life, ending: Exit) -> str:
    where = f"after step {life.sample.step}" if life.sample.step else "before its first step"
    return (
        f"{ending.how} in the middle of the job ({where}), without leaving the `with` block of outlast.join"
    )
