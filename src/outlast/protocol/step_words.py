"""The words of the agreement on steps: what members say to each other, and what the core wants done.

`steps.py` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

import msgspec

from outlast.protocol.views import Member, View

BLANK = -1
"""The newest record of a life that has no training state yet."""


class Trial(IntEnum):
    """How often an attempt at a step has been made in one view, and what for."""

    FIRST = 0
    HEARING = 1
    """Nothing is reduced: what is doubted is computed again by others, and compared."""
    FINAL = 2
    """Slices are reduced again, without what the hearing found to be bad."""


class Mode(Enum):
    IDLE = auto()
    LEARNING = auto()
    RECONCILING = auto()
    LOADING = auto()
    """A blank member that waits for the state."""
    FOUNDING = auto()
    """All are blank, and it is on this one to say what the lineage begins with: a checkpoint, or nothing."""
    FETCHING = auto()
    """A member that waits for records that others hold."""
    JOINING = auto()
    """A learner that has become a member in band, and waits for the record of the switch."""
    RUNNING = auto()
    VOID = auto()
    """The states of members differ: it has gone back, and waits for the view in which all do."""
    PAUSED = auto()
    """There are too few members to go on."""
    DONE = auto()


# What members know of the state being right; see `verifying.py`.


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Where the run went back: the attempts of this view, and of all before it, are void after that step."""

    view: int = 0
    step: int = BLANK


class Difference(msgspec.Struct, frozen=True, array_like=True):
    """What a member remembers of states that differed; see `repeating.py`."""

    step: int = BLANK
    """It was the states after this one."""
    members: tuple[int, ...] = ()
    """Who differed from a majority, and has not agreed with the others since."""
    names: bytes = b""
    """The entries in which they differed."""
    plain: bytes = b""
    """All plain ones in which states have ever differed."""


class Check(msgspec.Struct, frozen=True, array_like=True):
    """What a member says of its state in a part."""

    step: int = BLANK
    """The state that it compares with the others: the one after this step."""
    digest: bytes = b""
    """Empty until it is known."""
    verified: int = BLANK
    """The newest verified state of which it has a copy."""
    due: bool = False
    """The state after the step of this part should be compared."""
    checksum: int = 0
    """Of what it contributes to the step, if there are two members."""
    buffers: bytes = b""
    """Digest of the model's buffers from which it has computed that; empty if it says nothing of them."""
    entries: bytes = b""
    """Digests of the entries of the state that it compares."""
    buffer_entries: bytes = b""
    """Those of the buffers, said where members have gone back before."""
    before: Difference | None = None


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What a record says of the state."""

    chosen: bool = False
    """The state after this step is to be compared."""
    verified: int = BLANK
    """All have the same state after this step, which has that digest."""
    digest: bytes = b""
    dropped: int = BLANK
    """Of this step's state nothing can be said any more: fewer than two have it."""
    fork: Fork = Fork()
    """The newest one behind this record."""
    entries: bytes = b""
    """Digests of the entries of the verified state, for learners that have another one."""


NO_FORK = Fork()
NOTHING_SAID = Verdict()


# What members say to each other. Each travels in a frame with its view and its sender's life.


@dataclass(frozen=True)
class Holding:
    """I have adopted this view out of step, or answer one who has; my newest record is that one."""

    newest: int
    running: bool = False
    """Not a question: said in answer, by one who came into this view in band and trains in it; or in a paused
    view, by one who holds all there is."""
    verified: int = BLANK
    """The newest verified state of which it has a copy."""
    fork: Fork = NO_FORK


@dataclass(frozen=True)
class Want:
    """Send me the records from this one on."""

    step: int


@dataclass(frozen=True)
class Part:
    """All that I contribute to this step is with you; I hold the record of the step before."""

    step: int
    pending: int = 0
    """The newest planned view that I know of; 0 for none."""
    closing: bool = False
    """I have left the loop of steps and contribute nothing any more."""
    trial: int = Trial.FIRST
    check: Check | None = None
    """None from one that compares nothing."""


@dataclass(frozen=True)
class Ending:
    """I have come to the end of the loop of steps, and hold the state after this one."""

    step: int
    check: Check


@dataclass(frozen=True)
class Surveyed:
    """What has to be known of the slice that I own, before any is reduced, is with you."""

    step: int
    trial: int = Trial.FIRST


@dataclass(frozen=True)
class Sum:
    """The slice that I own of this step is reduced, and with you."""

    step: int
    trial: int = Trial.FIRST


@dataclass(frozen=True)
class Whole:
    """The record of a step, in answer to `Want`."""

    step: int
    verdict: Verdict = NOTHING_SAID


@dataclass(frozen=True)
class Gone:
    """I do not keep the record of this step any more."""

    step: int


@dataclass(frozen=True)
class Handed:
    """The record with which members switched to a view that makes you one of them."""

    step: int
    verdict: Verdict = NOTHING_SAID


@dataclass(frozen=True)
class Switched:
    """We have switched to this view in band; from here on it is the one in force."""

    view: View


Body = Holding | Want | Part | Ending | Surveyed | Sum | Whole | Gone | Handed | Switched


# What the core wants done.


@dataclass(frozen=True)
class Say:
    to: tuple[int, ...]
    body: Body


@dataclass(frozen=True)
class Found:
    """All are blank, and this replica is the one whose state is the beginning: that of a checkpoint, if there
    is one, or its own. Say so with `founded`, which may take a while."""


@dataclass(frozen=True)
class Attempt:
    """Contribute to this step in this view: now, or again."""

    step: int
    trial: int = Trial.FIRST


@dataclass(frozen=True)
class Survey:
    """All parts are in: survey the own slice, send that to all, and say so with `surveyed`."""

    step: int
    trial: int = Trial.FIRST


@dataclass(frozen=True)
class Conclude:
    """All parts are in, and all surveys where there are any: finish the own slice, send it, and say so with
    `summed`."""

    step: int
    trial: int = Trial.FIRST


@dataclass(frozen=True)
class Judge:
    """All sums of this trial are in: say with `judged` whether the step is complete with it, or needs the
    next trial. As long as nothing is said, the step waits for a view that decides otherwise."""

    step: int
    trial: int = Trial.FIRST


@dataclass(frozen=True)
class Completed:
    """The record of this step is held now."""

    step: int
    verdict: Verdict = NOTHING_SAID


@dataclass(frozen=True)
class Stable:
    """All members hold the record of this step: it may be told to others. Each step is named once, in order,
    by every member that trains then; who has come later begins with what it has not been given as stable."""

    step: int


@dataclass(frozen=True)
class Follow:
    """Adopt this planned view now."""

    number: int


@dataclass(frozen=True)
class Pin:
    """Give `to` the state after `step`, each server its share."""

    to: Member
    step: int
    servers: tuple[int, ...]


@dataclass(frozen=True)
class Feed:
    """Send the record of this stable step to all learners, each member its share."""

    step: int


@dataclass(frozen=True)
class HandOver:
    """Send the record of this step to new members, each server its share."""

    step: int
    to: tuple[int, ...]
    servers: tuple[int, ...]


@dataclass(frozen=True)
class FeedAgain:
    """Send what is kept and stable to all learners once more: who sends which share has changed. A learner
    that needs one before `first` cannot catch up any more, nor one that is past `top`; see `fed_from`."""

    first: int
    last: int
    top: int
    """The newest record that any member has."""


@dataclass(frozen=True)
class Digest:
    """Copy the state after this step when the model stands there, digest the copy, and say so with
    `digested`."""

    step: int


@dataclass(frozen=True)
class Verified:
    """All members have the same state after this step, and this life, too, as far as it knows its own."""

    step: int
    kept: bool
    """Whether the own copy of it is what members may go back to."""


@dataclass(frozen=True)
class Dropped:
    """The state after this step will not be compared any more."""

    step: int


@dataclass(frozen=True)
class Differ:
    """The states of members after this step differ. Those named differ from a majority; nobody is named if
    there is none."""

    step: int
    members: tuple[int, ...]
    back_to: int
    buffers: bool = False
    """It is the buffers with which they begin the step after it."""
    again: bool = False
    """They have done so before, in such a way that no machine is to blame: say so with `charge`, and end the
    job."""
    entries: Mapping[int, bytes] = field(default_factory=dict, compare=False)
    """Member → digests of the entries of its state, or of its buffers."""
    earlier: tuple[int, ...] = field(default=(), compare=False)
    """Who was named before, and has not agreed with the others since."""


@dataclass(frozen=True)
class Accused:
    """Steps that were void have been done again: it was this member that was wrong, at that step."""

    member: int
    step: int


@dataclass(frozen=True)
class GoBack:
    """Load the copy of the state after this step; `BLANK`: the own state is void, and another is given.
    Records after it are void."""

    fork: Fork
    step: int


@dataclass(frozen=True)
class EndReached:
    """All have come to the end of the loop of steps, and none has another state than this replica."""

    step: int


@dataclass(frozen=True)
class AllDone:
    """Everybody has left the loop of steps and holds the last record."""


@dataclass(frozen=True)
class LeftAlone:
    """This replica has left the loop of steps, and these others have not."""

    others: tuple[int, ...]


@dataclass(frozen=True)
class Lost:
    """This life cannot catch up any more; it has to come back as a new one."""

    reason: str
    differ: Differ | None = field(default=None, compare=False)
    """In what its state differs from that of members, if it does."""


StepAction = (
    Say
    | Found
    | Attempt
    | Survey
    | Conclude
    | Judge
    | Completed
    | Stable
    | Follow
    | Pin
    | Feed
    | HandOver
    | FeedAgain
    | Digest
    | Verified
    | Dropped
    | Differ
    | Accused
    | GoBack
    | EndReached
    | AllDone
    | LeftAlone
    | Lost
)
