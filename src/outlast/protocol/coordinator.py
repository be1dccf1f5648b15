"""The coordinator: decides membership, one committed document at a time.

The core below is the whole coordinator without its sockets and its disk. While it leads, it listens (into
`Evidence`), plans (with `roster.plan`), and commits. Three rules make it safe to kill at any moment:

- **Commit, then speak.** A view is published only after the store has accepted it. What nobody agreed on,
  nobody hears of.
- **Compare, then write.** Every write compares the leader's term and the document's revision in one
  transaction. A leader that has been replaced, or that works from an old document, is refused.
- **Read, don't assume; and prove what was read.** When the outcome of a write is unknown or refused, the
  document is read again before anything else is decided. Reading is not enough when the write may still be on
  its way, or when the store may answer with the past: then the document is written once more, as it was read.
  If that is accepted it was the newest, and no late write comes behind it. Nobody hears of it before that.

At most one commit is in flight; what is learned meanwhile goes into the next one, so ten deaths at once cost
two views, not ten. In a large job what can wait goes into one decision per tick: a look at everything for
every word of a thousand replicas, which all have something to say when a view or a leader is new, would take
longer than they are patient. And whoever comes waits for others that come: a view is told to everybody, and
when a hundred machines start, one after the other, there need not be two hundred of them. Deaths do not wait.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from outlast.protocol.election import Campaign, Election, ElectionEvent, Office, Renew, Watch
from outlast.protocol.evidence import Evidence, outstanding
from outlast.protocol.messages import (
    Admitted,
    Ask,
    Beat,
    BeatAck,
    Check,
    Declined,
    Ended,
    Enlist,
    Enlisted,
    Evicted,
    Fetch,
    Message,
    NotLeading,
    Register,
    Report,
    ReportAck,
    Status,
    ViewNews,
)
from outlast.protocol.roster import Change, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership, Seat, Standing

GATHERS_FROM = 64
"""A job of so many replicas is large: to look at all of them takes as long as to hear a dozen."""
REST_PER_SEAT_S = 0.001
"""So long after a view nobody joins a large job, for each of its seats: ten times what telling it takes."""


@dataclass(frozen=True)
class Load:
    """Read the document and the leadership key."""


@dataclass(frozen=True)
class Commit:
    """Write the document if it is still at `revision` (0: absent) and the leadership key at `term`."""

    ticket: int
    membership: Membership
    revision: int
    term: int
    causes: Mapping[int, str] = field(default_factory=dict)
    """Why replicas are removed, if some are; see `minutes.py`."""


@dataclass(frozen=True)
class Send:
    to: Hashable
    message: Message


@dataclass(frozen=True)
class Publish:
    """Send to every agent, replica and observer that is connected."""

    message: Message


@dataclass(frozen=True)
class Received:
    sender: Hashable
    message: Message


@dataclass(frozen=True)
class Disconnected:
    """The connection to a peer was lost; a hint, never proof."""

    sender: Hashable


@dataclass(frozen=True)
class Loaded:
    membership: Membership | None
    revision: int
    term: int
    proven: bool = True
    """Whether this is the newest for sure; some stores may answer with what was true a moment ago."""


@dataclass(frozen=True)
class LoadFailed:
    pass


@dataclass(frozen=True)
class Committed:
    ticket: int
    revision: int


@dataclass(frozen=True)
class Refused:
    """A comparison failed: nothing was written."""

    ticket: int


@dataclass(frozen=True)
class Unknown:
    """The write may or may not have happened."""

    ticket: int


@dataclass(frozen=True)
class NotStored:
    """The write did not happen, for a reason that may pass (a full disk)."""

    ticket: int
    reason: str


@dataclass(frozen=True)
class Tick:
    pass


Action = Campaign | Renew | Watch | Load | Commit | Send | Publish
StoreEvent = Loaded | LoadFailed | Committed | Refused | Unknown | NotStored
Event = ElectionEvent | StoreEvent | Received | Disconnected | Tick


class CoordinatorCore:
    """One coordinator process, leading or not."""

    def __init__(self, spec: JobSpec, timing: Timing) -> None:
        self._spec = spec
        self._timing = timing
        self.election = Election(timing)
        self.membership: Membership | None = None
        self.evidence: Evidence | None = None
        self.trouble = ""
        self.causes: Mapping[int, str] = {}
        """Why the newest commit of this coordinator has removed whom it has."""
        self._revision = 0
        self._loading = False
        self._retry_at = 0.0
        self._ticket = 0
        self._in_flight: Commit | None = None
        self._one_may_be_late = False
        self._awake_at: float | None = None
        self._senders: dict[int, Hashable] = {}
        self._told_anew = False
        self._pressing = False
        """Whether something was told that no view should go without."""
        self._barred: tuple[int, ...] = ()
        self._places: dict[str, tuple[tuple[int, int], ...]] = {}
        self._joins_at = float("-inf")
        self.gathers = spec.processes >= GATHERS_FROM
        """Whether what can wait is decided on at the next tick."""

    @property
    def leading(self) -> bool:
        """Whether this coordinator leads and knows what has been agreed."""
        return self.election.office is Office.LEADING and self.membership is not None

    def start(self, now: float) -> list[Action]:
        return list(self.election.start(now))

    def handle(self, event: Event, now: float) -> list[Action]:
        was = self._tenure()
        actions: list[Action] = list(self.election.lapse(now))
        if self._tenure() != was:
            actions += self._office_changed(now)
            was = 0
        self._notice_stall(now)
        match event:
            case Tick():
                actions += self.election.tick(now)
            case Received():
                actions += self._received(event, now)
            case Disconnected():
                actions += self._disconnected(event.sender)
            case Loaded() | LoadFailed() | Committed() | Refused() | Unknown() | NotStored():
                actions += self._store_answered(event, now)
            case _:
                actions += self.election.handle(event, now)
        if self._tenure() != was:
            actions += self._office_changed(now)
        if not isinstance(event, Received | Disconnected):
            actions += self._retry_load(now)
        return actions + self._decide(now) if self._is_due(event) else actions

    def _is_due(self, event: Event) -> bool:
        """Whether to look for what has to be decided. What only time brings out is looked for at every tick,
        so that the cost of a message does not grow with the size of the job."""
        told_anew, self._told_anew = self._told_anew, False
        if isinstance(event, Tick) or self._pressing:
            return True
        return not self.gathers and (told_anew or not isinstance(event, Received))

    def status(self, now: float, rejected: dict[str, int]) -> Status | None:
        if not self.leading or self.membership is None or self.evidence is None:
            return None
        return Status(
            job=self.membership.spec.name,
            view=self.membership.view,
            seats=tuple(self.membership.seats.values()),
            pulses=tuple(self.evidence.pulses(self.membership)),
            starting=tuple(self.evidence.starting(self.membership)),
            replicas=self.membership.spec.replicas,
            silent=tuple(self.evidence.silent_agents(now)),
            hosts=self.membership.hosts,
            places=self.membership.places,
            needed=self.membership.needed,
            rejected=rejected,
            intents=self.membership.intents,
            charges=self.membership.charges,
            saving=self._saving(self.membership),
            trouble=self.trouble,
            outcome=self.membership.outcome,
        )

    def _saving(self, membership: Membership) -> str:
        """The chief knows how the checkpoints stand; after a change of views, whoever does."""
        assert self.evidence is not None
        said = [
            self.evidence.reports[m.replica].saving
            for m in membership.view.members
            if m.replica in self.evidence.reports
        ]
        return next((one for one in said if one), "")

    def _tenure(self) -> int:
        return self.election.term if self.election.office is Office.LEADING else 0

    def _office_changed(self, now: float) -> list[Action]:
        """Whatever was known belongs to an earlier tenure; a new leader starts from the store alone."""
        self.membership = None
        self.evidence = Evidence(self._timing, now) if self._tenure() else None
        self._in_flight = None
        self._one_may_be_late = False
        self._loading = False
        self._retry_at = now
        self._pressing = False
        self._joins_at = float("-inf")
        self._senders.clear()
        return []

    def _retry_load(self, now: float) -> list[Action]:
        waiting = self._tenure() and self.membership is None and not self._loading and self._in_flight is None
        if not waiting or now < self._retry_at:
            return []
        self._loading = True
        return [Load()]

    def _notice_stall(self, now: float) -> None:
        """Ticks come often, so a long gap before any event means that this process was not running."""
        last, self._awake_at = self._awake_at, now
        if last is not None and now - last > self._timing.stalled_after_s and self.evidence is not None:
            self.evidence.wake(now)

    def _received(self, event: Received, now: float) -> list[Action]:
        if self.evidence is None:
            return [Send(event.sender, NotLeading(leader=self.election.leader))]
        if self.membership is None:
            # The document is being read again. Nothing can be answered, but whoever speaks is alive.
            self.evidence.overhear(event.sender, event.message, now)
            return []
        if self.membership.outcome is not None and not isinstance(event.message, Ask | Fetch):
            return [Send(event.sender, Ended(outcome=self.membership.outcome))]
        match event.message:
            case Beat() as beat:
                return self._beat(event.sender, beat, now)
            case Enlist() as enlist:
                return self._enlist(event.sender, enlist, now)
            case Register() as register:
                return self._register(event.sender, register, now)
            case Report() as report:
                return self._report(event.sender, report, now)
            case Fetch():
                return [Send(event.sender, ViewNews(view=self.membership.view))]
        return []

    def _beat(self, sender: Hashable, beat: Beat, now: float) -> list[Action]:
        assert self.membership is not None and self.evidence is not None
        membership = self.membership
        host = membership.hosts.get(beat.agent)
        if host is not None and beat.boot < host.boot:
            return [Send(sender, Declined(boot=beat.boot, reason=_superseded(beat.agent)))]
        known = beat.agent in self.evidence.agents
        told = self.evidence.note_beat(sender, beat, now)
        self._told_anew |= told
        died = beat.gave_up is not None or any(not departure.finished for departure in beat.departures)
        # One that is known, and proves something without telling of an exit, has been started anew.
        self._pressing |= told and (died or (known and not beat.departures))
        void = [
            seat
            for pulse in beat.pulses
            if (seat := membership.seats.get(pulse.replica)) is not None
            and seat.process == pulse.process
            and seat.standing is Standing.EVICTED
            and not membership.counts_on(seat)
        ]
        ack = BeatAck(
            number=beat.number,
            view=membership.view.number,
            noted=tuple(d.process for d in beat.departures if not outstanding(d, membership)),
            evicted=tuple(seat.process for seat in void),
            failing=tuple(seat.process for seat in void if seat.failing),
            barred=self._barred,
            furthest=self.evidence.furthest,
            adopted=tuple(
                (replica, membership.seats[replica].process)
                for replica, agent in membership.adopted.items()
                if agent == beat.agent
            ),
            places=self._places.get(beat.agent, ()),
        )
        return [Send(sender, ack)]

    def _enlist(self, sender: Hashable, enlist: Enlist, now: float) -> list[Action]:
        assert self.membership is not None and self.evidence is not None
        if not self.membership.spec.is_placed:
            reason = "the agents of this job were started with it, and no others are taken on"
            return [Send(sender, Declined(start=enlist.start, reason=reason))]
        host = self.membership.hosts.get(enlist.agent)
        if host is not None and host.start == enlist.start:
            return [Send(sender, Enlisted(start=host.start, boot=host.boot))]
        self.evidence.note_enlist(sender, enlist, now)
        if not self.evidence.may_have_a_namesake(enlist, self.membership, now):
            self._told_anew = True
            return []
        if self.evidence.has_a_namesake(enlist):
            return [Send(sender, Declined(start=enlist.start, reason=_namesake(enlist.agent)))]
        # It asks again, and by then the other one has been heard, or has been silent for long enough.
        return []

    def _register(self, sender: Hashable, register: Register, now: float) -> list[Action]:
        assert self.membership is not None and self.evidence is not None
        self.evidence.note_register(sender, register, now)
        self._told_anew = True
        seat = self.membership.seats.get(register.replica)
        return self._welcome(sender, register, seat) if seat is not None else []

    def _welcome(self, sender: Hashable, register: Register, seat: Seat) -> list[Action]:
        """The answer to a registration whose life the document already knows."""
        if (register.process, register.rejoin) != (seat.process, seat.rejoin):
            return []
        assert self.membership is not None
        if not seat.present:
            # One that is leaving hears of that from its view; until then the others count on it.
            departing = self.membership.counts_on(seat)
            return [] if departing else [Send(sender, self._evicted(seat.replica, seat.incarnation))]
        view = self.membership.view
        held = view.holds(seat.replica, seat.incarnation)
        admitted = Admitted(
            replica=seat.replica,
            process=seat.process,
            rejoin=seat.rejoin,
            incarnation=seat.incarnation,
            view=view.number if held else view.number + 1,
        )
        self._senders[seat.replica] = sender
        return [Send(sender, admitted), Send(sender, ViewNews(view=self.membership.view))]

    def _report(self, sender: Hashable, report: Report, now: float) -> list[Action]:
        assert self.membership is not None and self.evidence is not None
        seat = self.membership.seats.get(report.replica)
        heeded = seat is not None and (seat.present or self.membership.counts_on(seat))
        if seat is None or not heeded or seat.incarnation != report.incarnation:
            return [Send(sender, self._evicted(report.replica, report.incarnation))]
        self._senders[seat.replica] = sender
        actions: list[Action] = [Send(sender, _ack(report, self.membership))]
        told = report != self.evidence.reports.get(report.replica)
        self._told_anew |= told
        ends = report.failing or report.given_up or report.leaving or report.charges
        self._pressing |= told and bool(ends)
        if self.evidence.note_report(report, now):
            for accused in report.unreachable:
                actions += self._check(self.membership.seats.get(accused))
        return actions

    def _disconnected(self, sender: Hashable) -> list[Action]:
        if self.membership is None:
            return []
        lost = [replica for replica, known in self._senders.items() if known == sender]
        actions: list[Action] = []
        for replica in lost:
            del self._senders[replica]
            actions += self._check(self.membership.seats.get(replica))
        return actions

    def _check(self, seat: Seat | None) -> list[Action]:
        """Have the agent look at once instead of at its next beat."""
        if seat is None or self.evidence is None:
            return []
        picture = self.evidence.agents.get(seat.agent)
        return [Send(picture.sender, Check())] if picture is not None else []

    def _evicted(self, replica: int, incarnation: int) -> Evicted:
        assert self.membership is not None
        reason = f"replica {replica} in its life {incarnation} is not in view {self.membership.view.number}"
        return Evicted(replica=replica, incarnation=incarnation, reason=reason)

    def _store_answered(self, event: StoreEvent, now: float) -> list[Action]:
        match event:
            case Loaded() if self._loading:
                return self._loaded(event, now)
            case LoadFailed() if self._loading:
                self._loading = False
                self._retry_at = now + self._timing.beat_every_s
            case Committed() if self._answers(event.ticket):
                assert self._in_flight is not None
                self.causes = self._in_flight.causes
                membership, self._in_flight = self._in_flight.membership, None
                self._revision = event.revision
                self._one_may_be_late = False
                self.trouble = ""
                return self._agreed(membership)
            case Refused() | Unknown() if self._answers(event.ticket):
                self._in_flight = None
                self.membership = None
                self._retry_at = now
                self._one_may_be_late |= isinstance(event, Unknown)
            case NotStored() if self._answers(event.ticket):
                self._in_flight = None
                self.trouble = event.reason
                self._retry_at = now + self._timing.detect_within_s
            case _:
                pass
        return []

    def _loaded(self, event: Loaded, now: float) -> list[Action]:
        self._loading = False
        if event.term > self.election.term:
            # Somebody else leads by now; what we know is worth nothing.
            return list(self.election.resign(now))
        if event.term < self.election.term:
            # That is from before our time, or our lease has run out, which we are about to notice.
            self._retry_at = now + self._timing.beat_every_s
            return []
        self._revision = event.revision
        self.causes = {}
        document = event.membership or Membership(spec=self._spec)
        if event.proven and not self._one_may_be_late:
            return self._agreed(document)
        self._ticket += 1
        self._in_flight = Commit(self._ticket, document, self._revision, self.election.term)
        return self._begin(self._in_flight)

    def _answers(self, ticket: int) -> bool:
        return self._in_flight is not None and self._in_flight.ticket == ticket

    def _agreed(self, membership: Membership) -> list[Action]:
        """The store holds this document: now, and only now, tell."""
        before, self.membership = self.membership, membership
        # Said with every beat, of which there are ten a second from each agent.
        self._barred = tuple(seat.replica for seat in membership.seats.values() if seat.barred)
        if before is None or before.places is not membership.places:
            self._places = membership.placed_by_agent()
        actions: list[Action] = []
        if before is None or before.view != membership.view:
            actions.append(Publish(ViewNews(view=membership.view)))
        if membership.outcome is not None:
            actions.append(Publish(Ended(outcome=membership.outcome)))
        if self.evidence is not None and before is not None and before.foundation != membership.foundation:
            # All replicas wait for who begins, so it does not wait for its next report.
            actions += [
                Send(self._senders[replica], _ack(report, membership))
                for replica, report in self.evidence.reports.items()
                if report.foundation is not None and replica in self._senders
            ]
        if self.evidence is not None:
            for replica, (sender, register) in self.evidence.registers.items():
                seat = membership.seats.get(replica)
                if seat is not None:
                    actions += self._welcome(sender, register, seat)
            for sender, enlist in self.evidence.enlists.values():
                host = membership.hosts.get(enlist.agent)
                if host is not None and host.start == enlist.start:
                    actions.append(Send(sender, Enlisted(start=host.start, boot=host.boot)))
            self.evidence.settle(membership)
        return actions

    def _decide(self, now: float) -> list[Action]:
        """Commit the next document, if what is known calls for another one."""
        if not self.leading or self._in_flight is not None or self.evidence is None or now < self._retry_at:
            return []
        assert self.membership is not None
        self._pressing = False
        change = self.evidence.change(self.membership, now)
        if self.gathers and now < self._joins_at:
            self._put_off_joins(change)
        planned = plan(self.membership, change)
        if planned == self.membership:
            return []
        if planned.view.number != self.membership.view.number:
            self._joins_at = now + REST_PER_SEAT_S * len(planned.seats)
        self._ticket += 1
        causes = {replica: removal.cause for replica, removal in change.removals.items()}
        self._in_flight = Commit(self._ticket, planned, self._revision, self.election.term, causes)
        return self._begin(self._in_flight)

    def _put_off_joins(self, change: Change) -> None:
        """But not a new life whose old one counts as alive: it proves that that one is dead."""
        assert self.membership is not None
        seats = self.membership.seats
        change.ready.clear()
        for replica in [r for r in change.arrivals if r not in seats or not seats[r].present]:
            del change.arrivals[replica]

    def _begin(self, commit: Commit) -> list[Action]:
        return [commit]


def _namesake(agent: str) -> str:
    return (
        f"another machine of the name {agent} takes part in this job: give one of them another name with "
        "--machine, or stop the other one first"
    )


def _superseded(agent: str) -> str:
    return f"{agent} was started again, here or on another machine, and that one takes part in its place"


def _ack(report: Report, membership: Membership) -> ReportAck:
    """What is on record of that which a replica has asked for."""
    intent, foundation = report.intent, report.foundation
    return ReportAck(
        view=membership.view.number,
        recorded=intent.seal if intent is not None and intent in membership.intents else "",
        founded=foundation.claim if foundation is not None and foundation == membership.foundation else 0,
    )
