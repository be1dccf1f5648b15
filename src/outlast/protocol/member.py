"""A replica's side of membership: register, adopt views, obey fences.

The core knows which life this replica is living and which view it has adopted, and from that alone decides
what may be acted on:

- a frame of an *older* view is dropped: it was sent by somebody who does not know yet;
- a frame of the *same* view counts if its sender's life is in that view;
- a frame of a *newer* view is held, up to a bound, and the newer view is fetched. It was sent to us, so we
  are part of what it belongs to, and nobody will send it twice. That holds before our admission has
  reached us, too: peers may have heard of it first;
- a newer view without this life means that the life is over: *fenced*. Nothing that it holds counts any
  more, and the way back is a new life (`rejoin`).

Adopting a view is one assignment; there is no moment in between.

A *planned* view (see `View.planned_since`) is not adopted on hearing of it, if the driver says so
(`hold_planned`): members put it into force themselves, all at the end of the same step (`switch`). It is
followed out of step (`follow`) when a member is seen to have done that.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from outlast.protocol.messages import (
    Admitted,
    Ended,
    Evicted,
    Fetch,
    Message,
    Register,
    Report,
    ReportAck,
    ViewNews,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import Charge, Foundation, Intent, Outcome, View

HELD_FRAMES = 1 << 16
"""Bound on frames of newer views: a member sends all of its contributions, a thousand buckets perhaps, before
it needs our answer."""

PLANNED_VIEWS = 16
"""Bound on planned views that wait to be put into force."""


@dataclass(frozen=True)
class Frame:
    """Anything one replica says to another: the view and the life it was sent in, and the rest."""

    sender: int
    incarnation: int
    view: int
    body: object = None
    """What is said."""
    payload: object = None
    """What comes with it; for whoever drives the core."""
    moves: bool = False
    """Its sender has adopted this view out of step, and everybody who knows the view should follow."""


@dataclass(frozen=True)
class Tell:
    """Send to the coordinator."""

    message: Message


@dataclass(frozen=True)
class Adopt:
    """This view is in force now; every attempt of an earlier one is void."""

    view: View
    in_band: bool = False
    """Whether all members switch to it at the end of the same step."""


@dataclass(frozen=True)
class Planned:
    """This view is to be put into force at the end of a step."""

    view: View


@dataclass(frozen=True)
class Deliver:
    frame: Frame


@dataclass(frozen=True)
class Overflow:
    """There is no room for what this peer sends of a newer view, so there is a gap in it: its connection has
    to go, lest what comes after the gap counts."""

    sender: int
    incarnation: int


@dataclass(frozen=True)
class FencedOff:
    """This life is over; nothing it did after its last view counts."""

    reason: str


@dataclass(frozen=True)
class JobOver:
    outcome: Outcome


@dataclass(frozen=True)
class Recorded:
    """The coordinator has recorded this intent: the checkpoint may be committed."""

    intent: Intent


@dataclass(frozen=True)
class MayBegin:
    """The coordinator has recorded this foundation: the lineage may begin with it."""

    foundation: Foundation


MemberAction = Tell | Adopt | Planned | Deliver | Overflow | FencedOff | JobOver | Recorded | MayBegin


class MemberCore:
    """One replica process, over all of its lives."""

    def __init__(
        self, *, replica: int, process: int, agent: str, address: str, timing: Timing, shards: int = 0
    ) -> None:
        self.replica = replica
        self.process = process
        self.agent = agent
        self.address = address
        self.shards = shards
        self._timing = timing
        self.rejoins = 0
        self.incarnation = 0
        self.view = View()
        self.ready = False
        self.leaving = False
        self.final = False
        """Whether it was given the state after the last step as a learner; members need not say so."""
        self.staying = False
        """Whether the program of this process has come to its end, and it only keeps the final state."""
        self._chief = -1
        self.fenced = False
        self.unreachable: frozenset[int] = frozenset()
        self.torn: frozenset[int] = frozenset()
        self.catching_up = False
        """Whether this life has had no part in the training yet; set by whoever drives this core."""
        self.given_up = ""
        """Why this life cannot go on; set by whoever drives this core, and told with the next report."""
        self._failing: tuple[str, int, int] | None = None
        self.intent: Intent | None = None
        """The checkpoint that this life wants to commit, until it may."""
        self.foundation: Foundation | None = None
        """Under which claim this life wants to begin the lineage, until it may, or another view is in
        force."""
        self.saving = ""
        """How checkpoints stand, for people; told with the next report."""
        self.charges: tuple[Charge, ...] = ()
        """What this life holds against members of its view, until a view has answered it."""
        self.hold_planned = False
        """Whether planned views wait for `switch`; set by whoever drives this core."""
        self.planned: dict[int, View] = {}
        """The views that wait."""
        self._admitted_in = 0
        self.past_incarnation = 0
        """The newest life that is over; what is meant for it, or for one before, is for nobody."""
        self._fetching = 0
        self._held: list[Frame] = []
        self._told_at = float("-inf")

    @property
    def admitted(self) -> bool:
        return self.incarnation > 0 and not self.fenced

    @property
    def is_member(self) -> bool:
        return self.admitted and self.view.member(self.replica) is not None

    def tick(self, now: float) -> list[MemberAction]:
        """Repeat what has not been answered, and say that we are here."""
        if self.fenced or now - self._told_at < self._timing.beat_due_s:
            return []
        return self.tell(now)

    def tell(self, now: float) -> list[MemberAction]:
        """Say at once how things stand."""
        if self.fenced:
            return []
        self._told_at = now
        return [Tell(self._report() if self.incarnation else self._register())]

    def rejoin(self, now: float) -> list[MemberAction]:
        """Begin a new life after having been fenced; the caller has discarded the old one's state."""
        self.rejoins += 1
        self.past_incarnation = max(self.past_incarnation, self.incarnation)
        self.incarnation = 0
        self._admitted_in = 0
        self.fenced = self.ready = self.final = False
        self.given_up = ""
        self.intent = self.foundation = None
        self.charges = ()
        self.unreachable = self.torn = frozenset()
        self._void_view()
        return self.tell(now)

    def set_ready(self, now: float) -> list[MemberAction]:
        """A learner: I have caught up and can contribute."""
        self.ready = True
        return self.tell(now)

    def set_final(self, final: bool, now: float) -> list[MemberAction]:
        """A learner: I have the state after the last step. Or: there is another loop of steps."""
        if final == self.final:
            return []
        self.final = final
        return self.tell(now)

    def set_leaving(self, now: float) -> list[MemberAction]:
        self.leaving = True
        return self.tell(now)

    def set_staying(self, chief: int, now: float) -> list[MemberAction]:
        """The program has ended here; this process is there for others until that of the chief has, too."""
        self.staying, self._chief = True, chief
        return self.tell(now)

    def set_failing(self, reason: str, step: int, shard: int, now: float) -> list[MemberAction]:
        """This process is about to end by its own fault, while it computed that shard (-1: none)."""
        self._failing = (reason, step, shard)
        return self.tell(now)

    def set_unreachable(
        self, peers: frozenset[int], now: float, torn: frozenset[int] = frozenset()
    ) -> list[MemberAction]:
        """A member: these cannot be reached; and with those in `torn` the connection broke in this era,
        though there is another."""
        if (peers, torn) == (self.unreachable, self.torn):
            return []
        self.unreachable, self.torn = peers, torn
        return self.tell(now)

    def set_intent(self, intent: Intent, now: float) -> list[MemberAction]:
        """A member: I am about to commit this checkpoint, if I may."""
        self.intent = intent
        return self.tell(now)

    def set_foundation(self, foundation: Foundation, now: float) -> list[MemberAction]:
        """It is on this member to say what the lineage begins with: this, if it may. Nothing comes of it
        where another view is in force by now."""
        if foundation.view != self.view.number or not self.is_member:
            return []
        self.foundation = foundation
        return self.tell(now)

    def charge(self, charges: Iterable[Charge], now: float) -> list[MemberAction]:
        """A member: this is what the records that we all hold say against some of us."""
        self.charges += tuple(charge for charge in charges if charge not in self.charges)
        return self.tell(now)

    def received(self, message: Message, now: float) -> list[MemberAction]:
        """A message from the coordinator."""
        if (
            isinstance(message, ReportAck)
            and self.intent is not None
            and message.recorded == self.intent.seal
        ):
            intent, self.intent = self.intent, None
            return [Recorded(intent), *self.received(message, now)]
        if (
            isinstance(message, ReportAck)
            and self.foundation is not None
            and message.founded == self.foundation.claim
        ):
            foundation, self.foundation = self.foundation, None
            return [MayBegin(foundation), *self.received(message, now)]
        match message:
            case Admitted():
                return self._admitted(message)
            case ViewNews():
                return self._news(message.view, now)
            case ReportAck() if message.view > max(self.planned, default=self.view.number):
                return [Tell(Fetch())]
            case Evicted() if message.incarnation == self.incarnation and self.admitted:
                return self._fence(message.reason)
            case Evicted() if self._void_before_it_began(message):
                self.incarnation = message.incarnation
                return self._fence(message.reason)
            case Ended():
                return [JobOver(message.outcome)]
        return []

    def _void_before_it_began(self, message: Evicted) -> bool:
        """Our registration was admitted and evicted before we heard of either (and it is not an old one)."""
        ours = message.replica == self.replica and message.incarnation > self.past_incarnation
        return self.incarnation == 0 and ours

    def frame(self, frame: Frame) -> list[MemberAction]:
        """Something from a peer: drop it, hold it or deliver it."""
        if self.fenced or frame.view < self.view.number:
            return self._stale(frame)
        if frame.view > self.view.number:
            return self._hold(frame)
        if not self.view.holds(frame.sender, frame.incarnation):
            return self._stale(frame)
        return [Deliver(frame)]

    def _stale(self, frame: Frame) -> list[MemberAction]:  # noqa: ARG002
        return []

    def _hold(self, frame: Frame) -> list[MemberAction]:
        if len(self._held) >= HELD_FRAMES:
            return [Overflow(frame.sender, frame.incarnation)]
        self._held.append(frame)
        if frame.view in self.planned or frame.moves:
            moved = self._where_others_moved()
            if moved is not None or frame.view in self.planned:
                return self._adopt(moved) if moved is not None else []
        if frame.view <= self._fetching:
            return []
        # Asked for once; should that be lost, the next report is answered with the number, and we ask again.
        self._fetching = frame.view
        return [Tell(Fetch())]

    def _admitted(self, message: Admitted) -> list[MemberAction]:
        mine = (self.process, self.rejoins) == (message.process, message.rejoin)
        if self.incarnation or not mine or message.replica != self.replica:
            return []
        self.incarnation = message.incarnation
        self._admitted_in = message.view
        return []

    def switch(self, number: int, now: float) -> list[MemberAction]:
        """Put a planned view into force: all members of the present one do so at the end of this step."""
        return self._adopt(self.planned[number], in_band=True) + self.tell(now)

    def switched(self, view: View, now: float) -> list[MemberAction]:
        """Members have switched to a view that this replica had no part in deciding."""
        if view.number <= self.view.number or not self.admitted:
            return []
        return self._adopt(view, in_band=True) + self.tell(now)

    def follow(self, number: int, now: float) -> list[MemberAction]:
        """Adopt a planned view now, out of step."""
        return self._adopt(self.planned[number]) + self.tell(now)

    def _news(self, view: View, now: float) -> list[MemberAction]:
        if view.number <= self.view.number or not self.admitted:
            return []
        if view.number < self._admitted_in and not view.holds(self.replica, self.incarnation):
            return []
        if self.hold_planned and self._planned_from_here(view):
            return self._note_planned(view)
        return self._adopt(view) + self.tell(now)

    def _planned_from_here(self, view: View) -> bool:
        present = self.view.holds(self.replica, self.incarnation)
        return present and view.planned_since <= self.view.number

    def _note_planned(self, view: View) -> list[MemberAction]:
        if view.number in self.planned:
            return []
        self.planned[view.number] = view
        while len(self.planned) > PLANNED_VIEWS:
            del self.planned[min(self.planned)]
        moved = self._where_others_moved()
        return self._adopt(moved) if moved is not None else [Planned(view)]

    def _where_others_moved(self) -> View | None:
        """The view to follow, if somebody has moved to a planned one. That very view may never come to be
        known here (the coordinator tells only its newest one), but any later one will do: whoever adopts it
        says so, and the others follow in their turn."""
        least = min((frame.view for frame in self._held if frame.moves), default=None)
        if least is None:
            return None
        later = [view for number, view in self.planned.items() if number >= least]
        staying = [view for view in later if view.holds(self.replica, self.incarnation)]
        return max(staying or later, key=lambda view: view.number, default=None)

    def _adopt(self, view: View, *, in_band: bool = False) -> list[MemberAction]:
        if not view.holds(self.replica, self.incarnation):
            return self._fence(f"view {view.number} goes on without it: {view.cause}")
        if view.planned_since != self.view.planned_since:
            self.unreachable = self.torn = frozenset()
        self.view = view
        # Whoever is to begin in this view looks anew, and another may be.
        self.foundation = None
        members = {member.replica for member in view.members}
        self.unreachable, self.torn = self.unreachable & members, self.torn & members
        self.charges = tuple(charge for charge in self.charges if charge.view >= view.planned_since)
        self.planned = {
            number: later
            for number, later in self.planned.items()
            if number > view.number and later.planned_since <= view.number
        }
        actions: list[MemberAction] = [Adopt(view, in_band)]
        actions += [Planned(later) for later in self.planned.values()]
        held, self._held = self._held, []
        self._fetching = 0
        for frame in held:
            actions += self.frame(frame)
        return actions

    def _fence(self, reason: str) -> list[MemberAction]:
        self.fenced = True
        self._void_view()
        return [FencedOff(reason)]

    def _void_view(self) -> None:
        """The number stays, so that nothing older is ever adopted; the members go, so that no frame of that
        view counts in the next life."""
        self.view = View(number=self.view.number)
        self.foundation = None
        self.planned.clear()
        self._held.clear()

    def _register(self) -> Register:
        return Register(
            replica=self.replica,
            process=self.process,
            rejoin=self.rejoins,
            agent=self.agent,
            address=self.address,
            shards=self.shards,
        )

    def _report(self) -> Report:
        reason, step, shard = self._failing or ("", -1, -1)
        return Report(
            replica=self.replica,
            incarnation=self.incarnation,
            view=self.view.number,
            ready=self.ready,
            final=self.final,
            leaving=self.leaving,
            staying=self.staying,
            chief=self._chief,
            catching_up=self.catching_up,
            unreachable=tuple(sorted(self.unreachable)),
            torn=tuple(sorted(self.torn)),
            given_up=self.given_up,
            failing=reason,
            failing_step=step,
            failing_shard=shard,
            intent=self.intent,
            foundation=self.foundation,
            saving=self.saving,
            charges=self.charges,
        )
