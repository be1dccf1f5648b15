"""What a change does to the membership: a pure function from the old document to the new one.

`plan` takes what has been agreed and what has been learned since, and says what should be agreed next. It
never looks at a clock and never talks to anyone, so any leader that knows the same facts plans the same.

Two rules keep the training state safe.

*A view keeps somebody who holds the state.* The `holders` are the members of the newest view that one of
them is known to have adopted. Suspicion alone never removes the last of them: a leader that cannot reach
anyone has no proof that they are dead, and a view without them would lose what they have done. It waits.
Proof of death (the agent saw the process exit) is another matter: then whoever is still a member takes over.

*A lineage continues or is ended openly.* When no member is left, the learners form a new lineage together:
they start from the newest checkpoint or from the beginning, and everybody can see that from the view.
"""

from dataclasses import dataclass, field

import msgspec

from outlast.protocol.assignment import assign, slices
from outlast.protocol.messages import GaveUp, Register
from outlast.protocol.views import Member, Membership, Outcome, Seat, Standing, View

CAUSE_LIMIT = 500


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Why one replica leaves the view."""

    process: int
    standing: Standing
    cause: str
    proven: bool
    """Whether it is known to be gone or to be going, rather than suspected."""


@dataclass(kw_only=True)
class Change:
    """What has been learned since the membership was agreed; keys are replica ids."""

    arrivals: dict[int, Register] = field(default_factory=dict)
    removals: dict[int, Removal] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    adopted: set[int] = field(default_factory=set)
    """Members that have adopted the current view."""
    form_now: bool = False
    """Whether the first view of a lineage has waited long enough for the rest."""
    gave_up: GaveUp | None = None

    def concerns(self, membership: Membership) -> bool:
        """Whether there is anything here that could change the membership."""
        activates = membership.active != membership.view.number and bool(self.adopted)
        moves = bool(self.arrivals or self.removals or self.ready)
        return moves or activates or self.form_now or self.gave_up is not None


def plan(membership: Membership, change: Change) -> Membership:
    """The membership that should follow; equal to the old one when there is nothing to do."""
    if membership.outcome is not None or not change.concerns(membership):
        return membership
    draft = _Draft(_activated(membership, change.adopted))
    draft.remove_proven(change.removals)
    draft.admit(change.arrivals)
    draft.remove_doubted(change.removals)
    draft.promote(change.ready)
    draft.form(change.form_now)
    draft.conclude(change.gave_up)
    return draft.result()


def _activated(membership: Membership, adopted: set[int]) -> Membership:
    """The current view becomes active once somebody who holds the state has adopted it."""
    if membership.active == membership.view.number:
        return membership
    holding = {holder.replica for holder in membership.holders if holder in membership.view.members}
    if not holding & adopted:
        return membership
    return msgspec.structs.replace(membership, active=membership.view.number, holders=membership.view.members)


class _Draft:
    """The membership under change."""

    def __init__(self, membership: Membership) -> None:
        self.base = membership
        self.seats = dict(membership.seats)
        self.holders = membership.holders
        self.active = membership.active
        self.lineage = membership.view.lineage
        self.causes: list[str] = []
        self.outcome: Outcome | None = None

    def members(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.standing is Standing.MEMBER]

    def learners(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.standing is Standing.LEARNER]

    def remove_proven(self, removals: dict[int, Removal]) -> None:
        for replica, removal in sorted(removals.items()):
            if removal.proven:
                self._remove(replica, removal)

    def remove_doubted(self, removals: dict[int, Removal]) -> None:
        """Comes after arrivals: a new life of a replica proves that its old one is dead."""
        doubted = {
            replica: removal
            for replica, removal in removals.items()
            if not removal.proven and self.seats[replica].process == removal.process
        }
        if not any(self._still(holder) for holder in self.holders):
            # Every holder is proven dead: whoever was promoted beside them takes over.
            self.holders = tuple(seat.as_member() for seat in self.members())
        spared = self._must_stay(set(doubted))
        for replica, removal in sorted(doubted.items()):
            if replica not in spared:
                self._remove(replica, removal)

    def _remove(self, replica: int, removal: Removal) -> None:
        seat = self.seats.get(replica) or Seat(replica=replica, standing=Standing.GONE)
        if seat.present:
            self.causes.append(removal.cause)
        self.seats[replica] = msgspec.structs.replace(
            seat, standing=removal.standing, process=removal.process
        )

    def _must_stay(self, doubted: set[int]) -> set[int]:
        """Those that suspicion alone may not remove, because nobody else would hold the state."""
        holding = {holder.replica for holder in self.holders if self._still(holder)}
        return doubted & holding if holding <= doubted else set()

    def _still(self, member: Member) -> bool:
        seat = self.seats.get(member.replica)
        return (
            seat is not None and seat.standing is Standing.MEMBER and seat.incarnation == member.incarnation
        )

    def admit(self, arrivals: dict[int, Register]) -> None:
        for replica, register in sorted(arrivals.items()):
            before = self.seats.get(replica)
            if before is not None and before.process == register.process and not _runs(before):
                # It has exited since it registered.
                continue
            incarnation = before.incarnation + 1 if before else 1
            self.seats[replica] = Seat(
                replica=replica,
                standing=Standing.LEARNER,
                incarnation=incarnation,
                process=register.process,
                rejoin=register.rejoin,
                agent=register.agent,
                address=register.address,
            )
            self.causes.append(
                f"replica {replica} joins" if incarnation == 1 else f"replica {replica} is back"
            )

    def promote(self, ready: set[int]) -> None:
        if not self.members():
            return
        for seat in self.learners():
            if seat.replica in ready:
                self._set_member(seat)
                self.causes.append(f"replica {seat.replica} has caught up")

    def form(self, form_now: bool) -> None:
        """Begin a lineage from the learners when no member is left to learn from."""
        learners = self.learners()
        if self.members() or not learners or (self.lineage and self._finished_count()):
            return
        awaited = self.base.spec.replicas - (0 if self.lineage else self._finished_count())
        if len(learners) < awaited and not form_now:
            return
        for seat in learners:
            self._set_member(seat)
        self.lineage += 1
        self.holders = ()
        self.causes = ["the first view" if self.lineage == 1 else "no member was left: a new lineage begins"]

    def _set_member(self, seat: Seat) -> None:
        self.seats[seat.replica] = msgspec.structs.replace(seat, standing=Standing.MEMBER)

    def _finished_count(self) -> int:
        return sum(seat.standing is Standing.FINISHED for seat in self.seats.values())

    def conclude(self, gave_up: GaveUp | None) -> None:
        if gave_up is not None:
            self.outcome = Outcome(
                finished=False,
                reason=gave_up.reason,
                replica=gave_up.replica,
                last_words=gave_up.last_words,
            )
        elif self._finished_count() and not self.members() and self._nothing_to_come():
            self.outcome = Outcome(finished=True, reason="all work is done")

    def _nothing_to_come(self) -> bool:
        """A lineage is done with its last member; a job whose replicas never joined, with the last one."""
        return self.lineage > 0 or self._finished_count() == self.base.spec.replicas

    def result(self) -> Membership:
        view = self._view()
        if self.lineage != self.base.view.lineage:
            # A new lineage has nobody before it who could adopt it: its members are its first holders.
            self.active, self.holders = view.number, view.members
        return Membership(
            spec=self.base.spec,
            view=view,
            seats=self.seats,
            active=self.active,
            holders=self.holders,
            outcome=self.outcome,
        )

    def _view(self) -> View:
        before = self.base.view
        members = tuple(sorted((seat.as_member() for seat in self.members()), key=lambda m: m.replica))
        learners = tuple(sorted((seat.as_member() for seat in self.learners()), key=lambda m: m.replica))
        if not members and not before.members:
            # Nobody trains, so nobody needs to hear who is gathering.
            return before
        if (members, learners, self.lineage) == (before.members, before.learners, before.lineage):
            return before
        replicas = [member.replica for member in members]
        return View(
            number=before.number + 1,
            lineage=self.lineage,
            members=members,
            learners=learners,
            shards=assign(self.base.spec.shards, replicas, before.shards or None) if replicas else (),
            slices=slices(replicas, before.slices or None) if replicas else (),
            cause="; ".join(self.causes)[:CAUSE_LIMIT],
        )


def _runs(seat: Seat) -> bool:
    return seat.standing not in (Standing.GONE, Standing.FINISHED)
