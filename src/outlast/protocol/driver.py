"""What carries out the cores' decisions, in training and in the simulator alike.

    coordinator ─ received, tick ─▶ ┐                          ┌─▶ outlet: frames, words to the coordinator
    peers ─ connected, lost, room, arrived ─▶ Participant ─────┼─▶ bulk, saves, copies: what takes time
    whoever has done something ─ done, did ─▶ ┘   actions      └─▶ wakes the training thread: `next`

An event goes to the cores at once, and what they want done goes to the end of the one queue that there is;
whoever brings the event serves it until it is empty. How each action is carried out is in `deeds.py`.

What belongs to a life is one object (`life.py`), replaced as a whole. Whatever takes time names what it is
for, and is dropped when it is done if that is void by then (`_is_void`). What the training thread does next
is in `agenda.py`, and what becomes of an incoming frame in `reception.py`.

The caller holds the lock. Every call returns with an empty queue, and none of them waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from outlast.errors import ProtocolError
from outlast.protocol import events, todos
from outlast.protocol.agenda import Agenda
from outlast.protocol.deeds import DEBUG, INFO, Deeds, Setup
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind
from outlast.protocol.lines import Line
from outlast.protocol.messages import Ask, Message, Phase, Status
from outlast.protocol.participant import Action
from outlast.protocol.reception import Reception
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
    Gave,
    GaveUp,
    Noted,
    Outlet,
    Said,
    Saves,
    Sealed,
    Worked,
    Written,
)
from outlast.protocol.step_words import (
    BLANK,
    Conclude,
    Mode,
    Survey,
    Trial,
)
from outlast.protocol.todos import Stage, Todo
from outlast.protocol.views import Charge, Foundation, View


class Driver(Deeds):
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
        super().__init__(setup, bulk=bulk, outlet=outlet, saves=saves, copies=copies, now=now)
        self.agenda = Agenda(self)
        self.reception = Reception(self)

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
        if at.step != steps.newest + 1 or at.view != steps.view.number or at.trial != steps.trial:
            return True
        # Who is fenced keeps the number of its last view, and nothing else of it.
        return self.life.over is not None

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
