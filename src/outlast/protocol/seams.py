"""What a driver works with, and knows nothing else about: bulk, an outlet, saves and copies.

In training these are tensors, sockets, disks and clocks; in the simulator numbers, a seeded world and a list.
Whatever is behind them does as it is told and decides nothing. All of it is called with the driver's lock
held, so nothing here waits, reads a file or logs: what takes time is begun, and its completion is told to the
driver (`Driver.done`), by what can void it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from outlast.protocol.events import AnyEvent
from outlast.protocol.header import Header
from outlast.protocol.kinds import PartNote, RecordNote
from outlast.protocol.lines import Line
from outlast.protocol.messages import Message, Phase
from outlast.protocol.naming import Kept
from outlast.protocol.saving import Save, SaveAction
from outlast.protocol.step_words import (
    Body,
    Check,
    Conclude,
    Differ,
    Digest,
    Dropped,
    GoBack,
    Judge,
    Pin,
    Survey,
    Trial,
    Verdict,
    Verified,
)
from outlast.protocol.views import Charge, Member, Outcome, View


class At(NamedTuple):
    """One attempt: everything that is done for it is void as soon as one of these is another."""

    view: int
    step: int
    trial: int = Trial.FIRST


class Record(Protocol):
    """The result of a step, which never changes."""

    @property
    def step(self) -> int: ...
    @property
    def note(self) -> RecordNote: ...
    @property
    def vector(self) -> Any: ...


class Assembly(Protocol):
    """Memory for a state that comes in pieces."""

    @property
    def pieces(self) -> Sequence[Sequence[int]]:
        """What each piece covers."""

    @property
    def complete(self) -> bool: ...
    def slot(self, index: int) -> memoryview: ...
    def note(self, index: int) -> None:
        """This piece is in its place."""


class Gathering(Protocol):
    """What others read of a checkpoint for the founder of a lineage."""

    over: bool

    def room(self, header: Header) -> memoryview | None: ...
    def arrived(self, header: Header, chunk: memoryview) -> None: ...


class Final(Protocol):
    """The state at the end of the loop of steps, kept for those who come back after it."""

    @property
    def step(self) -> int: ...
    @property
    def image(self) -> bytes: ...
    def share(self, pin: Pin, replica: int) -> Sequence[tuple[int, memoryview]]: ...


class Said(NamedTuple):
    """What goes with the own part, beside what is contributed."""

    pending: int = 0
    save: int = 0
    check: Check | None = None
    asked: tuple[str, ...] | None = None
    keeps: tuple[int, ...] = ()


class Bulk(Protocol):
    """Contributions, results, records and states: what is too large to be a word.

    It ships what it sends by `Driver.ship`, and says by `Driver.done` that work is done, at once or later."""

    shares: int
    """Into how many parts a record's vector is cut."""

    def adopt(self, view: View) -> None:
        """Every attempt of another view is void."""

    def takes(self, view: int) -> bool:
        """Whether bulk of this view is for an attempt that is going on."""

    def contribute(self, at: At, said: Said) -> None:
        """Ship what of the own sums is not shipped, and write down what goes with it."""

    def contribute_nothing(self, at: At, said: Said) -> None:
        """This replica has left the loop of steps."""

    def is_asked(self, step: int, /) -> bool:
        """Whether this replica has something to compute in the hearing of this step."""

    def testify(self, at: At) -> None:
        """Ship what was asked for in a hearing; nothing, if nothing was."""

    def goes_with(self, at: At, body: Body) -> bytes:
        """What goes with this word: a part, a survey or a sum."""

    def start(self, work: Survey | Conclude | Judge, at: At) -> None:
        """Do it, and say `Worked`."""

    def last_words(self, step: int) -> Mapping[int, PartNote]:
        """What members have said when all of them had left the loop before this step."""

    def room(self, sender: Member, header: Header) -> memoryview | None:
        """Where a contribution or a result belongs. ProtocolError: the sender's fault."""

    def take(self, sender: int, header: Header, payload: Any) -> None:
        """Bulk has come, or what goes with a word. ProtocolError: the sender's fault."""

    def record(self, step: int, verdict: Verdict) -> Record:
        """The attempt at this step is complete."""

    def vector(self) -> Any:
        """Memory for a record that is given."""

    def share(self, vector: Any, index: int) -> memoryview:
        """One of the parts in which a vector travels."""

    def copied(self, vector: Any) -> Any:
        """The same in other memory."""

    def given(self, step: int, vector: Any, note: RecordNote) -> Record:
        """A record that others have made."""

    def state(self, encoded: bytes) -> Assembly:
        """Memory for a state with this table of contents."""


class Outlet(Protocol):
    """Connections, the coordinator, the training thread, and people."""

    def reach(self, own: int, peers: Sequence[Member]) -> None:
        """Whom to be connected with, and in which life."""

    def send(
        self,
        line: Line,
        header: Header,
        payload: memoryview | bytes,
        keep: object = None,
        *,
        more: bool = False,
        droppable: bool = False,
    ) -> bool:
        """False if that very connection is over."""

    def drop(self, line: Line, why: str) -> None:
        """End this connection."""

    def tell(self, message: Message) -> None:
        """To the coordinator; what is lost, the core says again."""

    def adopted(self, view: View) -> None:
        """This view is in force."""

    def over(self, outcome: Outcome) -> None:
        """The job has ended."""

    def wake(self) -> None:
        """The training thread may have something to do."""

    def enter(self, phase: Phase) -> None:
        """The training thread does this from now on; others measure it by that."""

    def take_part(self, view: int) -> None:
        """The training thread takes part in this view."""

    def stands_at(self, step: int) -> None:
        """The model holds the state after this step."""

    def completed(self, record: Record, *, made: bool) -> None:
        """The record of a step is held; `made` here, or given."""

    def stable(self, record: Record, noted: Noted) -> bool:
        """All members hold it. True if there is nothing to write down, or it is written; else `noted` is done
        when it is. Nobody else is given it before that."""

    def saved(self, step: int, *, just_now: bool) -> None:
        """The newest step that is saved, for people."""

    def emit(self, event: AnyEvent) -> None:
        """What has happened, to be written down when there is time."""

    def note(self, level: int, text: str) -> None:
        """For people, to be told when there is time; levels are those of `logging`."""

    def passes(self, point: str, step: int) -> None:
        """A place at which tests strike."""


class Saves(Protocol):
    """Checkpoints: clocks and disks. What it has done it says by `Driver.done`."""

    @property
    def saved_step(self) -> int: ...
    @property
    def idle(self) -> bool: ...
    def heard(self, now: float) -> None:
        """The coordinator has said something."""

    def do(self, action: SaveAction) -> None: ...
    def adopt(self, view: View) -> None: ...
    def wish(self, step: int) -> int:
        """What to say of saving in the part for this step: 1 for yes, 2 for not now, 0 for don't care."""

    def named(self, step: int, *, last: bool = False) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
        """What the script has asked for by name after this step, and what is kept here."""

    def waits_for_comparison(self, verified: int) -> bool: ...
    def go_back(self, step: int) -> None: ...
    def finish(self, step: int, keeps: Mapping[int, Iterable[int]]) -> None:
        """All have left the loop of steps, and hold the state after this one."""

    def due(self, applied: int, now: float, *, chosen: bool | None) -> Save | None:
        """A share to copy now. `chosen`: whether members compare this state; None if they compare none."""

    def keep_due(self, applied: int) -> bool:
        """Whether to copy the whole state now, for a name."""

    def stands(self, step: int) -> None:
        """This replica holds what the lineage begins with."""

    def was_given(self, step: int, /) -> None:
        """Others have given it the state after this step."""


class Copies(Protocol):
    """Copies of the state, compared with those of others and kept to go back to."""

    @property
    def chosen(self) -> int: ...
    @property
    def verified(self) -> int: ...
    def do(self, action: Digest | Verified | Dropped | GoBack) -> None: ...
    def wish(self, step: int, *, chief: bool) -> bool: ...
    def due(self, applied: int) -> int | None:
        """The step whose state is to be copied now, or cannot be any more."""

    def report(self, differ: Differ, /) -> Any:
        """What there is to say about states that differ: `what`, `first(view)` and `ending(chief)`."""

    def begin_anew(self) -> None: ...


class Worked(NamedTuple):
    """What `Bulk.start` was to do is done. Void if the attempt is."""

    at: At
    work: type
    again: bool = False
    """Of a judgement: whether there has to be another trial."""
    charges: tuple[Charge, ...] = ()


class Digested(NamedTuple):
    """The copy of a state has this digest; an empty one: there is no copy. Void in another life, or if
    members have gone back since; a view does not matter."""

    life: object
    fork: Any
    step: int
    digest: bytes
    entries: bytes = b""


class Written(NamedTuple):
    """The own stripe is durable. This and the next ones are void if the save is another by now."""

    save: Save
    stripe: bytes


class Sealed(NamedTuple):
    """The manifest is made: ask for leave to commit it."""

    save: Save
    intent: Any


class Committed(NamedTuple):
    save: Save


class GaveUp(NamedTuple):
    save: Save
    reason: str


class Described(NamedTuple):
    """What a state consists of, for one who is given it. Void in another life."""

    life: object
    to: Member
    header: Header
    image: bytes


class Gave(NamedTuple):
    """The own share of that state; None if it could not be copied."""

    life: object
    to: Member
    header: Header
    pieces: Sequence[tuple[int, memoryview]] | None


class Noted(NamedTuple):
    """That this step is stable is written down, as are all before it. Void in another life, in which nothing
    waits for it."""

    life: object
    step: int


class Decided(NamedTuple):
    """Whoever saves wants the state after a step saved, at the end or all by itself. Void in another life."""

    step: int
    kept: Kept | None = None
    later: int = 0
    alone: bool = False
    gated: bool = False


Done = Worked | Digested | Written | Sealed | Committed | GaveUp | Described | Gave | Decided | Noted
