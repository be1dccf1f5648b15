"""The vocabulary of membership: who takes part, in which life, under which number.

A *view* is one agreed membership. Its number only ever grows by one; whatever is said between replicas
carries the number, and that is the whole of fencing: older is dropped, newer is held until the receiver has
caught up. Most changes can wait for the end of a step: a *planned* view is put into force by its members
together, between two steps. One that cannot wait, because somebody is missing, interrupts them. A *seat* is
what the job knows about one replica id over all its lives; an *incarnation* is one of those lives. A
*membership* is the document that the store keeps: all seats, the current view, the outcome.

The document is replaced as a whole, under a comparison of its revision, so no reader ever sees half a change.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from outlast.errors import ConfigError

PROCESS_SERIAL_BITS = 20
SHARDS_MOST = 65536
OFFENCES_MOST = 3
"""A machine that was found to be wrong so often is broken."""


class Standing(StrEnum):
    """What a replica id currently is to the job."""

    LEARNER = "learner"
    """Alive and catching up; receives everything, contributes nothing."""
    MEMBER = "member"
    EVICTED = "evicted"
    """Still running, as far as anyone knows, but its incarnation is void."""
    GONE = "gone"
    """Its process has exited."""
    FINISHED = "finished"
    """Its process has exited after doing all of its work."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; fixed for the run."""

    name: str
    replicas: int
    shards: int
    """Parts of a step's global batch; fixed for the run, whoever is alive. A script may ask for another
    number, see `Register.shards`."""
    min_replicas: int = 1
    """With fewer members than this, training pauses; more keeps results comparable, fewer keeps going."""
    shadows: int = 0
    """Learners that are never promoted, with the ids after the replicas': they write checkpoints, so that
    members do not have to."""
    per_machine: int = 0
    """How many of them a machine has room for; 0 where agents know from the start which they run."""

    @property
    def processes(self) -> int:
        return self.replicas + self.shadows

    @property
    def is_placed(self) -> bool:
        """Whether it is agreed on which replica runs where, rather than known from the start."""
        return self.per_machine > 0

    def is_shadow(self, replica: int) -> bool:
        return replica >= self.replicas

    def validate(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}, but a job needs at least 1; pass -n 1 or more")
        if not 1 <= self.shards <= SHARDS_MOST:
            raise ConfigError(
                f"shards is {self.shards}, but must lie between 1 and {SHARDS_MOST}; leave it out for "
                f"{self.replicas}"
            )
        if not 1 <= self.min_replicas <= self.replicas:
            raise ConfigError(
                f"min_replicas (--min-replicas) is {self.min_replicas}, but must lie between 1 and the "
                f"number of replicas, {self.replicas}"
            )


class Member(msgspec.Struct, frozen=True):
    """One life of a replica, and where its peers reach it."""

    replica: int
    incarnation: int
    address: str = ""


class Retreat(msgspec.Struct, frozen=True, array_like=True):
    """Where members go back because a charge says so. They know it by themselves, but who does may die before
    it tells the others."""

    view: int = 0
    """The view whose attempt was void; 0 if there was none."""
    step: int = -1
    since: int = 0
    """The first view whose members all know of it."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One agreed membership."""

    number: int = 0
    lineage: int = 0
    """Grows when no member survived, so that training starts again from a checkpoint or the beginning."""
    members: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()
    shards: tuple[int, ...] = ()
    """Shard index → replica that computes it."""
    slices: tuple[int, ...] = ()
    """Slice index → replica that reduces it."""
    cause: str = ""
    """Why this view followed the one before, for people."""
    planned_since: int = 0
    """All views from this one to ours followed each other by planned changes, so a member may still work in
    any of them. A view that interrupts its members has its own number here."""
    paused: bool = False
    """There are too few members: they hold still until a view has enough."""

    renews: bool = False
    """The members of the view before all waited for each other; see `standstill.py`."""

    founded: int = 0
    """The newest claim that a lineage was allowed to begin under before this view; see `Foundation`."""

    retreat: Retreat = Retreat()
    """The newest one of this lineage."""

    void_before: int = 0
    """States that learners were given in earlier views than this are void: no member was known to have one
    then, so what the lineage goes on from may have been found anew."""

    @property
    def planned(self) -> bool:
        """Whether its members put it into force between two steps, rather than at once."""
        return self.planned_since < self.number

    def member(self, replica: int) -> Member | None:
        # Asked for every piece of every gradient; a generator would cost more than the look.
        for member in self.members:
            if member.replica == replica:
                return member
        return None

    def learner(self, replica: int) -> Member | None:
        return next((m for m in self.learners if m.replica == replica), None)

    def holds(self, replica: int, incarnation: int) -> bool:
        """Whether this very life is in the view, as a member or a learner."""
        entry = self.member(replica) or self.learner(replica)
        return entry is not None and entry.incarnation == incarnation

    @property
    def chief(self) -> int | None:
        """The member that prints; a convenience, never a lock."""
        return self.members[0].replica if self.members else None


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """What the job knows of one replica id."""

    replica: int
    standing: Standing
    incarnation: int = 0
    process: int = 0
    """Which process of the agent's; grows with every start, also across restarts of the agent."""
    rejoin: int = 0
    """How often that process has come back after an eviction."""
    agent: str = ""
    address: str = ""
    shards: int = 0
    """How many shards its script asks for; 0 if it does not care."""
    member_since: int = 0
    """The view that made this life a member; 0 while none has."""
    left_in: int = 0
    """The planned view without this life, which was a member until then; 0 while there is none."""
    failing: bool = False
    """It has announced its own failure; its exit will be the rest of that."""
    offences: int = 0
    """How often a life of this replica was evicted because of a charge."""

    @property
    def barred(self) -> bool:
        """Whether it is not let in again."""
        return self.offences >= OFFENCES_MOST

    @property
    def present(self) -> bool:
        return self.standing in (Standing.LEARNER, Standing.MEMBER)

    def as_member(self) -> Member:
        return Member(self.replica, self.incarnation, self.address)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that was taken on, and with it its machine."""

    boot: int
    start: str
    """Which start of the agent this is, as it says itself."""
    home: str
    """Which machine it is, whatever its name: two may have been given the same one."""
    room: int


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a replica is to run."""

    agent: str
    boot: int
    """From the same counter as the boots of agents: nobody else numbers processes by it."""


class ShardFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A process that failed by its own fault while it computed a shard."""

    step: int
    shard: int
    replica: int
    process: int
    """Counts once, though its failure is told twice: by itself, and by its agent when it has exited."""
    reason: str


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """That a checkpoint is about to be committed: recorded before its manifest is put."""

    step: int
    lineage: int
    seal: str
    """The hash of the manifest."""
    named: bool = False
    """Of a state that was kept until it could be saved: others may have tried before, or saved newer ones."""


class Foundation(msgspec.Struct, frozen=True, kw_only=True):
    """That a lineage is about to begin: recorded before anybody is given its state. Who is out of the view by
    then gets no answer, and begins nothing."""

    lineage: int
    view: int
    """The view in which its maker was to say what the lineage begins with."""
    claim: int
    """The number of the claim in the storage, which says what it goes on from. It has been put, and its maker
    has looked once more whether that is the newest."""

    @property
    def order(self) -> tuple[int, int]:
        return self.view, self.claim


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What members hold against one of them, or against what they have done together; see `charges.py`."""

    view: int
    """The view that it was found in. A view that interrupts its members since then has answered it."""
    step: int
    reason: str
    replica: int = -1
    """Who is to go; -1 if it is not known who is at fault, or nobody: then only the view is to end."""
    incarnation: int = 0
    ends: bool = False
    """The program is at fault, and the job is to end: starting it again would lead to the same."""
    back_to: int | None = None
    """The step that all members go back to."""

    @property
    def life(self) -> tuple[int, int]:
        return self.replica, self.incarnation


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How the job ended."""

    finished: bool
    reason: str
    replica: int = -1
    last_words: str = ""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The document in the store: all that has been agreed."""

    spec: JobSpec
    view: View = View()
    seats: dict[int, Seat] = {}
    active: int = 0
    """The newest view that a holder of the training state has adopted."""
    holders: tuple[Member, ...] = ()
    """Who is known to hold the training state: members of that view that are still there, without those that
    were promoted and are still catching up."""
    departing: tuple[Member, ...] = ()
    """Who is out of the view by a planned change, while members may still work in a view with it."""
    working_shards: tuple[int, ...] = ()
    """Who computes which shard as long as the view is planned and not active, if the view says otherwise."""
    failures: tuple[ShardFailure, ...] = ()
    """The newest of them; a shard that fails on two replicas is at fault itself."""
    intents: tuple[Intent, ...] = ()
    """The newest checkpoints that members were allowed to commit, in order."""
    foundation: Foundation | None = None
    """Under which claim the lineage was last allowed to begin."""
    charges: tuple[Charge, ...] = ()
    """The newest of those that were followed, in order."""
    left: tuple[str, ...] = ()
    """Agents that have gone with their replicas, and do not come back."""
    adopted: dict[int, str] = {}
    """Replicas that another agent than their own cares for: the chief, if its agent has left before the chief
    had done what comes after the last step."""
    boots: int = 0
    """The newest number that was given to an agent or a place."""
    hosts: dict[str, Host] = {}
    """Agent → what is known of it, where agents have to be taken on."""
    places: dict[int, Place] = {}
    closed: bool = False
    """Whether the chief's program has ended well after the last step: the others may end, too."""
    outcome: Outcome | None = None

    @property
    def finished(self) -> int:
        """How many replicas have done all of their work."""
        seats = (seat for replica, seat in self.seats.items() if not self.spec.is_shadow(replica))
        return sum(seat.standing is Standing.FINISHED for seat in seats)

    @property
    def needed(self) -> int:
        """How many members it takes to train; who has finished or is barred is not waited for."""
        return needed(self.spec, self.finished + barred(self.spec, self.seats.values()))

    def placed_by_agent(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """The replicas in the care of each agent, each with the number of its place."""
        placed: dict[str, tuple[tuple[int, int], ...]] = {}
        for replica, place in sorted(self.places.items()):
            placed[place.agent] = (*placed.get(place.agent, ()), (replica, place.boot))
        return placed

    def counts_on(self, seat: Seat) -> bool:
        """Whether somebody may be waiting for this life: it is a member, or was one until a planned view."""
        return seat.standing is Standing.MEMBER or seat.as_member() in self.departing


def needed(spec: JobSpec, over: int) -> int:
    """`over`: how many replicas are not to come any more."""
    return max(min(spec.min_replicas, spec.replicas - over), min(1, spec.replicas - over))


def barred(spec: JobSpec, seats: Iterable[Seat]) -> int:
    """How many are not let in again, and have not finished either."""
    return sum(
        seat.barred and seat.standing is not Standing.FINISHED and not spec.is_shadow(seat.replica)
        for seat in seats
    )


def process_number(boot: int, serial: int) -> int:
    """An agent's processes in the order of their start: its own restarts first, then its starts."""
    return boot << PROCESS_SERIAL_BITS | serial


def boot_of(process: int) -> int:
    return process >> PROCESS_SERIAL_BITS


def serial_of(process: int) -> int:
    return process & ((1 << PROCESS_SERIAL_BITS) - 1)
