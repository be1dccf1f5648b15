"""What a change does to the membership: a pure function from the old document to the new one.

`plan` takes what has been agreed and what has been learned since, and says what should be agreed next. It
never looks at a clock and never talks to anyone, so any leader that knows the same facts plans the same.

Three rules keep the training state safe, and its holders at work.

*A view keeps somebody who holds the state.* The `holders` are the members of the newest view that one of
them is known to have adopted, once they say themselves that they have caught up. Suspicion alone never
removes the last of them: a leader that cannot reach anyone has no proof that they are dead, and a view
without them would lose what they have done. It waits; on several machines for a minute (`given_up_after_s`),
since a machine may be lost for good.
Proof of death (the agent saw the process exit) is another matter: then whoever is still a member takes over.
And one that asks to leave is let go only when another holder stays, or when there is nobody to hand over to.

*A lineage continues or is ended openly.* When no member is left, learners that have the state after the last
step go on with that. If there are none, the learners form a new lineage together: they start from the newest
checkpoint or from the beginning, and everybody can see that from the view.

*Whoever is waited for is not forgotten.* A change that takes away nobody who is needed in the step under way
is *planned*: the members put the new view into force by themselves, at the end of a step, which may take
minutes. Until then a member that is leaving still works with the others. It is out of the view, but if it
dies before they have moved on, they would wait for it in vain: so that makes another view, which interrupts.
"""

from dataclasses import dataclass, field

import msgspec

from outlast.protocol.assignment import assign, slices
from outlast.protocol.messages import Enlist, GaveUp, Register
from outlast.protocol.placing import placed
from outlast.protocol.poison import remembered, verdict
from outlast.protocol.views import (
    OFFENCES_MOST,
    Charge,
    Foundation,
    Intent,
    Member,
    Membership,
    Outcome,
    Retreat,
    Seat,
    ShardFailure,
    Standing,
    View,
    barred,
    needed,
)

CAUSE_LIMIT = 500
NOBODY_JOINED = "no replica called outlast.join: the script came to its end without taking part in the job"
INTENTS_KEPT = 64
CHARGES_KEPT = 64


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Why one replica leaves the view."""

    process: int
    standing: Standing
    cause: str
    proven: bool
    """Whether it is known to be gone or to be going, rather than suspected."""
    planned: bool = False
    """Whether the others can do without it from a step of their choice on: it works with them until then, or
    has done all of its work with them."""
    failing: bool = False
    """Whether it announced this itself, by its exception."""
    guilty: bool = False
    """Whether members have charged it."""
    closes: bool = False
    """Whether it was the chief, and has done what there was to do after the last step."""

    @property
    def leaves(self) -> bool:
        """Whether it has asked for this, and goes on until it is let go."""
        return self.proven and self.planned and self.standing is Standing.EVICTED


@dataclass(kw_only=True)
class Change:
    """What has been learned since the membership was agreed; keys are replica ids."""

    arrivals: dict[int, Register] = field(default_factory=dict)
    removals: dict[int, Removal] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    adopted: dict[int, int] = field(default_factory=dict)
    """Member → the newest view that it has adopted."""
    catching_up: set[int] = field(default_factory=set)
    """Those members that do not hold the training state yet."""
    holding: set[int] = field(default_factory=set)
    """Whoever says that it does, or did so when it was a learner."""
    final: set[int] = field(default_factory=set)
    """Learners that have the state after the last step."""
    form_now: bool = False
    """Whether the first view of a lineage has waited long enough for the rest."""
    staying: set[int] = field(default_factory=set)
    """Those whose program has ended well, and who only keep the final state for others."""
    chief: int = -1
    """Whose end they wait for."""
    left: set[str] = field(default_factory=set)
    """Agents that go with their replicas."""
    guardians: list[str] = field(default_factory=list)
    """Agents that are heard from."""
    enlists: dict[str, Enlist] = field(default_factory=dict)
    """Agent → its wish to be taken on, if there is nothing against it."""
    lost: set[str] = field(default_factory=set)
    """Agents that have been silent for so long that nobody waits for their machines."""
    gave_up: GaveUp | None = None
    failures: dict[int, ShardFailure] = field(default_factory=dict)
    last_words: dict[int, str] = field(default_factory=dict)
    intents: dict[int, Intent] = field(default_factory=dict)
    """Member → the checkpoint that it wants to commit."""
    foundations: dict[int, Foundation] = field(default_factory=dict)
    """Who is counted on → the claim under which it wants to begin the lineage."""
    charges: list[Charge] = field(default_factory=list)
    """What the members hold against some of them; the guilty are among the removals."""
    standstill: str = ""
    """Why the members have to begin their step again, though none of them is at fault."""
    gap: str = ""
    """The same, where it is known that a connection between two of them broke."""

    @property
    def moves(self) -> bool:
        """Whether there is more here than adoptions."""
        told = self.arrivals or self.removals or self.ready or self.final or self.failures or self.charges
        return bool(told or self.standstill or self.gap) or self.form_now or self.gave_up is not None


def plan(membership: Membership, change: Change) -> Membership:
    """The membership that should follow; equal to the old one when there is nothing to do."""
    if membership.outcome is not None:
        return membership
    membership = _activated(membership, change.adopted, change.catching_up)
    membership = _intended(membership, change.intents)
    membership = _founded(membership, change.foundations)
    membership = _cared_for(membership, change)
    membership = placed(membership, change)
    if not change.moves and not membership.closed:
        return membership
    draft = _Draft(membership)
    draft.answer(change.charges)
    draft.remove_proven(change.removals)
    draft.admit(change.arrivals)
    draft.remove_doubted(change.removals)
    draft.let_go(change.removals)
    draft.renew(change.gap or change.standstill, wonder=not change.gap)
    draft.promote(change.ready)
    draft.inherit(change.final)
    draft.form(change.form_now)
    draft.conclude(change)
    return draft.result(change.holding)


def _activated(membership: Membership, adopted: dict[int, int], catching_up: set[int]) -> Membership:
    """A view becomes active once somebody who holds the state has adopted it; from then on its members hold
    the state, each as soon as it has caught up. It need not be the newest one: planned views may be decided
    faster than they are adopted.
    """
    view, active, holders = membership.view, membership.active, membership.holders
    members = set(view.members)
    newest = max((adopted.get(holder.replica, 0) for holder in holders if holder in members), default=0)
    held = set(holders)
    if active < newest <= view.number:
        active = newest
        holders = tuple(member for member in view.members if member in held)
    caught_up = adopted.keys() - catching_up
    holders += tuple(
        member
        for member in view.members
        if member not in held
        and member.replica in caught_up
        and membership.seats[member.replica].member_since <= active
    )
    # Nobody works in an earlier view than this one any more, so nobody waits for who left before it.
    oldest = min((adopted.get(member.replica, 0) for member in view.members), default=0)
    departing = tuple(m for m in membership.departing if membership.seats[m.replica].left_in > oldest)
    return msgspec.structs.replace(
        membership,
        active=active,
        holders=holders,
        departing=departing,
        working_shards=() if active == view.number else membership.working_shards,
    )


def _intended(membership: Membership, wishes: dict[int, Intent]) -> Membership:
    """A member of the present lineage may commit what is newer than all that was recorded in it, and what is
    kept for the sake of a name."""
    intents = membership.intents
    for _, intent in sorted(wishes.items()):
        newest = max((known.step for known in intents if known.lineage == intent.lineage), default=-1)
        again = intent.named and intent not in intents
        if intent.lineage == membership.view.lineage and (intent.step > newest or again):
            intents += (intent,)
    return msgspec.structs.replace(membership, intents=intents[-INTENTS_KEPT:])


def _founded(membership: Membership, wishes: dict[int, Foundation]) -> Membership:
    """Whoever is counted on may begin the present lineage, in a view that no other has interrupted since. So
    a view that interrupts knows all that was recorded before it (`View.founded`), and so does who begins in
    it."""
    view, newest = membership.view, membership.foundation
    for _, wish in sorted(wishes.items()):
        in_force = wish.lineage == view.lineage and view.planned_since <= wish.view <= view.number
        if in_force and (newest is None or wish.order > newest.order):
            newest = wish
    return msgspec.structs.replace(membership, foundation=newest)


def _cared_for(membership: Membership, change: Change) -> Membership:
    """The chief whose agent has left is adopted by another one: all wait for what it has to do after the last
    step, and have the state that it needs for that. Where replicas are placed, that sees to it."""
    if membership.spec.is_placed:
        return membership
    left = tuple(sorted({*membership.left, *change.left}))
    if left != membership.left:
        membership = msgspec.structs.replace(membership, left=left)
    seat = membership.seats.get(change.chief)
    if not change.staying or membership.closed or seat is None or seat.present:
        return membership
    heirs = [agent for agent in change.guardians if agent not in left]
    if not heirs or membership.adopted.get(seat.replica, seat.agent) not in left:
        return membership
    return msgspec.structs.replace(membership, adopted={**membership.adopted, seat.replica: heirs[0]})


class _Draft:
    """The membership under change."""

    def __init__(self, membership: Membership) -> None:
        self.base = membership
        self.seats = dict(membership.seats)
        self.holders = membership.holders
        self.active = membership.active
        self.departing = membership.departing
        self.failures = membership.failures
        self.charges = membership.charges
        self.closed = membership.closed
        self.interrupts = False
        self.renews = False
        self.lineage = membership.view.lineage
        self.retreat = membership.view.retreat
        self.causes: list[str] = []
        self.outcome: Outcome | None = None

    def members(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.standing is Standing.MEMBER]

    def learners(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.standing is Standing.LEARNER]

    def answer(self, charges: list[Charge]) -> None:
        """Every charge ends the view, also one that names nobody: its members then go back together."""
        self.interrupts |= bool(charges)
        nameless = [charge for charge in charges if charge.replica < 0 and not charge.ends]
        self.causes += [f"step {charge.step}: {charge.reason}" for charge in nameless]
        self.causes += [f"step {charge.step}: the job is to end" for charge in charges if charge.ends]
        self.charges = (*self.charges, *charges)[-CHARGES_KEPT:]
        for charge in charges:
            if charge.back_to is not None and charge.view > self.retreat.view:
                self.retreat = Retreat(charge.view, charge.back_to, since=self.base.view.number + 1)

    def renew(self, why: str, *, wonder: bool) -> None:
        """The same members, in a new view. Comes after removals: if one of them interrupts, that was it what
        all waited for, and there is nothing to `wonder` about."""
        if why and not self.interrupts:
            self.interrupts, self.renews = True, wonder
            self.causes.append(why)

    def remove_proven(self, removals: dict[int, Removal]) -> None:
        for replica, removal in sorted(removals.items()):
            if removal.proven and not removal.leaves:
                self._remove(replica, removal)

    def remove_doubted(self, removals: dict[int, Removal]) -> None:
        """Comes after arrivals: a new life of a replica proves that its old one is dead, and what was held
        against that says nothing about the new one, though it may be of the same process."""
        doubted = {
            replica: removal
            for replica, removal in removals.items()
            if not removal.proven
            and self.seats[replica].process == removal.process
            and self._known(self.seats[replica])
        }
        if not any(self._still(holder) for holder in self.holders):
            # Every holder is proven dead: whoever was promoted beside them takes over.
            self.holders = tuple(seat.as_member() for seat in self.members())
        spared = self._must_stay(set(doubted))
        for replica, removal in sorted(doubted.items()):
            if replica not in spared:
                self._remove(replica, removal)
            elif removal.guilty:
                self.causes.append(f"{removal.cause}; but it stays, since nobody else holds the state")

    def let_go(self, removals: dict[int, Removal]) -> None:
        """Comes after all other removals: one that leaves is let go if the state stays, or has no heir."""
        leavers = {
            replica: removal
            for replica, removal in removals.items()
            if removal.leaves and self.seats[replica].process == removal.process
        }
        heirs = any(
            _may_inherit(seat) and seat.replica not in leavers and not self._is_shadow(seat)
            for seat in self.seats.values()
        )
        holding = sorted(holder.replica for holder in self.holders if self._still(holder))
        if heirs and holding and set(holding) <= leavers.keys():
            del leavers[holding[0]]
        for replica, removal in sorted(leavers.items()):
            self._remove(replica, removal)

    def _remove(self, replica: int, removal: Removal) -> None:
        seat = self.seats.get(replica) or Seat(replica=replica, standing=Standing.GONE)
        planned = removal.planned and removal.process == seat.process
        missed = self._counts_on(seat) and not planned
        self.interrupts |= missed
        if seat.present or missed:
            self.causes.append(removal.cause)
        offences = seat.offences + int(removal.guilty and seat.present)
        if removal.guilty and seat.present and offences >= OFFENCES_MOST:
            self.causes.append(f"replica {replica} has done so {offences} times, and is not let in again")
        self.closed |= removal.closes and self.lineage > 0
        life = seat.as_member()
        self.departing = tuple(member for member in self.departing if member != life)
        departs = seat.standing is Standing.MEMBER and planned and removal.leaves
        if departs:
            self.departing += (life,)
        self.seats[replica] = msgspec.structs.replace(
            seat,
            standing=removal.standing,
            process=removal.process,
            left_in=self.base.view.number + 1 if departs else seat.left_in,
            failing=removal.failing,
            offences=offences,
        )

    def _counts_on(self, seat: Seat) -> bool:
        return seat.standing is Standing.MEMBER or seat.as_member() in self.departing

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
            if before is not None and before.barred:
                continue
            # A new life proves that the old one is over, and somebody may be waiting for it.
            self.interrupts |= before is not None and self._counts_on(before)
            incarnation = before.incarnation + 1 if before else 1
            self.seats[replica] = Seat(
                replica=replica,
                standing=Standing.LEARNER,
                incarnation=incarnation,
                process=register.process,
                rejoin=register.rejoin,
                agent=register.agent,
                address=register.address,
                shards=register.shards,
                offences=before.offences if before is not None else 0,
            )
            self.causes.append(
                f"replica {replica} joins" if incarnation == 1 else f"replica {replica} is back"
            )

    def promote(self, ready: set[int]) -> None:
        if not self.members():
            return
        for seat in self.learners():
            if seat.replica in ready and self._known(seat) and not self._is_shadow(seat):
                self._set_member(seat)
                self.causes.append(f"replica {seat.replica} has caught up")

    def _known(self, seat: Seat) -> bool:
        """Whether this life was there before: what is said of a replica is not said of its next life."""
        before = self.base.seats.get(seat.replica)
        return before is not None and before.incarnation == seat.incarnation

    def inherit(self, final: set[int]) -> None:
        """When no member is left, the learners that have the final state go on in its place: there is nothing
        to train any more, so they lack nothing."""
        heirs = [seat for seat in self.learners() if seat.replica in final and self._known(seat)]
        if self.members() or not heirs or self.closed:
            return
        for seat in heirs:
            self._set_member(seat)
            self.causes.append(f"replica {seat.replica} has the final state")
        self.interrupts = True
        self.holders = tuple(seat.as_member() for seat in self.members())

    def form(self, form_now: bool) -> None:
        """Begin a lineage from the learners when no member is left to learn from."""
        learners = [seat for seat in self.learners() if not self._is_shadow(seat)]
        if self.members() or not learners or self.closed:
            return
        awaited = self.base.spec.replicas - (0 if self.lineage else self._finished_count()) - self._barred()
        if len(learners) < (self._needed() if form_now else awaited):
            return
        for seat in learners:
            self._set_member(seat)
        self.lineage += 1
        self.holders = ()
        self.causes = ["the first view" if self.lineage == 1 else "no member was left: a new lineage begins"]

    def _set_member(self, seat: Seat) -> None:
        since = self.base.view.number + 1
        self.seats[seat.replica] = msgspec.structs.replace(seat, standing=Standing.MEMBER, member_since=since)

    def _is_shadow(self, seat: Seat) -> bool:
        return self.base.spec.is_shadow(seat.replica)

    def _finished_count(self) -> int:
        seats = (seat for seat in self.seats.values() if not self._is_shadow(seat))
        return sum(seat.standing is Standing.FINISHED for seat in seats)

    def _needed(self) -> int:
        return needed(self.base.spec, self._finished_count() + self._barred())

    def _barred(self) -> int:
        return barred(self.base.spec, self.seats.values())

    def conclude(self, change: Change) -> None:
        gave_up = change.gave_up
        self.failures = remembered(self.failures, (failure for _, failure in sorted(change.failures.items())))
        nobody_left = self.base.view.lineage > 0 and not any(map(self._still, self.base.view.members))
        poison = verdict(self.failures, change.last_words, nobody_left=nobody_left)
        ending = next((charge for charge in change.charges if charge.ends), None)
        if ending is not None:
            self.outcome = Outcome(finished=False, reason=ending.reason)
        elif poison is not None:
            self.outcome = poison
        elif gave_up is not None and not self.base.spec.is_shadow(gave_up.replica):
            self.outcome = Outcome(
                finished=False,
                reason=gave_up.reason,
                replica=gave_up.replica,
                last_words=gave_up.last_words,
            )
        elif self.closed and all(seat.replica in change.staying for seat in self.members()):
            self.outcome = Outcome(finished=True, reason="all work is done")
        elif not self.lineage and self._finished_count() == self.base.spec.replicas:
            self.outcome = Outcome(finished=False, reason=NOBODY_JOINED)

    def result(self, holding: set[int]) -> Membership:
        view = self._view(any(seat.replica in holding and self._known(seat) for seat in self.members()))
        if self.lineage != self.base.view.lineage:
            # A new lineage has nobody before it who could adopt it: its members are its first holders.
            self.active, self.holders = view.number, view.members
        working = self.base.working_shards
        if not view.planned:
            # It interrupts everybody who is in it, and voids the work of everybody who is not.
            self.departing = working = ()
        elif view.shards != self.base.view.shards:
            working = working or self.base.view.shards
        return msgspec.structs.replace(
            self.base,
            view=view,
            seats=self.seats,
            active=self.active,
            holders=self.holders,
            departing=self.departing,
            working_shards=working,
            failures=self.failures,
            charges=self.charges,
            closed=self.closed,
            outcome=self.outcome,
        )

    def _view(self, somebody_holds: bool) -> View:
        before = self.base.view
        members = tuple(sorted((seat.as_member() for seat in self.members()), key=lambda m: m.replica))
        learners = tuple(sorted((seat.as_member() for seat in self.learners()), key=lambda m: m.replica))
        paused = 0 < len(members) < self._needed()
        if not members and not before.members and not self.interrupts:
            # Nobody trains, so nobody needs to hear who is gathering.
            return before
        lives = (members, learners, self.lineage, paused)
        same = lives == (before.members, before.learners, before.lineage, before.paused)
        if same and not self.interrupts:
            return before
        number = before.number + 1
        planned = not self.interrupts and self.lineage == before.lineage
        shards, slices_ = self._layout(members, planned)
        return View(
            number=number,
            lineage=self.lineage,
            members=members,
            learners=learners,
            shards=shards,
            slices=slices_,
            cause="; ".join(self.causes)[:CAUSE_LIMIT],
            planned_since=before.planned_since if planned else number,
            founded=self.base.foundation.claim if self.base.foundation is not None else 0,
            retreat=self.retreat if self.lineage == before.lineage else Retreat(),
            void_before=before.void_before if planned or somebody_holds or not members else number,
            paused=paused,
            renews=self.renews,
        )

    def _layout(self, members: tuple[Member, ...], planned: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Who computes which shard, and who reduces which slice."""
        before = self.base.view
        if planned and members == before.members:
            return before.shards, before.slices
        if not members:
            return (), ()
        replicas = [member.replica for member in members]
        if planned or self.lineage != before.lineage:
            return assign(self._shard_count(), replicas, None), slices(replicas, None)
        # In the middle of a step, every shard that moves away from who works on it is computed again.
        working = self.base.working_shards or before.shards
        return assign(self._shard_count(), replicas, working or None), slices(replicas, before.slices or None)

    def _shard_count(self) -> int:
        """A lineage keeps the number that it began with: that of the first member whose script asks."""
        before = self.base.view
        if before.shards and self.lineage == before.lineage:
            return len(before.shards)
        members = sorted(self.members(), key=lambda seat: seat.replica)
        return next((seat.shards for seat in members if seat.shards), self.base.spec.shards)


def _may_inherit(seat: Seat) -> bool:
    """Whether it is here to be given the training state, or may come back for it by itself."""
    return seat.present or (seat.standing is Standing.EVICTED and not seat.left_in)


def _runs(seat: Seat) -> bool:
    return seat.standing not in (Standing.GONE, Standing.FINISHED)
