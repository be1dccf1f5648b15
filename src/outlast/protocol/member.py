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
"""

from collections import deque
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
from outlast.protocol.views import Outcome, View

HELD_FRAMES = 4096
"""Bound on frames of newer views; a member sends a handful per peer before it needs our answer."""


@dataclass(frozen=True)
class Frame:
    """Anything one replica says to another: the view and the life it was sent in, and the rest."""

    sender: int
    incarnation: int
    view: int
    body: object = None


@dataclass(frozen=True)
class Tell:
    """Send to the coordinator."""

    message: Message


@dataclass(frozen=True)
class Adopt:
    """This view is in force now; every attempt of an earlier one is void."""

    view: View


@dataclass(frozen=True)
class Deliver:
    frame: Frame


@dataclass(frozen=True)
class FencedOff:
    """This life is over; nothing it did after its last view counts."""

    reason: str


@dataclass(frozen=True)
class JobOver:
    outcome: Outcome


MemberAction = Tell | Adopt | Deliver | FencedOff | JobOver


class MemberCore:
    """One replica process, over all of its lives."""

    def __init__(self, *, replica: int, process: int, agent: str, address: str, timing: Timing) -> None:
        self.replica = replica
        self.process = process
        self.agent = agent
        self.address = address
        self._timing = timing
        self.rejoins = 0
        self.incarnation = 0
        self.view = View()
        self.ready = False
        self.leaving = False
        self.fenced = False
        self.unreachable: frozenset[int] = frozenset()
        self._admitted_in = 0
        self._past_incarnation = 0
        self._fetching = 0
        self._held: deque[Frame] = deque(maxlen=HELD_FRAMES)
        self._told_at = float("-inf")

    @property
    def admitted(self) -> bool:
        return self.incarnation > 0 and not self.fenced

    @property
    def is_member(self) -> bool:
        return self.admitted and self.view.member(self.replica) is not None

    def tick(self, now: float) -> list[MemberAction]:
        """Repeat what has not been answered, and say that we are here."""
        if self.fenced or now - self._told_at < self._timing.beat_every_s:
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
        self._past_incarnation = max(self._past_incarnation, self.incarnation)
        self.incarnation = 0
        self._admitted_in = 0
        self.fenced = self.ready = False
        self.unreachable = frozenset()
        self._held.clear()
        return self.tell(now)

    def set_ready(self, now: float) -> list[MemberAction]:
        """A learner: I have caught up and can contribute."""
        self.ready = True
        return self.tell(now)

    def set_leaving(self, now: float) -> list[MemberAction]:
        self.leaving = True
        return self.tell(now)

    def set_unreachable(self, peers: frozenset[int], now: float) -> list[MemberAction]:
        if peers == self.unreachable:
            return []
        self.unreachable = peers
        return self.tell(now)

    def received(self, message: Message, now: float) -> list[MemberAction]:
        """A message from the coordinator."""
        match message:
            case Admitted():
                return self._admitted(message)
            case ViewNews():
                return self._news(message.view, now)
            case ReportAck() if message.view > self.view.number:
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
        ours = message.replica == self.replica and message.incarnation > self._past_incarnation
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
        self._held.append(frame)
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

    def _news(self, view: View, now: float) -> list[MemberAction]:
        if view.number <= self.view.number or not self.admitted:
            return []
        if not view.holds(self.replica, self.incarnation):
            if view.number < self._admitted_in:
                return []
            return self._fence(f"view {view.number} goes on without it: {view.cause}")
        self.view = view
        self.unreachable &= {member.replica for member in view.members}
        actions: list[MemberAction] = [Adopt(view)]
        held, self._held = self._held, deque(maxlen=HELD_FRAMES)
        self._fetching = 0
        for frame in held:
            actions += self.frame(frame)
        return actions + self.tell(now)

    def _fence(self, reason: str) -> list[MemberAction]:
        self.fenced = True
        self._held.clear()
        # The number stays, so that nothing older is ever adopted; the members go, so that no frame of that
        # view counts in the next life.
        self.view = View(number=self.view.number)
        return [FencedOff(reason)]

    def _register(self) -> Register:
        return Register(
            replica=self.replica,
            process=self.process,
            rejoin=self.rejoins,
            agent=self.agent,
            address=self.address,
        )

    def _report(self) -> Report:
        return Report(
            replica=self.replica,
            incarnation=self.incarnation,
            view=self.view.number,
            ready=self.ready,
            leaving=self.leaving,
            unreachable=tuple(sorted(self.unreachable)),
        )
