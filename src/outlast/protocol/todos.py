"""What there is to do for a training thread, and only for it: it alone touches the model.

It asks (`Driver.next`), does one of these without the lock, says that it is done (`Driver.did`), and asks
again. Each belongs to the life in which it was given out; one that is void by the time it is done is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from outlast.protocol.header import Header
from outlast.protocol.inbox import Arrival
from outlast.protocol.kinds import ReadRequest
from outlast.protocol.saving import Save
from outlast.protocol.seams import At, Record
from outlast.protocol.step_words import Fork, Pin
from outlast.protocol.step_words import GoBack as Back
from outlast.protocol.views import Member, Outcome


class Stage(Enum):
    """Where the script is."""

    STARTING = auto()
    """It waits for the state to begin with."""
    STEPPING = auto()
    ENDING = auto()
    """It has come to the end of its loop of steps, whose last state is compared first."""
    CLOSING = auto()
    """It has left the loop for good."""


@dataclass(frozen=True, eq=False)
class Compute:
    """The shards of this attempt, the own ones or those that it is a witness for; then contribute."""

    at: At
    afresh: bool = False
    """What has been computed of the step was found to be wrong."""
    members: int = 1
    wary: bool = False
    """Whether members have gone back before, so that each entry of the buffers is looked at."""


@dataclass(frozen=True, eq=False)
class Apply:
    """The result of the next step."""

    record: Record


@dataclass(frozen=True, eq=False)
class Give:
    """Copy the own share of the state: say `Described`, and `Gave` when it is copied."""

    pin: Pin
    header: Header
    at_once: bool
    """Whether somebody keeps everybody waiting until it has it."""


@dataclass(frozen=True, eq=False)
class Copy:
    """The own share of the state, which is saved."""

    save: Save


@dataclass(frozen=True, eq=False)
class Keep:
    """The whole state, which the script wants saved by name."""

    step: int


@dataclass(frozen=True, eq=False)
class Digest:
    """Copy the state, and digest the copy: `Digested`."""

    step: int
    life: object
    fork: Fork


@dataclass(frozen=True, eq=False)
class GoBack:
    """Load the copy of a verified state; if there is none, the state is void."""

    back: Back


@dataclass(frozen=True, eq=False)
class Load:
    """Become the state that was given."""

    arrival: Arrival


@dataclass(frozen=True, eq=False)
class Found:
    """Find out what the lineage begins with, and become that; may take minutes."""

    view: int
    lineage: int


@dataclass(frozen=True, eq=False)
class Read:
    """Read some of a checkpoint for the one who founds."""

    view: int
    founder: Member
    request: ReadRequest


@dataclass(frozen=True, eq=False)
class Leave:
    """A view has let this process go, as it wished."""


@dataclass(frozen=True, eq=False)
class JobEnded:
    outcome: Outcome


@dataclass(frozen=True, eq=False)
class Finished:
    """This stage is over."""


Todo = (
    Compute | Apply | Give | Copy | Keep | Digest | GoBack | Load | Found | Read | Leave | JobEnded | Finished
)
