"""The promises, checked at every event of a simulated run.

- *Agreement*: a view number names one membership, everywhere and for ever; numbers in the store grow by one.
- *Commit before speech*: nobody hears of a view that the store does not hold.
- *One leader*: whoever writes holds the leadership at that moment.
- *Fencing*: a member acts only in views that hold its life, only on frames of its own view sent by lives of
  that view, and its view never goes back.
- *One line*: all that counts of an era from one life to another has come over one connection.
- *Nobody is sent away* whose life is in what was agreed on last.
- *No groundless eviction*: a replica that nothing has happened to is never evicted on suspicion.
- *State is kept*: suspicion never removes the last holder of the training state.
- *Nothing is trained again*: no lineage begins while a replica that nothing has happened to has the final
  state, member or not.
- *Nobody waits in vain*: the net below the protocol, a view that is renewed since all members wait for each
  other, is needed only where a word was lost that nobody knows of.
- *All work is done*: no job is called finished before its chief has come to the end of its script.
- *Liveness* is checked at the end, by the simulation: when faults stop, everybody is back within a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind
from outlast.protocol.life import Life
from outlast.protocol.lines import Line
from outlast.protocol.member import Frame
from outlast.protocol.messages import Message, ViewNews
from outlast.protocol.views import Membership, Seat, Standing, View

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode
    from outlast.sim.simulation import Simulation


class Violation(AssertionError):
    """A promise was broken."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


class Checkers:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._committed: dict[int, View] = {0: View()}
        self._newest_adopted: dict[tuple[int, int], int] = {}
        self.founded: set[int] = set()
        """The claims under which a lineage was ever allowed to begin."""
        self._counted: dict[tuple[Life, int, int, int], int] = {}
        self.views = 0
        self._work_is_done = False

    def view(self, number: int) -> View:
        """The one that was committed under this number."""
        return self._committed[number]

    def work_is_done(self) -> None:
        """The chief has done all that there was to do after the last step."""
        self._work_is_done = True

    def committed(self, leader: str, before: Membership | None, after: Membership) -> None:
        held = self._sim.store.leadership
        self._require(
            held is not None and held.holder == leader,
            f"{leader} writes, but the leader is {held.holder if held else 'nobody'}",
        )
        outcome = after.outcome
        self._require(
            outcome is None or not outcome.finished or self._work_is_done,
            f"the job is called finished, and nobody has done all its work: {outcome and outcome.reason}",
        )
        if after.foundation is not None:
            self.founded.add(after.foundation.claim)
        old = before.view if before is not None else View()
        view = after.view
        if view == old:
            return
        self._sim.world.note("store", f"holds view {view.number} of {_names(view)}: {view.cause}")
        self._require(
            view.number == old.number + 1, f"view {old.number} is followed by view {view.number} in the store"
        )
        self._require(
            not view.renews or self._sim.may_stand_still,
            f"all members stand still, and nothing was lost: {view.cause}",
        )
        if 0 < old.lineage < view.lineage and before is not None:
            self._check_beginning(before)
        self._committed[view.number] = view
        self.views += 1
        if before is not None:
            self._check_evictions(before, after)

    def published(self, leader: str, message: Message) -> None:
        if isinstance(message, ViewNews):
            self._check_agreed(leader, "publishes", message.view)

    def adopted(self, replica: ReplicaNode, view: View) -> None:
        self._check_agreed(replica.name, "adopts", view)
        process = (replica.replica, replica.process)
        before = self._newest_adopted.get(process, 0)
        self._require(
            view.number > before, f"{replica.name} goes back from view {before} to view {view.number}"
        )
        self._newest_adopted[process] = view.number
        self._require(
            view.holds(replica.replica, replica.core.incarnation),
            f"{replica.name} adopts view {view.number}, which does not hold its life",
        )

    def fenced(self, node: ReplicaNode) -> None:
        """A life hears that it is void, from a view without it or from whoever leads."""
        document, life = self._sim.store.document, node.core.incarnation
        seat = document.seats.get(node.replica) if document is not None else None
        self._require(
            seat is None or seat.incarnation != life or not seat.present,
            f"{node.name} is sent away in its life {life}, which is agreed to take part",
        )

    def counts(self, node: ReplicaNode, line: Line, header: Header) -> None:
        """A frame that belongs to the present era counts."""
        life, era = node.driver.life, node.driver.life.post.lines.era
        if not era <= header.view <= node.view.number or header.kind == Kind.GAP:
            return
        key = (life, line.peer.replica, line.peer.incarnation, era)
        first = self._counted.setdefault(key, line.number)
        self._require(
            first == line.number,
            f"{node.name} listens to replica {line.peer.replica} over more than one connection in era {era}",
        )

    def delivered(self, node: ReplicaNode, frame: Frame) -> None:
        who, view = node.name, node.view
        if frame.view != view.number or node.over:
            raise Violation(f"{who} acts in view {view.number} on a frame of view {frame.view}")
        if not view.holds(frame.sender, frame.incarnation):
            raise Violation(
                f"{who} acts on a frame of replica {frame.sender}, life {frame.incarnation}, which is not in "
                f"view {view.number}"
            )

    def _check_agreed(self, who: str, does: str, view: View) -> None:
        agreed = self._committed.get(view.number)
        self._require(agreed is not None, f"{who} {does} view {view.number}, which was never committed")
        self._require(agreed == view, f"{who} {does} a view {view.number} that is not the committed one")

    def _check_beginning(self, before: Membership) -> None:
        for seat in before.seats.values():
            node = self._sim.replica_node(seat.replica)
            if seat.present and node is not None and not self._sim.excused(seat):
                self._require(
                    not node.thread.ending.keeps(seat.incarnation),
                    f"a lineage begins, and {node.name} has kept the final state for some time",
                )

    def _check_evictions(self, before: Membership, after: Membership) -> None:
        for seat in before.seats.values():
            now = after.seats.get(seat.replica)
            if now is None or not seat.present or now.standing is not Standing.EVICTED:
                continue
            if any(charge.life == (seat.replica, seat.incarnation) for charge in after.charges):
                # Whether that is just, `truth` has seen to.
                continue
            if self._has_given_up(seat):
                continue
            # Between two, nobody can say which of them is cut off.
            pair = before.seats.values() if len(before.view.members) == 2 else [seat]
            self._require(
                any(self._sim.excused(one) for one in pair),
                f"replica {seat.replica} is evicted, but nothing has happened to it: {after.view.cause}",
            )
        # Who leaves takes along what only it holds; that is its owner's wish, not suspicion.
        doubted = {
            seat.replica
            for seat in after.seats.values()
            if seat.standing is Standing.EVICTED
            and not self._sim.leaves(seat)
            and not self._has_given_up(seat)
        }
        # Whether or not the leader knows that already, in truth these hold the state.
        caught_up = {(node.replica, node.core.incarnation) for node in self._sim.replicas() if node.trains}
        known = [
            m for m in before.view.members if m in before.holders or (m.replica, m.incarnation) in caught_up
        ]
        holders = {holder.replica for holder in known}
        kept = any(after.view.holds(h.replica, h.incarnation) for h in known)
        self._require(
            kept or not holders & doubted,
            f"view {after.view.number} drops every holder of the training state without proof",
        )

    def _has_given_up(self, seat: Seat) -> bool:
        """Whether this life has said itself that it cannot go on; what it held is lost in any case."""
        node = self._sim.replica_node(seat.replica)
        return node is not None and node.over and node.core.incarnation == seat.incarnation

    def _require(self, holds: bool, otherwise: str) -> None:
        require(holds, otherwise)


def _names(view: View) -> str:
    members = ",".join(f"{m.replica}.{m.incarnation}" for m in view.members) or "nobody"
    learners = ",".join(f"{m.replica}.{m.incarnation}" for m in view.learners)
    return f"[{members}]" + (f" learning [{learners}]" if learners else "")
