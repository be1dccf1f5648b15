"""What the cores want done, and how it is done: the half of a driver that carries out.

There is one queue. What the cores want done goes to its end, and whoever brings an event serves it until it
is empty (`act`). So actions are carried out in the order in which they were decided, each in the view that
was in force then, also where carrying one out brings about the next event: a connection that turns out to
be broken in the middle of a step's contributions does not change the view under them. A view is in force
from the moment its adoption is carried out. What was decided for a life that is over is void.

The other half, `driver.py`, is where events come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, cast

from outlast.errors import DivergedError, ProtocolError
from outlast.protocol import codec, events, saving
from outlast.protocol.agenda import Agenda
from outlast.protocol.header import Header
from outlast.protocol.inbox import Inbox
from outlast.protocol.kinds import Kind
from outlast.protocol.life import Life
from outlast.protocol.lines import Lines
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
from outlast.protocol.messages import Status
from outlast.protocol.participant import Action, Participant
from outlast.protocol.post import Outgoing
from outlast.protocol.saving import SaveCore
from outlast.protocol.seams import (
    At,
    Bulk,
    Copies,
    Gathering,
    Noted,
    Outlet,
    Record,
    Saves,
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


class Deeds:
    """The half of a driver that carries out."""

    agenda: Agenda

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
                if self.agenda.waits:
                    self.agenda.is_wanted()
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
                self.end_life(action.reason)
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
        if given is None or self.agenda.waits:
            self.agenda.is_wanted()
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

    def end_life(self, why: str) -> None:
        """This life cannot go on; the training thread begins another one. Should that take it a while, others
        are not to wait for it."""
        self.life.over = self.member.given_up = why
        self._wakes_up = True

    # Connections.

    def header(self, kind: Kind, step: int = 0) -> Header:
        return Header(kind, incarnation=self.member.incarnation, view=self.life.view.number, step=step)

    def _sent(self, header: Header) -> Header:
        return header._replace(incarnation=self.member.incarnation, view=self.life.view.number)

    def _others(self) -> list[Member]:
        return [m for m in self.life.view.members if m.replica != self.replica]

    def _reach(self) -> None:
        """Be connected with the lives of the view in force, and for a while with who has just left."""
        life = self.life
        peers = (*life.view.members, *life.view.learners, *life.post.lines.departed)
        self.outlet.reach(self.member.incarnation, peers)

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
