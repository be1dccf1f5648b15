"""The vocabulary of membership: who takes part, in which life, under which number.

A *view* is one agreed membership. Its number only ever grows by one; whatever is said between replicas
carries the number, and that is the whole of fencing: older is dropped, newer is held until the receiver has
caught up. A *seat* is what the job knows about one replica id over all its lives; an *incarnation* is one of
those lives. A *membership* is the document that the store keeps: all seats, the current view, the outcome.

The document is replaced as a whole, under a comparison of its revision, so no reader ever sees half a change.
"""

from enum import StrEnum

import msgspec

from outlast.errors import ConfigError

PROCESS_SERIAL_BITS = 20


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
    """Parts of a step's global batch; fixed for the run, whoever is alive."""

    def validate(self) -> None:
        if self.replicas < 1:
            raise ConfigError(f"replicas is {self.replicas}, but a job needs at least 1; pass -n 1 or more")
        if self.shards < 1:
            raise ConfigError(
                f"shards is {self.shards}, but a step has at least 1; leave it out for {self.replicas}"
            )


class Member(msgspec.Struct, frozen=True):
    """One life of a replica, and where its peers reach it."""

    replica: int
    incarnation: int
    address: str = ""


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

    def member(self, replica: int) -> Member | None:
        return next((m for m in self.members if m.replica == replica), None)

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

    @property
    def present(self) -> bool:
        return self.standing in (Standing.LEARNER, Standing.MEMBER)

    def as_member(self) -> Member:
        return Member(self.replica, self.incarnation, self.address)


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
    """The members of that view: who is known to hold the training state."""
    outcome: Outcome | None = None


def process_number(boot: int, serial: int) -> int:
    """An agent's processes in the order of their start: its own restarts first, then its starts."""
    return boot << PROCESS_SERIAL_BITS | serial


def boot_of(process: int) -> int:
    return process >> PROCESS_SERIAL_BITS
