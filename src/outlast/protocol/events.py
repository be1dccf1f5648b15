"""What happens in a run, as typed facts that people, programs and checkers are told of.

An event is pure data: whoever decides or sees something says *what* it was, in the protocol's own words, and
nothing else. When that was, who said it and in which life is added by whoever writes it down
(`observe/written.py`), so a core that has no clock can make events, and two runs of one seed make the same.

Each kind has its class name in snake case as its tag, under `kind`. A reader ignores fields that it does not
know. Fields may be added with a default; when one changes its meaning or goes, the version of the envelope
grows. `docs/events.md` documents them all, and a test holds it against the classes below.

The names are short because they are meant to be read with the module's: `events.View`, `events.Ended`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from outlast.protocol import views


def _snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and at else c.lower() for at, c in enumerate(name))


Evidence = Literal["charge", "own_word", "leaving", "suspicion"]
"""Why somebody is evicted: a majority charged it, it announced its own failure, it asked to leave, or it was
silent, stuck or cut off."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_snake_case):
    """The root of all events."""


class Life(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One life of a replica; written as [replica, incarnation]."""

    replica: int
    incarnation: int


# Processes: they are named as they name themselves when they write, "replica-2", "agent-0", "coordinator".


class Begun(Event, frozen=True, kw_only=True):
    """The launcher has made the run's directory, and starts its parts."""

    run: str
    replicas: int
    shards: int
    min_replicas: int = 1
    shadows: int = 0


class Started(Event, frozen=True, kw_only=True):
    """A replica's process runs for the first time."""

    who: str
    process: int = 0
    """Which one it is in the order in which its agent started them."""
    pid: int = 0


class Restarted(Event, frozen=True, kw_only=True):
    """A process was started in place of one that is gone."""

    who: str
    process: int = 0
    pid: int = 0
    cause: str = ""
    """What became of the one before."""


class Died(Event, frozen=True, kw_only=True):
    """A process is gone, and its work was not done."""

    who: str
    process: int = 0
    incarnation: int = 0
    """Its last life; 0 if it never joined."""
    cause: str
    step: int = -1
    """The step that it was computing, if it died by its own fault; else -1."""


# Lives and views.


class Joined(Event, frozen=True, kw_only=True):
    """A life has been admitted, and takes part from here on."""

    replica: int
    incarnation: int
    process: int = 0
    pid: int = 0


class LifeOver(Event, frozen=True, kw_only=True):
    """A life has ended without dying: it was fenced, has nothing to go on from, or has done its work."""

    replica: int
    incarnation: int
    reason: str
    finished: bool = False
    """Whether it has done all of its work."""
    closes: bool = False
    """Whether it was the chief, and the job is done with what it did after the last step."""


class View(Event, frozen=True, kw_only=True):
    """A view was agreed on, if the coordinator says it; if a replica does, it has adopted it."""

    number: int
    lineage: int = 0
    members: tuple[Life, ...] = ()
    learners: tuple[Life, ...] = ()
    planned_since: int = 0
    """The era: all views from this one on followed each other by planned changes."""
    paused: bool = False
    cause: str = ""

    @property
    def planned(self) -> bool:
        """Whether it did not interrupt its members."""
        return self.planned_since < self.number

    @classmethod
    def of(cls, view: views.View) -> View:
        return cls(
            number=view.number,
            lineage=view.lineage,
            members=lives(view.members),
            learners=lives(view.learners),
            planned_since=view.planned_since,
            paused=view.paused,
            cause=view.cause,
        )


class Evicted(Event, frozen=True, kw_only=True):
    """The coordinator has taken a life out that may still run."""

    replica: int
    incarnation: int
    view: int
    """The first one without it."""
    cause: str
    evidence: Evidence = "suspicion"


class Promoted(Event, frozen=True, kw_only=True):
    """A learner has caught up and becomes a member."""

    replica: int
    incarnation: int
    view: int


class Standstill(Event, frozen=True, kw_only=True):
    """All members waited for each other; the view was renewed."""

    view: int
    cause: str


class Leading(Event, frozen=True, kw_only=True):
    """A coordinator process has become the one that decides, and has read what was agreed before."""

    term: int
    view: int


# Steps. What was completed is named by its lineage, by the view of the newest fork behind it, and its number.


class Step(Event, frozen=True, kw_only=True):
    """A life holds the record of a step."""

    step: int
    view: int
    """The view whose attempt made it, or for one that was given, in which it was given."""
    lineage: int = 0
    fork: int = 0
    loss: float | None = None
    """None if it is not finite, or nobody computed one."""
    own: bool = True
    """Whether it comes from an attempt that this life took part in; else others gave it."""


class Stable(Event, frozen=True, kw_only=True):
    """All members of the view hold the record of this step."""

    step: int
    view: int
    lineage: int = 0
    fork: int = 0


class Screened(Event, frozen=True, kw_only=True):
    """Contributions to a step were doubted, and something came of it."""

    step: int
    view: int
    left_out: tuple[int, ...] = ()
    """Shards whose data or model was at fault."""
    charged: tuple[int, ...] = ()
    """Replicas that were found to be wrong."""
    reason: str = ""


class WentBack(Event, frozen=True, kw_only=True):
    """States differed, so this life is back at the state after an earlier step."""

    step: int
    fork: int
    """The view whose attempts are void after that step."""
    reason: str = ""


# The state.


class Saved(Event, frozen=True, kw_only=True):
    """How a checkpoint stands."""

    stage: Literal["decided", "committed", "given_up"]
    step: int
    lineage: int = 0
    name: str = ""
    """Of one that the script asked for by name."""
    reason: str = ""
    """Why it was given up."""


class Restored(Event, frozen=True, kw_only=True):
    """A life has the training state, which is the one after this step."""

    step: int
    origin: Literal["checkpoint", "members", "beginning"]
    name: str = ""
    """Which checkpoint, where that has a name."""


class ConnectionLost(Event, frozen=True, kw_only=True):
    """A connection to another replica broke."""

    peer: int
    cause: str = ""


class Ended(Event, frozen=True, kw_only=True):
    """How the job ended, as the coordinator agreed on it or as the launcher leaves it."""

    state: Literal["finished", "failed", "stopped"]
    reason: str = ""
    replica: int = -1
    """Whose failure it was; -1 if nobody's."""
    exit_code: int | None = None
    """That of `outlast run`; the coordinator knows none."""


AnyEvent = (
    Begun
    | Started
    | Restarted
    | Died
    | Joined
    | LifeOver
    | View
    | Evicted
    | Promoted
    | Standstill
    | Leading
    | Step
    | Stable
    | Screened
    | WentBack
    | Saved
    | Restored
    | ConnectionLost
    | Ended
)


def lives(members: Iterable[views.Member]) -> tuple[Life, ...]:
    return tuple(Life(member.replica, member.incarnation) for member in members)
