"""Connections between lives, and the gaps in them: what may count of all that arrives.

A connection can break while both of its ends live. A new one is made at once, but nobody can say what was
lost between the two, and every word of this protocol stands for what was sent before it: a PART for the
contributions, a SUM for the results, a feed for those before it. A word that crosses such a gap is a lie.
So there is one rule:

    *All frames of one era from one life to another travel on one connection, or not at all.*

An *era* is all views with the same `planned_since`: it begins with a view that interrupts, in which everybody
speaks, asks and feeds anew, so that nothing from before matters. (A planned view does not: what was said
before it is still relied upon.) TCP delivers a prefix of what was sent on one connection, so by that rule
what counts of an era is a prefix of what was sent in it.

A line that breaks after it was *used* in this era is *torn* for the rest of it: nothing more is sent to that
peer, nothing of this era that still comes from it counts, and the coordinator is told, who begins another
era. One that breaks before anything went over it was nothing but a connection, and the next one serves as
well. The other end may have used what this one never knew of; so an end that is torn says GAP on the next
connection, and nothing else.

What is sent before there is a connection waits for it, in order, up to a bound; one who does not come before
it is reached is torn, too. In the same way what must not arrive yet is *held*.

One who leaves in a planned view has still something to say: its share of the last stable record may arrive
when the learner that it is for has heard of that view already. So whoever was connected stays *departed*
until its connection ends, or the era does: what comes from it counts, and nothing is sent to it.

Pure: whoever drives this does the sending.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from outlast.protocol.views import Member, View

QUEUED_FRAMES_MOST = 1 << 14
"""Frames that wait for a connection, for each peer."""

QUEUED_BYTES_MOST = 256 << 20
"""And what comes with those that need not be kept at any price: records for one who only learns."""

F = TypeVar("F")

Life = tuple[int, int]


class Line(NamedTuple):
    """One connection: with which life of a peer, in which life of this process, and which one it is."""

    peer: Member
    own: int
    number: int
    """No other connection of this process has the same."""


@dataclass(frozen=True)
class _Waiting(Generic[F]):
    frame: F
    droppable_bytes: int
    after: int


@dataclass(eq=False)
class _Tie(Generic[F]):
    """What there is between this life and one of a peer, in the present era."""

    peer: Member
    line: Line | None = None
    used: bool = False
    torn: bool = False
    departed: bool = False
    after: int = 0
    """What is sent from now on waits until `passed` has come to this."""
    queue: deque[_Waiting[F]] = field(default_factory=deque)
    queued_bytes: int = 0

    def forget(self) -> None:
        """Nothing waits any more."""
        self.queue.clear()
        self.queued_bytes = 0


class Lines(Generic[F]):
    """What a life knows of its connections; `F` is a frame that waits to be sent."""

    def __init__(self) -> None:
        self.own = 0
        """The life in which all of this is."""
        self._era = 0
        self._view = 0
        self._ties: dict[Life, _Tie[F]] = {}
        self._at_line: dict[int, _Tie[F]] = {}
        """Those that have a line, by its number."""
        self.changes = 0
        """Grows whenever there is something new about connections and gaps."""
        self._passed = 0
        """Up to where nothing is held any more."""
        self._gaps_ahead: dict[Life, int] = {}
        """Peers that are ahead have said in which era there is a gap."""

    @property
    def era(self) -> int:
        return self._era

    @property
    def torn(self) -> frozenset[Member]:
        """Peers that nothing counts from, and nothing is sent to, in this era."""
        return frozenset(tie.peer for tie in self._ties.values() if tie.torn)

    @property
    def torn_and_back(self) -> frozenset[Member]:
        """Those of them that there is another connection with: they live, and only the era has to end."""
        return frozenset(tie.peer for tie in self._ties.values() if tie.torn and tie.line is not None)

    @property
    def departed(self) -> tuple[Member, ...]:
        """Those that are not in the view any more, and may still have something to say."""
        return tuple(tie.peer for tie in self._ties.values() if tie.departed)

    @property
    def waiting(self) -> dict[int, int]:
        """How many frames wait for a connection, by replica."""
        return {tie.peer.replica: len(tie.queue) for tie in self._ties.values() if tie.queue}

    def line(self, peer: Member) -> Line | None:
        """The connection with this peer, if there is one."""
        tie = self._ties.get(_life(peer))
        return tie.line if tie is not None else None

    def adopt(self, view: View, own: int) -> None:
        """This view is in force: its lives are the peers, and its era is the present one."""
        self.changes += 1
        if own != self.own:
            self.own = own
            self._ties, self._at_line, self._gaps_ahead = {}, {}, {}
        present = {_life(peer): peer for peer in (*view.members, *view.learners)}
        kept = {life: tie for life, tie in self._ties.items() if life in present}
        departed = self._departing(view)
        self._ties = {life: kept.get(life) or _Tie(peer) for life, peer in present.items()} | departed
        staying = (*kept.values(), *departed.values())
        self._at_line = {tie.line.number: tie for tie in staying if tie.line is not None}
        self._view = view.number
        if view.planned_since != self._era:
            self._era = view.planned_since
            for tie in self._ties.values():
                tie.used = tie.torn = False
                tie.forget()
        for life, era in list(self._gaps_ahead.items()):
            if era <= self._era:
                del self._gaps_ahead[life]
                if era == self._era and life in self._ties:
                    self._tear(self._ties[life])

    def _departing(self, view: View) -> dict[Life, _Tie[F]]:
        if view.planned_since != self._era:
            return {}
        seats = {peer.replica for peer in (*view.members, *view.learners)}
        gone = {
            life: tie for life, tie in self._ties.items() if life[0] not in seats and tie.line is not None
        }
        for tie in gone.values():
            tie.departed = True
            tie.forget()
        return gone

    def connected(self, line: Line) -> tuple[list[F], bool]:
        """There is a connection: what to send now, in order; or True for GAP, and nothing but that."""
        tie = self._tie_of(line)
        if tie is None:
            return [], False
        self.changes += 1
        self._attach(tie, line)
        return ([], True) if tie.torn else (self._due(tie), False)

    def lost(self, line: Line) -> None:
        """The connection is over, or what was sent on it was not taken."""
        tie = self._tie_of(line)
        if tie is not None and tie.line == line:
            self.changes += 1
            self._attach(tie, None)
            if tie.departed:
                del self._ties[_life(tie.peer)]
            elif tie.used:
                self._tear(tie)

    def gap(self, line: Line, era: int) -> None:
        """The other end says that there is a gap in that era."""
        tie = self._tie_of(line)
        if tie is None or tie.line != line:
            return
        if era > self._era:
            self._gaps_ahead[_life(tie.peer)] = era
        elif era == self._era:
            self._tear(tie)

    def give_up(self, peer: Member) -> None:
        """What this peer has sent is lost, or it cannot be reached."""
        tie = self._ties.get(_life(peer))
        if tie is not None:
            self._tear(tie)

    def route(self, peer: Member, frame: F, droppable_bytes: int = 0) -> Line | None:
        """The line to send this on; None if it waits for one, or is for nobody."""
        tie = self._ties.get((peer.replica, peer.incarnation))
        if tie is None or tie.torn or tie.departed:
            return None
        if tie.line is None or tie.after > self._passed:
            tie.queue.append(_Waiting(frame, droppable_bytes, tie.after))
            tie.queued_bytes += droppable_bytes
            if len(tie.queue) > QUEUED_FRAMES_MOST or tie.queued_bytes > QUEUED_BYTES_MOST:
                self._tear(tie)
            return None
        tie.used = True
        return tie.line

    def hold(self, peer: Member, until: int) -> None:
        """What is sent to this peer from now on waits until that is passed, as if it travelled longer."""
        tie = self._ties.get(_life(peer))
        if tie is not None:
            tie.after = until

    def release(self, passed: int) -> list[tuple[Line, list[F]]]:
        """Nothing that was held until then is any more: what to send now, in order."""
        self._passed = passed
        ties = [tie for tie in self._ties.values() if tie.queue and not tie.torn]
        return [(tie.line, self._due(tie)) for tie in ties if tie.line is not None]

    def _due(self, tie: _Tie[F]) -> list[F]:
        """What may go now to one that is connected."""
        frames = []
        while tie.queue and tie.queue[0].after <= self._passed:
            waited = tie.queue.popleft()
            tie.queued_bytes -= waited.droppable_bytes
            frames.append(waited.frame)
        tie.used |= bool(frames)
        return frames

    def takes(self, line: Line, view: int) -> bool:
        """Whether a frame of that view, which comes on this line, may count. Those of later views are for
        the member core, which holds them; if there is a gap in what belongs to them, the sender knows."""
        tie = self._at_line.get(line.number)
        if tie is None or (tie.torn and view <= self._view):
            return False
        tie.used = True
        return True

    def _tie_of(self, line: Line) -> _Tie[F] | None:
        return self._ties.get(_life(line.peer)) if line.own == self.own else None

    def _attach(self, tie: _Tie[F], line: Line | None) -> None:
        if tie.line is not None:
            del self._at_line[tie.line.number]
        if line is not None:
            self._at_line[line.number] = tie
        tie.line = line

    def _tear(self, tie: _Tie[F]) -> None:
        self.changes += 1
        tie.torn = True
        tie.forget()


def _life(member: Member) -> Life:
    return member.replica, member.incarnation
