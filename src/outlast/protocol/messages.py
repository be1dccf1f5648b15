"""What agents, replicas and the coordinator say to each other.

Messages carry *state*, not deltas: a beat tells all that an agent knows of its processes, a report all that a
replica has to say, and both are repeated. A message that is lost, doubled or late therefore does no harm;
the next one says the same or more. Only three things wait for an answer and are repeated until it comes: a
registration (answered by `Admitted`), the news of an exit (answered in `BeatAck.noted`), and the wish of an
agent to be taken on (answered by `Enlisted`).
"""

from enum import IntEnum
from typing import Annotated

import msgspec

from outlast.protocol.views import (
    SHARDS_MOST,
    Charge,
    Foundation,
    Host,
    Intent,
    Outcome,
    Place,
    Seat,
    View,
)


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The root of all messages; each has its class name as its tag on the wire."""


class Phase(IntEnum):
    """What a replica is doing, as it says itself on its progress page."""

    STARTING = 0
    COMPUTING = 1
    WAITING = 2
    """For its peers: it has done its own part of the step."""
    ASIDE = 3
    """Long work that the user has declared, such as an evaluation."""
    DONE = 4


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent sees of one living process."""

    replica: int
    process: int
    pid: int = 0
    incarnation: int = 0
    view: int = 0
    """The view that its training thread works in; the thread that talks to us may know a newer one."""
    step: int = 0
    phase: Phase = Phase.STARTING
    quiet_s: float = 0.0
    """Time since the last progress, without the time it was runnable but got no CPU."""
    pace_s: float = 0.0
    """The time a step has taken lately; 0 while the process has not warmed up."""
    stopped_s: float = 0.0
    """How long the process has been stopped by a signal."""
    shard: int = -1
    """The shard that it is computing; -1 if none."""
    total: int = 0
    """How many steps the run has in all; 0 if that is not known."""
    loss: float | None = None
    """Of the newest step."""
    samples: int = 0
    """How many samples a step has; 0 if that is not known."""
    saves: bool = False
    """Whether its script has checkpoints made."""
    saved: int = -1
    """The newest step that is known to be saved; -1 if none is."""
    saved_ago_s: float | None = None
    """Since when; None if that was before this process."""


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has exited."""

    replica: int
    process: int
    how: str
    finished: bool = False
    in_order: bool = False
    """It had said that it is done (`Phase.DONE`) and then exited with status 0: nobody waits for it."""
    closes: bool = False
    """It was the chief of the last step, and its program has ended well: with that the job is done."""
    step: int = -1
    shard: int = -1
    """What it was computing, if it died by its own fault: an uncaught exception, an exit in the middle or a
    crash. One that was killed from outside says nothing about its shard, and has -1 here."""
    last_words: str = ""
    """The end of its output, told only with a shard."""


class GaveUp(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that failed so often that starting it again is pointless."""

    replica: int
    reason: str
    last_words: str


class Beat(Message, frozen=True, kw_only=True):
    """An agent: I am here, and this is what I see."""

    agent: str
    boot: int
    number: int
    pulses: tuple[Pulse, ...] = ()
    departures: tuple[Departure, ...] = ()
    gave_up: GaveUp | None = None
    leaving: bool = False
    """It goes with its replicas, and starts none again."""


class BeatAck(Message, frozen=True, kw_only=True):
    """The leader: heard."""

    number: int
    view: int
    noted: tuple[int, ...] = ()
    """Departures that are committed and need not be told again."""
    evicted: tuple[int, ...] = ()
    """Processes that run although their incarnation is void; replace those that do not rejoin."""
    failing: tuple[int, ...] = ()
    """Those of them that announced their own failure: however they end now, it is the program's fault."""
    barred: tuple[int, ...] = ()
    """Replicas that are not let in again: end them, and do not start them any more."""
    furthest: int = 0
    """The newest step that any life of the job is known to have reached, in the care of whatever agent."""
    adopted: tuple[tuple[int, int], ...] = ()
    """Replicas that are in this agent's care from now on, since their own is gone; each with the newest
    process that it has had."""
    places: tuple[tuple[int, int], ...] = ()
    """Where the leader says what runs where: all replicas that are in this agent's care, each with the number
    of its place. It runs these, and no others."""


class Enlist(Message, frozen=True, kw_only=True):
    """An agent: I have been started, and want to be taken on. Repeated until there is an answer."""

    agent: str
    start: str
    """Another one for each start, so that one that asks twice is given one number."""
    home: str
    """Another one for each machine, so that two of one name are told apart."""
    room: int


class Enlisted(Message, frozen=True, kw_only=True):
    """The leader: you are taken on, and this is your number."""

    start: str
    boot: int


class Declined(Message, frozen=True, kw_only=True):
    """The leader: you are not taken on, or not any more."""

    start: str = ""
    boot: int = 0
    """Who is meant: it has named one of these."""
    reason: str


class Register(Message, frozen=True, kw_only=True):
    """A replica: I am a new life and want to take part."""

    replica: int
    process: int
    rejoin: int
    agent: str
    address: str = ""
    shards: Annotated[int, msgspec.Meta(ge=0, le=SHARDS_MOST)] = 0
    """How many shards its script cuts a step into; 0: as many as the job says. A lineage takes the wish of
    its lowest-numbered first member, and keeps it."""


class Admitted(Message, frozen=True, kw_only=True):
    """The leader: this is your incarnation; that view is the first that may hold it."""

    replica: int
    process: int
    rejoin: int
    incarnation: int
    view: int


class Report(Message, frozen=True, kw_only=True):
    """A replica: I am here, in that view, this ready, and these peers I cannot reach."""

    replica: int
    incarnation: int
    view: int
    """The newest view that is in force here; a planned one that is known but not in force does not count."""
    ready: bool = False
    final: bool = False
    """A learner: it has the state after the last step, and could give it to others."""
    leaving: bool = False
    staying: bool = False
    """Its program has come to its end in order; it only keeps the final state until the job ends."""
    chief: int = -1
    """The one whose end it waits for then."""
    catching_up: bool = False
    """It has had no part in the training yet: a learner, or one that was promoted and still lacks records."""
    unreachable: tuple[int, ...] = ()
    torn: tuple[int, ...] = ()
    """Members that the connection with broke and was made anew, in this era; see `lines.py`."""
    given_up: str = ""
    """Why this life cannot go on, as long as its training thread has not begun another."""
    failing: str = ""
    """The first line of the exception that ends this process, told before its slow exit."""
    failing_step: int = -1
    failing_shard: int = -1
    """What it was computing then; -1 if nothing."""
    intent: Intent | None = None
    """The checkpoint that it wants to commit."""
    foundation: Foundation | None = None
    """Under which claim it wants to begin a lineage."""
    saving: str = ""
    """How its checkpoints stand, for people."""
    charges: tuple[Charge, ...] = ()
    """What it holds against members of its view."""


class ReportAck(Message, frozen=True, kw_only=True):
    view: int
    recorded: str = ""
    """The seal of the reported intent, once it has been recorded."""
    founded: int = 0
    """The claim of the reported foundation, once it has been recorded."""


class NotLeading(Message, frozen=True, kw_only=True):
    """A coordinator that does not lead: you are not heard here."""

    leader: str = ""
    """Where the one is that does; empty if there is none as far as is known."""


class Fetch(Message, frozen=True, kw_only=True):
    """Anyone: I have seen signs of a newer view; send me the current one."""


class ViewNews(Message, frozen=True, kw_only=True):
    """The leader: this view has been committed."""

    view: View


class Evicted(Message, frozen=True, kw_only=True):
    """The leader: that incarnation is void; come back as a new one."""

    replica: int
    incarnation: int
    reason: str


class Check(Message, frozen=True, kw_only=True):
    """The leader to an agent: somebody doubts one of yours; look now, do not wait for the next beat."""


class Ended(Message, frozen=True, kw_only=True):
    """The leader: the job is over."""

    outcome: Outcome


class Ask(Message, frozen=True, kw_only=True):
    """An observer: how do things stand?"""


class Status(Message, frozen=True, kw_only=True):
    """The leader's answer: what has been agreed, and what is being seen."""

    job: str
    view: View
    seats: tuple[Seat, ...]
    pulses: tuple[Pulse, ...] = ()
    starting: tuple[Pulse, ...] = ()
    """Processes that have not asked to take part yet."""
    replicas: int = 0
    """How many were asked for; 0 if that is not known."""
    silent: tuple[str, ...] = ()
    """Agents that are not heard from."""
    hosts: dict[str, Host] = {}
    places: dict[int, Place] = {}
    """Which machines take part, and what runs where."""
    rejected: dict[str, int] = {}
    """Peers that were turned away, by reason."""
    needed: int = 1
    """How many members it takes to train."""
    intents: tuple[Intent, ...] = ()
    """Checkpoints that were allowed to be committed, the newest last."""
    saving: str = ""
    """How the checkpoints stand, as the chief says."""
    charges: tuple[Charge, ...] = ()
    """What members were evicted for, or interrupted, the newest last."""
    trouble: str = ""
    """What keeps the coordinator from deciding, for example a full disk."""
    outcome: Outcome | None = None


FROM_PEERS = (Beat, Enlist, Register, Report, Fetch, Ask)
FROM_COORDINATOR = (
    BeatAck,
    Enlisted,
    Declined,
    Admitted,
    ReportAck,
    ViewNews,
    NotLeading,
    Evicted,
    Check,
    Ended,
    Status,
)
