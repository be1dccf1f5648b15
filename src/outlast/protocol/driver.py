"""What carries out the cores' decisions, in training and in the simulator alike.

    coordinator ─ received, tick ─▶ ┐                          ┌─▶ outlet: frames, words to the coordinator
    peers ─ connected, lost, room, arrived ─▶ Participant ─────┼─▶ bulk, saves, copies: what takes time
    whoever has done something ─ done, did ─▶ ┘   actions      └─▶ wakes the training thread: `next`

There is one queue. An event goes to the cores at once, and what they want done goes to the end of the queue;
whoever brings the event serves the queue until it is empty. So actions are carried out in the order in which
they were decided, each in the view that was in force then, also where carrying one out brings about the next
event: a connection that turns out to be broken in the middle of a step's contributions does not change the
view under them. A view is in force from the moment its adoption is carried out.

What belongs to a life is one object (`life.py`), replaced as a whole. Whatever takes time names what it is
for, and is dropped when it is done if that is void by then (`_is_void`). What the training thread does next
is in `agenda.py`, and what becomes of an incoming frame in `reception.py`.

The caller holds the lock. Every call returns with an empty queue, and none of them waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

from outlast.errors import DivergedError, ProtocolError
from outlast.protocol import codec, events, saving, todos
from outlast.protocol.agenda import Agenda
from outlast.protocol.header import Header
from outlast.protocol.inbox import Inbox
from outlast.protocol.kinds import Kind
from outlast.protocol.life import Life
from outlast.protocol.lines import Line, Lines
from outlast.protocol.member import (
    Adopt,
    Deliver,
    FencedOff,
    Frame,
    JobOver,
    MayBegin,
    MemberCore,
    Overflow,
    Tell,
)
from outlast.protocol.messages import Ask, Message, Phase, Status
from outlast.protocol.participant import Action, Participant
from outlast.protocol.post import Outgoing
from outlast.protocol.reception import Reception
from outlast.protocol.saving import SaveCore
from outlast.protocol.seams import (
    At,
    Bulk,
    Committed,
    Copies,
    Decided,
    Described,
    Digested,
    Done,
    Final,
    Gathering,
    Gave,
    GaveUp,
    Noted,
    Outlet,
    Record,
    Said,
    Saves,
    Sealed,
    Worked,
    Written,
)
from outlast.protocol.step_words import (
    BLANK,
    Accused,
    AllDone,
    Attempt,
    Completed,
    Conclude,
    Differ,
    Digest,
    Dropped,
    EndReached,
    Feed,
    FeedAgain,
    Found,
    GoBack,
    HandOver,
    Judge,
    LeftAlone,
    Lost,
    Mode,
    Pin,
    Say,
    Stable,
    Sum,
    Survey,
    Trial,
    Verdict,
    Verified,
    Whole,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.todos import Stage, Todo
from outlast.protocol.views import Charge, Foundation, Member, Outcome, View

STRAYS_MOST = 3
"""So often a learner may come to have another state than members before it ends with an error."""

RETURNS_MOST = 8
"""So often members go back before the job ends with an error, if no state is verified in between."""

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Which cores play, and what kind of replica this is."""

    member: MemberCore
    timing: Timing
    steps: Callable[[int], StepCore] = StepCore
    saves: Callable[[int], SaveCore] = SaveCore
    life: Callable[..., Life] = Life
    lines: Callable[[], Lines[Outgoing]] = Lines
    inbox: Callable[[Bulk], Inbox] = Inbox
    alone: bool = False
    """There is no coordinator, and nobody else."""
    shadow: bool = False
    """This process only ever follows."""


class Driver:
    """One replica process, over all of its lives."""

    def __init__(
        self,
        setup: Setup,
        *,
        bulk: Bulk,
        outlet: Outlet,
        saves: Saves | None = None,
        copies: Copies | None = None,
        now: float,
    ) -> None:
        self.setup = setup
        self.member = setup.member
        self.bulk = bulk
        self.outlet = outlet
        self.saves = saves
        self.copies = copies
        self.now = now
        """The time of the event that is being dealt with."""
        self.participant = Participant(setup.member, setup.steps, setup.saves)
        self.life = self._new_life(None)
        self.agenda = Agenda(self)
        self.reception = Reception(self)
        self.outcome: Outcome | None = None
        self.failure: Exception | None = None
        """A promise of our own is broken; the training thread has to know."""
        self.leaving = False
        self.closed = False
        self.resting = False
        """Whether the training thread is at the end of its loop of steps, or behind it."""
        self.status: Status | None = None
        """What the coordinator said when it was asked; None until then."""
        self.may_begin: Foundation | None = None
        """With what the coordinator has said last that this replica may begin."""
        self.gathering: Gathering | None = None
        """What others read of a checkpoint that this replica founds a lineage with."""
        self._returns = 0
        """How often members have gone back since a state was verified."""
        self._strays = 0
        """How many lives in a row were given the state of members, and came to have another one."""
        self._differed_in = ""
        """What differed the last time, in words."""
        self._stood = ""
        """Where this replica was a moment ago, and what it waited for."""
        self._told_saved = -1
        self._saves_no_more = False
        self._todo: deque[tuple[Life, Action]] = deque()
        self._busy = self._wakes_up = False
        self.watch: Callable[[Life, Action], None] | None = None
        """Told of everything that is carried out, before it is; for checkers."""

    def _new_life(self, before: Life | None) -> Life:
        return self.setup.life(
            replica=self.member.replica,
            bulk=self.bulk,
            outlet=self.outlet,
            now=self.now,
            before=before,
            lines=self.setup.lines,
            inbox=self.setup.inbox,
        )

    @property
    def replica(self) -> int:
        return self.member.replica

    @property
    def view(self) -> View:
        """The view in force."""
        return self.life.view

    @property
    def applied(self) -> int:
        """The step whose result the model holds; -1 while it holds nothing that counts."""
        return self.life.applied

    @property
    def steps(self) -> StepCore:
        return self.participant.steps

    @property
    def is_over(self) -> bool:
        """Whether nothing that happens between replicas matters any more."""
        return self.closed or self.outcome is not None

    # The coordinator.

    def alone(self, view: View, now: float) -> None:
        """There is no coordinator, and this is the only view that there will ever be."""
        self.member.incarnation = 1
        self._event(now, lambda: self.participant.alone(view, now))

    def received(self, message: Message, now: float) -> None:
        if self.closed:
            # This life is over, and its last word was said: no view is adopted behind it.
            return
        if self.saves is not None:
            self.saves.heard(now)
        if isinstance(message, Status):
            self.status = message
            self._wakes_up = True
        self._event(now, lambda: self.participant.received(message, now))

    def tell(self, now: float) -> None:
        """Say to the coordinator how things stand."""
        self._event(now, lambda: self.participant.tell(now))

    def tick(self, now: float) -> None:
        """Time has passed: say that we are here, and notice what takes too long."""
        self.now = now
        self._look_at_connections(now)
        life = self.life
        for peer in life.giving.owed(life.applied):
            life.post.send(peer, self.header(Kind.FOUNDING))
        if life.founds is not None:
            # Others wait for what this replica reads from storage, which may take minutes.
            life.post.all(self._others(), self.header(Kind.FOUNDING))
        self.agenda.look_at_clock(now)
        self._settle()
        self._tell_saved(just_now=False)
        self._stood = self.steps.stands
        self._event(now, lambda: self.participant.tick(now))

    def leave(self, now: float) -> None:
        """Ask to be let go; the view that does so ends this process."""
        if not self.leaving:
            self.leaving = True
            self._event(now, lambda: self.participant.set_leaving(now))

    def fail(self, reason: str, shard: int, now: float) -> None:
        """This process ends by an error of its own; tell everybody before its slow exit."""
        step = self.life.applied + 1
        self._event(now, lambda: cast(list[Action], self.member.set_failing(reason, step, shard, now)))

    def forget_status(self) -> None:
        """What was said before does not count."""
        self.status = None

    def ask(self) -> None:
        """Have the coordinator say how the job stands."""
        self.outlet.tell(Ask())

    def stay(self, chief: int, now: float) -> None:
        """The script has ended here; this process is there for others until the chief's has, too."""
        self._event(now, lambda: self.participant.set_staying(chief, now))

    # Connections, and what comes over them.

    def connected(self, line: Line, now: float) -> None:
        self.now = now
        self.life.post.connected(line)
        self._settle()

    def lost(self, line: Line, why: str, now: float) -> None:
        self.now = now
        life = self.life
        life.inbox.lost(line.peer.replica)
        if life.post.lines.line(line.peer) == line and not self.closed:
            self.outlet.note(DEBUG, f"replica {self.replica} lost replica {line.peer.replica}: {why}")
            self.outlet.emit(events.ConnectionLost(peer=line.peer.replica, cause=why))
        departed = life.post.lines.departed
        life.post.lines.lost(line)
        if life.post.lines.departed != departed and life.over is None:
            self._reach()
        self._settle()

    def _reach(self) -> None:
        """Be connected with the lives of the view in force, and for a while with who has just left."""
        life = self.life
        peers = (*life.view.members, *life.view.learners, *life.post.lines.departed)
        self.outlet.reach(self.member.incarnation, peers)

    def room(self, line: Line, header: Header) -> memoryview | None:
        """Where the payload of a frame belongs; None if it is not wanted."""
        return self.reception.room(line, header)

    def arrived(self, line: Line, header: Header, payload: memoryview | None, now: float) -> None:
        """A frame has come. ProtocolError: the peer's fault, which costs it the connection."""
        self.now = now
        try:
            self.reception.arrived(line, header, payload)
        except ProtocolError:
            raise
        except Exception as error:
            # Ours: something was decided and not carried out, so this replica cannot go on.
            self.break_down(error)
            raise
        finally:
            self._settle()

    def ship(self, replica: int, header: Header, memory: memoryview, keep: object, more: bool) -> None:
        """For bulk: to a member of the view in force, straight from memory."""
        member = self.life.view.member(replica)
        assert member is not None, "bulk is for members of the view in force"
        self.life.post.send(member, header, memory, keep, more=more)

    # What somebody has done.

    def done(self, what: Done, now: float) -> None:
        """Something that was begun is complete."""
        if not self._is_void(what):
            self._event(now, lambda: self._completes(what, now))

    def _is_void(self, what: Done) -> bool:
        """Whether what was done is for something that is over."""
        match what:
            case Worked():
                return self.is_void_attempt(what.at)
            case Digested():
                return what.life is not self.life or what.fork != self.steps.fork
            case Described() | Gave() | Noted():
                return what.life is not self.life
            case Written() | Sealed() | Committed() | GaveUp():
                return what.save != self.participant.saves.save
            case Decided():
                return self.life.over is not None

    def is_void_attempt(self, at: At) -> bool:
        steps = self.participant.steps
        return at.step != steps.newest + 1 or at.view != steps.view.number or at.trial != steps.trial

    def _completes(self, what: Done, now: float) -> Sequence[Action]:
        participant = self.participant
        match what:
            case Worked():
                return self._worked(what, now)
            case Digested():
                return participant.digested(what.step, what.digest, now, what.entries)
            case Described():
                self.life.post.send(what.to, what.header, what.image)
                self.life.giving.promised.add(what.to)
            case Gave():
                self.life.giving.promised.discard(what.to)
                for index, memory in what.pieces or ():
                    self.life.post.send(what.to, what.header._replace(kind=Kind.PIECE, lo=index), memory)
            case Noted():
                self._noted()
            case Written():
                return participant.stripe_written(what.save.at, what.stripe, now)
            case Sealed():
                decide = participant.allowed if self.setup.alone else participant.intends
                return decide(what.intent, now)
            case Committed():
                return participant.save_committed(what.save.at, now)
            case GaveUp():
                return participant.save_failed(what.save.at, what.reason, now)
            case Decided() if what.alone:
                return participant.save_alone(what.step, now, gated=what.gated)
            case Decided():
                view = self.life.view.number
                return participant.save_decided(what.step, view, now, kept=what.kept, later=what.later)
        return ()

    def _worked(self, worked: Worked, now: float) -> Sequence[Action]:
        at = worked.at
        if worked.work is Survey:
            return self.participant.surveyed(at.step, now, at.trial)
        if worked.work is Conclude:
            return self.participant.summed(at.step, now, at.trial)
        if self._heeds(worked.charges):
            # The step waits for a view without the accused.
            self.life.discredited |= any(charge.replica == self.replica for charge in worked.charges)
            charged = tuple(charge.replica for charge in worked.charges)
            reason = "; ".join(charge.reason for charge in worked.charges)
            self.outlet.emit(events.Screened(step=at.step, view=at.view, charged=charged, reason=reason))
            return self.participant.charge(worked.charges, now)
        return self.participant.judged(at.step, at.trial, now, again=worked.again)

    def _heeds(self, charges: Sequence[Charge]) -> bool:
        return bool(charges)

    def finals(self, number: int) -> None:
        """For whoever saves: all have left the loop, and what is still saved has numbers up to this one."""
        self.act(self.participant.saves_final(number, self.now))

    def says_of_saves(self, text: str) -> None:
        """How checkpoints stand, for people; told with the next report."""
        self.member.saving = text

    # The training thread.

    def next(self, stage: Stage, now: float) -> Todo | None:
        """What to do now; None: sleep until woken."""
        self.now = now
        return self.agenda.next(stage)

    def did(self, todo: Todo, now: float, *, said: Said | None = None) -> None:
        """It is done. `said`: what goes with a contribution, and took a while to find out."""
        self.now = now
        self.agenda.did(todo, said)
        self._settle()

    def founded(self, todo: todos.Found, now: float, *, step: int = BLANK, view: int = 0) -> None:
        """The lineage begins with the state after this step, found for that view; `BLANK`: it is not on this
        replica any more, or has to be looked for once more."""
        self.now = now
        self.agenda.founded(todo, step, view)
        self._settle()

    def bucket(self, at: At, ship: Callable[[], None]) -> None:
        """A part of an own contribution is there, ahead of the rest."""
        life, steps = self.life, self.participant.steps
        present = not self.is_void_attempt(at) and self.bulk.takes(at.view)
        if present and at.trial == Trial.FIRST and steps.mode is Mode.RUNNING and life.over is None:
            ship()
            self._settle()

    def founds(self, foundation: Foundation, now: float) -> None:
        """This replica has found what the lineage begins with: ask whether it may."""
        self._event(now, lambda: self.participant.founds(foundation, now))

    def rest(self, kept: Final | None, now: float) -> None:
        """The training thread is beside the steps: views change without it, and nobody takes what the script
        does for a hang, however long it takes. `kept` is the last state, for those who come back."""
        self.now = now
        life = self.life
        self.resting = True
        self.outlet.enter(Phase.ASIDE)
        if not self.setup.alone:
            if kept is not None:
                life.giving.final = kept
            life.giving.final_is_known = self.steps.mode is not Mode.LEARNING or self.has_final
            self.act(self.participant.rest(now))
            if self.steps.mode is Mode.LEARNING and not self.setup.shadow:
                # Should no member be left, this replica has what the job ends with.
                final = self.has_final or self.copies is None
                self.act(self.participant.set_final(final, now))
            life.giving.give_final()
        self._settle()

    def keep_final(self, final: Final) -> None:
        """The state at the end of the loop, which has not been compared yet."""
        self.life.giving.final, self.life.giving.final_is_known = final, False

    def go_on(self, now: float) -> None:
        """There is another loop of steps."""
        self.now = now
        self.resting = self.steps.resting = self.steps.ending = False
        self.life.ends_in = None
        self.life.giving.forget_final()
        self.act(self.participant.set_final(False, now))

    def close(self, now: float) -> None:
        """The script has left the loop for good."""
        if not self.steps.closing:
            self._event(now, lambda: self.participant.close(now))

    @property
    def has_final(self) -> bool:
        """Whether the state is the one that this life was given as the final one. One that learned it by
        records, or before members had compared it, may have another: it is not asked when they compare."""
        return self.life.final and self.life.applied == self.life.loaded

    def save_no_more(self) -> None:
        """The last state is saved, or cannot be, and this replica has no part in checkpoints any more."""
        self._saves_no_more = self.saves is not None
        self.saves = None

    def begin_life(self) -> None:
        """The one before is over: all that belonged to it is void."""
        self.outlet.note(INFO, f"replica {self.replica} begins a new life: {self.life.over}")
        if self.member.incarnation:
            self.outlet.emit(
                events.LifeOver(
                    replica=self.replica, incarnation=self.member.incarnation, reason=self.life.over or ""
                )
            )
        if self.copies is not None:
            self.copies.begin_anew()
        self.life = self._new_life(self.life)
        self._event(self.now, lambda: self.participant.rejoin(self.now))

    def end_life(self, why: str) -> None:
        """This life cannot catch up any more; the training thread begins another one."""
        self.life.over = why
        self._wakes_up = True

    # The queue.

    def _event(self, now: float, decide: Callable[[], Sequence[Action]]) -> None:
        self.now = now
        try:
            actions = decide()
        except Exception as error:
            self.break_down(error)
            raise
        self.act(actions)

    def act(self, actions: Iterable[Action]) -> None:
        """Do this after what is being done, and then whatever follows from it."""
        life, todo = self.life, self._todo
        for action in actions:
            todo.append((life, action))
        self._settle()

    def _settle(self) -> None:
        """Do all that is to be done, and see what has become of connections. An error here is ours, whoever's
        frame has brought it about: something was decided and not carried out, so this replica cannot go on,
        and its training thread finds out."""
        if self._busy:
            return
        self._busy = True
        try:
            while self.failure is None:
                if self._todo:
                    life, action = self._pop()
                    if self._concerns(life, action):
                        if self.watch is not None:
                            self.watch(life, action)
                        self._do(action)
                elif self.life.post.lines.changes == self.life.lines_seen or not self._notice_lines():
                    break
        except Exception as error:
            self.break_down(error)
        finally:
            self._busy = False
        if self._wakes_up:
            self._wakes_up = False
            self.outlet.wake()

    def _pop(self) -> tuple[Life, Action]:
        return self._todo.popleft()

    def _concerns(self, life: Life, action: Action) -> bool:
        """Whether an action is to be done. What the process says and hears of its coordinator always is, and
        so is the end of a save; everything else is void with its life."""
        if isinstance(action, Tell | JobOver | saving.Ended):
            return True
        return life is self.life and life.over is None

    def break_down(self, error: Exception) -> None:
        """A promise of our own is broken; the training thread has to know."""
        self.failure = error
        self.outlet.wake()

    # What the cores want done.

    def _do(self, action: Action) -> None:
        life = self.life
        match action:
            case Deliver():
                self._deliver(action.frame)
            case Overflow():
                self.cut(action.sender, action.incarnation, "it is too far ahead")
            case Say():
                self._say(action)
            case Survey() | Conclude() | Judge():
                if not self.is_spoiled and self.steps.view.number == life.view.number:
                    self.bulk.start(action, At(life.view.number, action.step, action.trial))
            case Stable():
                record = life.records.get(action.step)
                if record is not None:
                    if not self.outlet.stable(record, Noted(life, action.step)):
                        life.to_note += 1
                        self.steps.holds_back(life.to_note - life.noted)
                    fork, view = record.note.verdict.fork.view, life.view
                    self.outlet.emit(
                        events.Stable(step=action.step, view=view.number, lineage=view.lineage, fork=fork)
                    )
            case Feed() | FeedAgain():
                if self._holds_feeds():
                    life.post.hold(life.view.learners, life.to_note)
                self._feed(action)
            case HandOver():
                record = self._whole(action.step)
                life.giving.hand_over(action, record, life.view, self.header(Kind.NOTE))
            case Tell():
                self.outlet.tell(action.message)
            case _:
                self._wakes_up |= self._wakes(action)
                self._concern(action)

    def _feed(self, action: Feed | FeedAgain) -> None:
        life, header = self.life, self.header(Kind.NOTE)
        if isinstance(action, Feed):
            life.giving.feed(life.records.get(action.step), life.view, header)
        else:
            life.giving.feed_again(action, life.records, life.view, header)

    def _holds_feeds(self) -> bool:
        """Whether something that learners are fed is not written down yet. It leaves later then, as if it
        took longer to arrive, with all that comes behind it."""
        return self.life.to_note > self.life.noted

    def _noted(self) -> None:
        life = self.life
        life.noted += 1
        self.steps.holds_back(life.to_note - life.noted)
        life.post.release(life.noted)
        if life.intended is not None and life.intended[1] <= life.noted:
            (intend, _), life.intended = life.intended, None
            if intend.save == self.participant.saves.save and self.saves is not None:
                self.saves.do(intend)

    def _wakes(self, action: Action) -> bool:  # noqa: ARG002 - for planted mistakes.
        """Whether the training thread may have something to do after this."""
        return True

    def _whole(self, step: int) -> Record:
        """The record of this step, for one who lacks it."""
        return self.life.records[step]

    @property
    def is_spoiled(self) -> bool:
        """Whether attempts of the view in force lead nowhere, since something of them could not be taken."""
        return 0 < self.life.spoiled_in == self.life.view.number

    def _deliver(self, frame: Frame) -> None:
        header, payload = cast(tuple[Header, Any], frame.payload)
        if payload is None:
            return
        try:
            self.bulk.take(frame.sender, header, payload)
        except ProtocolError as error:
            # The sender's fault. The cores count it already, so nothing may come of this view any more; that
            # the connection is gone begins another.
            self.life.spoiled_in = self.life.view.number
            self.cut(frame.sender, frame.incarnation, str(error))

    def cut(self, replica: int, incarnation: int, why: str) -> None:
        self.outlet.note(WARNING, f"replica {replica} was cut off by replica {self.replica}: {why}")
        self.life.post.cut(Member(replica, incarnation), why)

    def _say(self, say: Say) -> None:
        if not say.to:
            return
        life = self.life
        peers = [m for m in (*life.view.members, *life.view.learners) if m.replica in say.to]
        if isinstance(say.body, Whole):
            life.giving.answer(peers, self._whole(say.body.step), self.header(Kind.NOTE))
            return
        at = At(life.view.number, getattr(say.body, "step", 0), getattr(say.body, "trial", Trial.FIRST))
        header, payload = codec.write(say.body, self.bulk.goes_with(at, say.body))
        life.post.all(peers, self._sent(header), payload)
        if isinstance(say.body, Sum):
            self.outlet.passes("gather", say.body.step)

    def _say_save(self, to: tuple[int, ...], body: saving.SaveBody) -> None:
        header, payload = codec.write(body)
        peers = [m for m in self.life.view.members if m.replica in to]
        self.life.post.all(peers, self._sent(header), payload)

    def _concern(self, action: Action) -> None:
        """What the training thread may be waiting for."""
        life = self.life
        match action:
            case Completed():
                self._complete(action.step, action.verdict)
            case Attempt() if action.trial != Trial.FIRST:
                self._answer(action.step, action.trial)
            case Attempt() if self.resting and not self.setup.alone:
                self._say_at_rest()
            case Digest() | Verified() | Dropped() if self.copies is not None:
                self.copies.do(action)
                self._returns = 0 if isinstance(action, Verified) else self._returns
                self._strays = 0 if isinstance(action, Verified) and action.kept else self._strays
            case Differ():
                self._tell_of(action)
            case Accused():
                address = next((m.address for m in life.view.members if m.replica == action.member), "")
                self.outlet.note(
                    ERROR if life.view.chief == self.replica else INFO,
                    f"silent corruption: step {action.step} was done again and gave something else: it was "
                    f"replica {action.member} (at {address}) that was wrong, and it is evicted",
                )
            case GoBack():
                self._go_back(action)
            case EndReached():
                life.ended = action.step
            case saving.SaySave():
                self._say_save(action.to, action.body)
            case saving.Intend() if life.to_note > life.noted:
                life.intended = action, life.to_note
            case saving.Copy() | saving.Intend() | saving.Commit() | saving.Ended() | saving.SavedByOther():
                self._tell_of_save(action)
                if self.saves is not None:
                    before = self.saves.saved_step
                    self.saves.do(action)
                    self._tell_saved(just_now=self.saves is not None and self.saves.saved_step != before)
            case Adopt():
                self._adopt(action.view)
            case FencedOff():
                self._adopt_nothing()
                life.over = action.reason
            case JobOver():
                self.outcome = action.outcome
                self.outlet.over(action.outcome)
            case Found():
                life.founding = True
            case MayBegin():
                self.may_begin = action.foundation
            case Pin():
                life.giving.pin(action, self.header(Kind.IMAGE))
                life.giving.give_final()
            case AllDone():
                self._all_done()
            case LeftAlone():
                life.left_alone = action.others
            case Lost():
                life.over = action.reason
                if action.differ is not None:
                    self._stray(action.differ)
            case _:
                pass

    def _answer(self, step: int, trial: int) -> None:
        """Another trial begins. Only who has something to compute for it needs the training thread."""
        at = At(self.life.view.number, step, trial)
        if trial == Trial.HEARING:
            if self.bulk.is_asked(step):
                self.agenda.is_wanted()
                return
            self.bulk.testify(at)
            self.outlet.passes("testify", step)
        self.act(self.participant.contribute(self.now, trial))

    def _say_at_rest(self) -> None:
        """In a view that began meanwhile: that this replica has left the loop, or that its last state is what
        it was."""
        if self.steps.closing:
            self.agenda.contribute_nothing()
        elif self.copies is not None:
            self.act(self.participant.end(self.now))

    def _adopt(self, view: View) -> None:
        life = self.life
        if view.renews and life.view.member(self.replica) is not None:
            self._tell_of_standstill()
        if view.planned_since != life.view.planned_since:
            # The cores have forgotten what they were told.
            life.broken = life.returned = frozenset()
        anew = 0 < life.view.lineage < view.lineage
        life.view = view
        life.founding = life.all_done = False
        life.asked = None
        if self.gathering is not None:
            self.gathering.over = True
        self.bulk.adopt(view)
        life.inbox.adopt(view, anew=anew)
        life.post.adopt(view, self.member.incarnation)
        life.adopted_at = life.heard_at = self.now
        if self.saves is not None:
            self.saves.adopt(view)
        self._reach()
        self.outlet.emit(events.View.of(view))
        self.outlet.adopted(view)

    def _adopt_nothing(self) -> None:
        life = self.life
        life.view = View(number=life.view.number)
        life.founding = False
        self.bulk.adopt(life.view)
        if not self.leaving:
            # One that leaves stays for those who still lack its last frames; they let go of it themselves.
            life.post.adopt(life.view, self.member.incarnation)
            self.outlet.reach(self.member.incarnation, ())

    def _all_done(self) -> None:
        self.life.all_done = True
        if self.saves is not None:
            last = self.steps.newest
            words = self.bulk.last_words(last + 1)
            self.saves.finish(last, {replica: part.keeps for replica, part in words.items()})
        elif self._saves_no_more:
            # One who has not heard how the last save ended must not wait.
            why = f"the script of replica {self.replica} has come to its end"
            others = tuple(m.replica for m in self._others())
            self._say_save(others, saving.Unable(self.steps.newest, why))

    def _complete(self, step: int, verdict: Verdict) -> None:
        life = self.life
        given = life.inbox.pop(step)
        record = life.records[step] = given or self.bulk.record(step, verdict)
        oldest = min(self.steps.oldest, life.applied + 1)
        for old in [kept for kept in life.records if kept < oldest]:
            del life.records[old]
        note = record.note
        self.outlet.completed(record, made=given is None)
        self.outlet.emit(
            events.Step(
                step=step,
                view=life.view.number,
                lineage=life.view.lineage,
                fork=note.verdict.fork.view,
                loss=note.mean_loss if isfinite(note.mean_loss) else None,
                own=given is None,
            )
        )
        if note.left_out and given is None:
            self.outlet.emit(events.Screened(step=step, view=life.view.number, left_out=note.left_out))
        if self.saves is not None and (note.save or note.kept is not None):
            kept, gated = (None, note.verdict.chosen) if note.save else (note.kept, False)
            self.act(self.participant.save_decided(step, note.view, self.now, gated=gated, kept=kept))

    # States that differ.

    def _tell_of(self, differ: Differ) -> None:
        """For people: who differs in what, and since when at the earliest. One log has to be enough."""
        report = self.copies.report(differ) if self.copies is not None else None
        self._differed_in = report.what if report is not None else ""
        if report is None:
            return
        chief = self.life.view.chief
        if differ.again:
            charge = Charge(
                view=self.life.view.number, step=differ.step, reason=report.ending(chief), ends=True
            )
            self.act(self.participant.charge([charge], self.now))
        else:
            self.outlet.note(ERROR if chief == self.replica else INFO, report.first(self.life.view))

    def _stray(self, differ: Differ) -> None:
        """This replica was given the state, followed the records, and has something else than members."""
        self._strays += 1
        report = self.copies.report(differ) if self.copies is not None else None
        if self._strays >= STRAYS_MOST and report is not None:
            self.break_down(DivergedError(report.astray(self.replica, self._strays, differ.step)))

    def _go_back(self, action: GoBack) -> None:
        life = self.life
        self._returns += 1
        if self._returns > RETURNS_MOST:
            place = f" (the last time in {self._differed_in})" if self._differed_in else ""
            raise DivergedError(
                f"replica {self.replica}: the states of replicas differ again and again after step "
                f"{action.fork.step}{place}. Either a machine computes wrongly all the time, or the script "
                "keeps something in the model, the optimizer or `state` that is not the same on all "
                "replicas; join(verify=None) compares nothing"
            )
        if self.copies is not None:
            self.copies.do(action)
        if self.saves is not None:
            self.saves.go_back(action.fork.step)
        life.records.clear()
        life.inbox.forget()
        if life.arrival.view < life.view.number:
            life.forget_state(self.now)
        life.begun_at = life.heard_at = self.now
        life.giving.go_back(action.fork.step)
        life.computes = life.contributed = life.ends_in = None
        if action.step != BLANK or life.applied >= 0:
            life.back = action
        else:
            # It had no state before.
            self.look_at_state()

    def look_at_state(self) -> None:
        """The state may have come, or have come before it was known that it is needed."""
        arrival = self.life.arrival
        if arrival.complete and self.steps.newest == BLANK:
            self._wakes_up = True
            self.act(self.participant.loaded(arrival.step, self.now, arrival.view))

    # Connections.

    def header(self, kind: Kind, step: int = 0) -> Header:
        return Header(kind, incarnation=self.member.incarnation, view=self.life.view.number, step=step)

    def _sent(self, header: Header) -> Header:
        return header._replace(incarnation=self.member.incarnation, view=self.life.view.number)

    def _others(self) -> list[Member]:
        return [m for m in self.life.view.members if m.replica != self.replica]

    def _notice_lines(self) -> bool:
        """Connections have changed: tell the cores from whom this replica is cut off. Whether it is news."""
        life = self.life
        lines = life.post.lines
        life.lines_seen = lines.changes
        if self.is_over or life.over is not None:
            # Everybody leaves now, or this life is no concern of anybody.
            return False
        torn, back = lines.torn, lines.torn_and_back
        broken = frozenset(m.replica for m in life.view.members if m in torn)
        returned = frozenset(m.replica for m in life.view.members if m in back)
        if (broken, returned) == (life.broken, life.returned):
            return False
        if broken - life.broken:
            life.broken_at = self.now
        life.broken, life.returned = broken, returned
        for action in self.participant.peers_lost(broken, self.now, returned):
            self._todo.append((life, action))
        return True

    def _look_at_connections(self, now: float) -> None:
        """A member that cannot be reached by another some time after a view began is as good as lost. (One
        that learns waits: members may be in the middle of a long step, and come to their view after it.)"""
        life = self.life
        here = life.view.member(self.replica) is not None
        if not here or now - life.adopted_at < 2 * self.setup.timing.detect_within_s:
            return
        for member in self._others():
            if life.post.lines.line(member) is None:
                life.post.lines.give_up(member)

    # For people.

    def ends(self, *, closes: bool) -> None:
        """The script has come to its end in order; `closes`: with that, the job has. Nothing follows."""
        self.closed = True
        self.outlet.emit(
            events.LifeOver(
                replica=self.replica,
                incarnation=self.member.incarnation,
                reason="its script has ended",
                finished=True,
                closes=closes,
            )
        )

    def _tell_of_save(self, action: saving.SaveAction) -> None:
        match action:
            case saving.Copy():
                save = action.save
                self.outlet.emit(events.Saved(stage="decided", step=save.step, lineage=save.lineage))
            case saving.Ended():
                save, done = action.save, action.committed
                self.outlet.emit(
                    events.Saved(
                        stage="committed" if done else "given_up",
                        step=save.step,
                        lineage=save.lineage,
                        reason=action.reason,
                    )
                )
            case _:
                pass

    def _tell_saved(self, *, just_now: bool) -> None:
        if self.saves is not None and self.saves.saved_step != self._told_saved:
            self._told_saved = self.saves.saved_step
            self.outlet.saved(self._told_saved, just_now=just_now)

    def _tell_of_standstill(self) -> None:
        """It should not have come to that; this is to find out why."""
        lines = self.life.post.lines
        self.outlet.note(
            WARNING,
            f"replica {self.replica} stood still: {self._stood}; it is connected with "
            f"{[f'{m.replica}.{m.incarnation}' for m in self._others() if lines.line(m) is not None]}, and "
            f"frames wait for {lines.waiting or 'nobody'}. Nothing is lost: the step is done again. Please "
            "report this",
        )
