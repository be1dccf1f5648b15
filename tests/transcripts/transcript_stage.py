"""The stage of a transcript: the real coordinator core, and just enough of a world around it.

The world is a store that compares before it writes, agents with replicas that do what the transcript says,
and nothing that happens by itself: no time passes and no answer comes unless a line says so. Whatever the
transcript claims about the store is checked against it ("store: committed" fails when the comparison would
have), and so is the first promise of every coordinator: only what the store holds is published.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from transcript_words import action_in_words

from outlast.protocol import coordinator as coord
from outlast.protocol import election
from outlast.protocol.coordinator import CoordinatorCore
from outlast.protocol.messages import (
    Admitted,
    Beat,
    BeatAck,
    Departure,
    Fetch,
    GaveUp,
    Message,
    Phase,
    Pulse,
    Register,
    Report,
    ReportAck,
    ViewNews,
)
from outlast.protocol.roster import Change, Removal, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership, Standing, process_number

PACE_S = 0.1
"""What a step of every replica takes, once it trains."""


@dataclass
class Actor:
    """One replica, as its agent sees it."""

    replica: int
    agent: str
    serial: int = 1
    rejoin: int = 0
    incarnation: int = 0
    view: int = 0
    alive: bool = True
    step: int = 0
    phase: Phase = Phase.STARTING
    phase_since: float = 0.0
    stopped_since: float | None = None


@dataclass
class Troupe:
    """One agent and its beats so far."""

    boot: int = 1
    beats: int = 0


class Phrase:
    """A sentence of the transcript, and the method of the stage that plays it."""

    all: "list[Phrase]" = []  # noqa: RUF012

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)

    def __call__(self, play: Callable[..., None]) -> Callable[..., None]:
        self.play = play
        Phrase.all.append(self)
        return play


class Stage:
    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.actors: dict[int, Actor] = {}
        self.agents: dict[str, Troupe] = {}
        self.spec = JobSpec(name="job", replicas=1, shards=1)
        self.core = CoordinatorCore(self.spec, Timing())
        self.revision = 1
        self.term = 0
        self.document: Membership | None = None
        self.document_revision = 0
        self.in_flight: coord.Commit | None = None
        self.discreet = False

    def play(self, sentence: str) -> None:
        """Do what the sentence says."""
        for phrase in Phrase.all:
            found = phrase.pattern.fullmatch(sentence)
            if found is not None:
                phrase.play(self, *found.groups())
                return
        raise AssertionError(f"nobody understands this line: {sentence!r}")

    def heard(self) -> list[str]:
        """What the coordinator has done since the last time somebody asked."""
        said, self.said = self.said, []
        return said

    def handle(self, event: coord.Event) -> None:
        for action in self.core.handle(event, self.now):
            self._perform(action)

    def _perform(self, action: coord.Action) -> None:
        match action:
            case coord.Commit():
                self.in_flight = action
            case coord.Publish(message=ViewNews(view=view)):
                assert self.document is None or view == self.document.view, "the store holds another view"
                assert self.document is not None or view.number == 0, "the store holds no view"
            case coord.Send(message=Admitted() as admitted):
                self.actors[admitted.replica].incarnation = admitted.incarnation
            case election.Renew() if self.discreet:
                self.handle(election.Renewed(alive=True))
                return
            case coord.Send(message=BeatAck() | ReportAck()) if self.discreet:
                return
        words = action_in_words(action, self.core.membership)
        self.said.append(f"at {self.now:.2f} {words}" if self.discreet else words)

    @Phrase(r"given (\d+) replicas?(?: and (\d+) shards)?(?:, at least (\d+),)?,? each with its own agent")
    def given_replicas(self, replicas: str, shards: str | None, least: str | None) -> None:
        self.spec = JobSpec(
            name="job",
            replicas=int(replicas),
            shards=int(shards or replicas),
            min_replicas=int(least or 1),
        )
        self.core = CoordinatorCore(self.spec, Timing())
        for replica in range(self.spec.replicas):
            self.actors[replica] = Actor(replica, f"agent-{replica}")
            self.agents[f"agent-{replica}"] = Troupe()

    @Phrase(r"given that all of them train in view 1")
    def given_training(self) -> None:
        self.play("the coordinator starts")
        self.play("store: campaign won")
        self.play("store: loaded")
        for replica in self.actors:
            self.play(f"replica {replica} registers")
            self.play("store: committed")
        for replica in self.actors:
            self.play(f"agent-{replica} beats")
            self.play(f"replica {replica} reports view 1")
            self.play(f"replica {replica} computes step 1")
        self.heard()

    @Phrase(r"the coordinator starts")
    def starts(self) -> None:
        for action in self.core.start(self.now):
            self._perform(action)

    @Phrase(r"the coordinator is killed, and a new one starts")
    def starts_again(self) -> None:
        self.core, self.in_flight = CoordinatorCore(self.spec, Timing()), None
        self.starts()

    @Phrase(r"store: campaign won")
    def campaign_won(self) -> None:
        self.revision += 1
        self.term = self.revision
        self.handle(election.Campaigned(True, self.term, self.revision))

    @Phrase(r"store: campaign lost")
    def campaign_lost(self) -> None:
        self.handle(election.Campaigned(False, 0, self.revision))

    @Phrase(r"store: the leadership is gone")
    def leadership_gone(self) -> None:
        self.revision += 1
        self.term = 0
        self.handle(election.WatchProgress(self.revision, True))

    @Phrase(r"store: loaded")
    def loaded(self) -> None:
        self.handle(coord.Loaded(self.document, self.document_revision, self.term))

    @Phrase(r"store: cannot be read")
    def load_failed(self) -> None:
        self.handle(coord.LoadFailed())

    @Phrase(r"store: committed")
    def committed(self) -> None:
        commit = self._write()
        self.handle(coord.Committed(commit.ticket, self.document_revision))

    @Phrase(r"store: committed, but the answer is lost")
    def committed_unknown(self) -> None:
        self.handle(coord.Unknown(self._write().ticket))

    @Phrase(r"store: nothing arrives, and no answer comes")
    def lost_unknown(self) -> None:
        self.handle(coord.Unknown(self._take().ticket))

    @Phrase(r"store: refused")
    def refused(self) -> None:
        commit = self._take()
        assert not self._allowed(commit), "the store would have taken this write"
        self.handle(coord.Refused(commit.ticket))

    @Phrase(r"store: not stored, the disk is full")
    def not_stored(self) -> None:
        self.handle(coord.NotStored(self._take().ticket, "the disk is full"))

    @Phrase(r"elsewhere: another coordinator takes over and commits that replica (\d+) was killed")
    def usurped(self, replica: str) -> None:
        assert self.document is not None
        dead = Removal(
            process=self._process(self.actors[int(replica)]),
            standing=Standing.GONE,
            cause=f"replica {replica} was killed",
            proven=True,
        )
        self.term, self.revision = self.revision + 1, self.revision + 2
        self.document = plan(self.document, Change(removals={int(replica): dead}))
        self.document_revision = self.revision

    def _take(self) -> coord.Commit:
        assert self.in_flight is not None, "no write is under way"
        commit, self.in_flight = self.in_flight, None
        return commit

    def _allowed(self, commit: coord.Commit) -> bool:
        return (commit.revision, commit.term) == (self.document_revision, self.term)

    def _write(self) -> coord.Commit:
        commit = self._take()
        assert self._allowed(commit), "the store would have refused this write"
        self.revision += 1
        self.document, self.document_revision = commit.membership, self.revision
        return commit

    @Phrase(r"replica (\d+) is started again")
    def started_again(self, replica: str) -> None:
        actor = self.actors[int(replica)]
        self.actors[actor.replica] = Actor(actor.replica, actor.agent, serial=actor.serial + 1)

    @Phrase(r"replica (\d+) registers( as a new life)?")
    def registers(self, replica: str, new_life: str | None) -> None:
        actor = self.actors[int(replica)]
        actor.rejoin += 1 if new_life else 0
        register = Register(
            replica=actor.replica, process=self._process(actor), rejoin=actor.rejoin, agent=actor.agent
        )
        self._receive(f"replica {replica}", register)

    @Phrase(
        r"replica (\d+)(?:\.(\d+))? reports view (\d+)(, ready)?(, leaving)?(, staying)?"
        r"(?:, cannot reach ([\d ]+))?(?:, torn from ([\d ]+))?"
    )
    def reports(
        self,
        replica: str,
        incarnation: str | None,
        view: str,
        ready: str | None,
        leaving: str | None,
        staying: str | None,
        unreachable: str | None,
        torn: str | None,
    ) -> None:
        actor = self.actors[int(replica)]
        actor.view = int(view)
        report = Report(
            replica=actor.replica,
            incarnation=int(incarnation or actor.incarnation),
            view=actor.view,
            ready=bool(ready),
            leaving=bool(leaving),
            staying=bool(staying),
            unreachable=tuple(int(peer) for peer in (unreachable or "").split()),
            torn=tuple(int(peer) for peer in (torn or "").split()),
        )
        self._receive(f"replica {replica}", report)

    @Phrase(r"replica (\d+) reports view (\d+), failing in shard (\d+) of step (\d+): (.*)")
    def reports_failing(self, replica: str, view: str, shard: str, step: str, words: str) -> None:
        actor = self.actors[int(replica)]
        report = Report(
            replica=actor.replica,
            incarnation=actor.incarnation,
            view=int(view),
            failing=words,
            failing_step=int(step),
            failing_shard=int(shard),
        )
        self._receive(f"replica {replica}", report)

    @Phrase(r"replicas ([\d ]+) report (.*)")
    def all_report(self, replicas: str, what: str) -> None:
        for replica in replicas.split():
            self.play(f"replica {replica} reports {what}")

    @Phrase(r"replica (\d+) fetches the view")
    def fetches(self, replica: str) -> None:
        self._receive(f"replica {replica}", Fetch())

    @Phrase(r"replica (\d+) loses its connection to the coordinator")
    def disconnects(self, replica: str) -> None:
        self.handle(coord.Disconnected(f"replica {replica}"))

    @Phrase(r"replica (\d+) (computes|waits at) step (\d+)")
    def steps(self, replica: str, does: str, step: str) -> None:
        """What its agent will see; nothing is said yet."""
        actor = self.actors[int(replica)]
        actor.phase = Phase.COMPUTING if does == "computes" else Phase.WAITING
        actor.step, actor.phase_since = int(step), self.now

    @Phrase(r"replica (\d+) is stopped by a signal")
    def stops(self, replica: str) -> None:
        self.actors[int(replica)].stopped_since = self.now

    @Phrase(r"agents ([\d ]+) beat")
    def all_beat(self, agents: str) -> None:
        for agent in agents.split():
            self.beats(f"agent-{agent}")

    @Phrase(r"(agent-\d+) beats: replica (\d+) gives up, its last words are: (.*)")
    def beats_giving_up(self, agent: str, replica: str, last_words: str) -> None:
        gave_up = GaveUp(replica=int(replica), reason=f"replica {replica} gave up", last_words=last_words)
        self.beats(agent, gave_up=gave_up)

    @Phrase(
        r"(agent-\d+) beats: replica (\d+) (was killed by \w+|exited with status \d+|has finished|leaves)"
        r"(?: in shard (\d+) of step (\d+))?"
    )
    def beats_with_an_exit(
        self, agent: str, replica: str, how: str, shard: str | None, step: str | None
    ) -> None:
        actor = self.actors[int(replica)]
        actor.alive = False
        departure = Departure(
            replica=actor.replica,
            process=self._process(actor),
            how=how,
            finished=how == "has finished",
            closes=how == "has finished" and actor.replica == min(self.actors),
            in_order=how in ("has finished", "leaves"),
            step=int(step or -1),
            shard=int(shard or -1),
        )
        self.beats(agent, departures=(departure,))

    @Phrase(r"(agent-\d+) beats")
    def beats(
        self, agent: str, departures: tuple[Departure, ...] = (), gave_up: GaveUp | None = None
    ) -> None:
        troupe = self.agents[agent]
        troupe.beats += 1
        beat = Beat(
            agent=agent,
            boot=troupe.boot,
            number=troupe.beats,
            pulses=tuple(
                self._pulse(actor) for actor in self.actors.values() if actor.agent == agent and actor.alive
            ),
            departures=departures,
            gave_up=gave_up,
        )
        self._receive(agent, beat)

    @Phrase(r"(agent-\d+) is restarted, and its replicas with it")
    def agent_restarts(self, agent: str) -> None:
        self.agents[agent] = Troupe(boot=self.agents[agent].boot + 1)
        for actor in [actor for actor in self.actors.values() if actor.agent == agent]:
            self.actors[actor.replica] = Actor(actor.replica, agent)

    @Phrase(r"the clock ticks")
    def ticks(self) -> None:
        self.handle(coord.Tick())

    def pass_time(self, until: float, sentences: list[str]) -> None:
        """Ticks every 50 ms, the sentences every 100 ms; acknowledgements and renewals are left out."""
        self.discreet = True
        timing = Timing()
        first, last = round(self.now / timing.tick_every_s), round(until / timing.tick_every_s)
        for tick in range(first + 1, last + 1):
            self.now = round(tick * timing.tick_every_s, 6)
            if tick % 2 == 0:
                for sentence in sentences:
                    self.play(sentence)
            self.play("the clock ticks")
        self.discreet = False

    def _receive(self, sender: str, message: Message) -> None:
        self.handle(coord.Received(sender, message))

    def _process(self, actor: Actor) -> int:
        return process_number(self.agents[actor.agent].boot, actor.serial)

    def _pulse(self, actor: Actor) -> Pulse:
        stopped_s = self.now - actor.stopped_since if actor.stopped_since is not None else 0.0
        return Pulse(
            replica=actor.replica,
            process=self._process(actor),
            incarnation=actor.incarnation,
            view=actor.view,
            step=actor.step,
            phase=actor.phase,
            quiet_s=self.now - actor.phase_since,
            pace_s=PACE_S if actor.phase is not Phase.STARTING else 0.0,
            stopped_s=stopped_s,
        )
