"""Carrying out what the cores decide: the view in force, the records held, words out, connections lost.

Everything here happens under one lock, in whichever thread brought the event: the link's, the mesh's or the
training thread. There is one queue: an event goes to the cores at once, and what they want done goes to its
end. So actions are carried out in the order in which they were decided, each in the view that was in force
then, also where carrying one out brings about the next event: a connection that turns out to be broken in the
middle of a step's contributions does not change the view under them. A view is in force from the moment its
adoption is carried out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from outlast import crashpoints as crash
from outlast.errors import DivergedError, JobFailed, ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind
from outlast.mesh.transport import Mesh
from outlast.protocol import saving
from outlast.protocol.lines import Line
from outlast.protocol.member import (
    Adopt,
    Deliver,
    FencedOff,
    Frame,
    JobOver,
    MayBegin,
    MemberAction,
    MemberCore,
    Overflow,
    Tell,
)
from outlast.protocol.messages import Ask, Message, Phase, Status
from outlast.protocol.participant import Action, Participant
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
)
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import Charge, Foundation, Member, Outcome, View
from outlast.train.bailiff import Bailiff
from outlast.train.comparing import Comparing
from outlast.train.differing import astray
from outlast.train.exchange import Exchange
from outlast.train.giving import Giving
from outlast.train.link import Link
from outlast.train.post import Post
from outlast.train.records import Record
from outlast.train.saving import Saving
from outlast.train.supply import Supply
from outlast.train.telling import Telling
from outlast.wire.progress import Progress

log = logging.getLogger(__name__)

STRAYS_MOST = 3
"""So often a learner may come to have another state than members before it ends with an error."""

RETURNS_MOST = 8
"""So often members go back before the job ends with an error, if no state is verified in between."""


class Conduct:
    """What the replica is in the middle of. The link asks it for decisions (see `link.Decider`)."""

    def __init__(
        self,
        *,
        core: MemberCore,
        exchange: Exchange,
        supply: Supply,
        giving: Giving,
        post: Post,
        timing: Timing,
        changed: threading.Condition,
        link: Link | None,
        mesh: Mesh | None,
        progress: Progress | None,
        saver: Saving | None,
        comparing: Comparing | None,
    ) -> None:
        judges = exchange.screening is not None
        begin = partial(StepCore, surveys=exchange.surveys, judges=judges, verifies=comparing is not None)
        self.participant = Participant(core, begin)
        self.seed: Callable[[], int] = lambda: 0
        """The seed of the run."""
        self._bailiff = Bailiff(exchange, core.replica, lambda: self.seed())
        self.core = core
        self.changed = changed
        self.view = View()
        """The view in force: the last one whose adoption has been carried out."""
        self.applied = -1
        """The step whose result the model holds; -1 while it holds nothing that counts."""
        self.records: dict[int, Record] = {}
        self.on_stable: Callable[[Record], None] | None = None
        """Told of each record that becomes stable, before anybody else is given it."""
        self.back: GoBack | None = None
        """What the training thread has to load before anything else."""
        self.ended = -1
        """The step at which all have come to the end of the loop, in the same state."""
        self.discredited = False
        """Whether what this replica has computed of the present step was found to be wrong. It may stay all
        the same, where nobody else holds the state, and computes that again."""
        self._returns = 0
        """How often members have gone back since a state was verified."""
        self._strays = 0
        """How many lives in a row were given the state of members, and came to have another one."""
        self._differed_in = ""
        """What differed the last time, in words."""
        self.over: str | None = None
        """Why this life is over, if it is."""
        self.outcome: Outcome | None = None
        self.failure: Exception | None = None
        self.founding = False
        """Whether it is on this replica to say what the lineage begins with."""
        self.may_begin: Foundation | None = None
        """With what the coordinator has said last that this replica may begin."""
        self.left_alone: tuple[int, ...] | None = None
        self._saves_no_more = False
        self.all_done = False
        """Whether all members of this view have left the loop of steps."""
        self.at_rest: Callable[[], None] | None = None
        """What to say in a view that begins while the training thread is beside the steps; None while it is
        not."""
        self.leaving = False
        self.closed = False
        self.broken: frozenset[int] = frozenset()
        """Members of the view in force that this replica is cut off from, in its era."""
        self._back: frozenset[int] = frozenset()
        """Those of them that it is connected with again."""
        self.broken_at = self.adopted_at = time.monotonic()
        self._lines_seen = -1
        self._todo: deque[Action] = deque()
        self._busy = False
        self._spoiled_in = 0
        """The view in which something came that could not be taken: its attempts lead nowhere."""
        self._exchange = exchange
        self._supply = supply
        self._giving = giving
        self._post = post
        self._telling = Telling(exchange, giving, post, self.header, self.records)
        self._timing = timing
        self._link = link
        self._mesh = mesh
        self._progress = progress
        self._saving = saver
        self._comparing = comparing
        if comparing is not None:
            comparing.directed_by(self.participant, self.act)
        self._told_saved = -1
        """The newest saved step that people were told of."""
        self._stood = ""
        """Where this replica was a moment ago, and what it waited for."""
        self.status: Status | None = None
        """What the coordinator said when it was asked; None until then."""
        if saver is not None:
            saver.directed_by(
                self.participant, self.act, alone=link is None, evicted_within_s=timing.silent_at_least_s
            )

    # What decides for the link; called under the lock.

    def received(self, message: Message, now: float) -> list[MemberAction]:
        if self._saving is not None:
            self._saving.heard_at = now
        if isinstance(message, Status):
            self.status = message
            self.changed.notify_all()
        return self._carry_out(lambda: self.participant.received(message, now))

    def tick(self, now: float) -> list[MemberAction]:
        self._look_at_connections(now)
        for peer in self._giving.owed(self.applied):
            self._post.send(peer, self.header(Kind.FOUNDING))
        self.settle()
        self._tell_saved(just_now=False)
        self._stood = self.participant.steps.stands
        return self._carry_out(lambda: self.participant.tick(now))

    def tell(self, now: float) -> list[MemberAction]:
        return self._carry_out(lambda: self.participant.tell(now))

    def rejoin(self, now: float) -> list[MemberAction]:
        return self._carry_out(lambda: self.participant.rejoin(now))

    def _carry_out(self, decide: Callable[[], list[Action]]) -> list[MemberAction]:
        """Everything is done here, the link's own part included."""
        try:
            decided = decide()
        except Exception as error:
            self.break_down(error)
            raise
        self.act(decided)
        return []

    # What the cores want done. Under the lock, in any thread.

    def act(self, actions: Iterable[Action]) -> None:
        """Do this after what is being done, and then whatever follows from it."""
        self._todo.extend(actions)
        self.settle()

    def settle(self) -> None:
        """Do all that is to be done, and see what has become of connections. An error here is ours, whoever's
        frame has brought it about: something was decided and not carried out, so this replica cannot go on,
        and its training thread finds out."""
        if self._busy:
            return
        self._busy = True
        try:
            while self.failure is None and (self._todo or self._notice_lines()):
                if self._todo:
                    self._do(self._todo.popleft())
        except Exception as error:
            self.break_down(error)
        finally:
            self._busy = False

    def _do(self, action: Action) -> None:
        match action:
            case Deliver():
                self._deliver(action.frame)
            case Overflow():
                self._cut(action.sender, action.incarnation, "it is too far ahead")
            case Say():
                self._telling.say(self.view, action.to, action.body)
                if isinstance(action.body, Sum):
                    crash.reach("gather", action.body.step)
            case Survey() | Conclude() | Judge() if self._is_void:
                pass
            case Survey():
                self._exchange.survey(action.step)
                self.act(self.participant.surveyed(action.step, time.monotonic(), action.trial))
            case Conclude():
                self._exchange.conclude(action.step, action.trial)
                self.act(self.participant.summed(action.step, time.monotonic(), action.trial))
            case Judge():
                self._judge(action.step, action.trial)
            case Stable():
                record = self.records.get(action.step)
                if record is not None and self.on_stable is not None:
                    self.on_stable(record)
            case Feed():
                self._giving.feed(self.records.get(action.step), self.view, self.header(Kind.NOTE))
            case FeedAgain():
                self._giving.feed_again(action, self.records, self.view, self.header(Kind.NOTE))
            case HandOver():
                record = self.records[action.step]
                self._giving.hand_over(action, record, self.view, self.header(Kind.NOTE))
            case Tell():
                if self._link is not None:
                    self._link.perform([action])
            case _:
                self._concern(action)
                self.wake()

    @property
    def _is_void(self) -> bool:
        """Whether attempts of the view in force lead nowhere: the cores are ahead of it, or something that
        belongs to them could not be taken."""
        here = self.view.number
        return self.participant.steps.view.number != here or self._spoiled_in == here

    def _deliver(self, frame: Frame) -> None:
        header, payload = cast(tuple[Header, Any], frame.payload)
        if payload is None:
            return
        try:
            self._exchange.deliver(frame.sender, header, payload)
        except ProtocolError as error:
            # The sender's fault. The cores count it already, so nothing may come of this view any more; that
            # the connection is gone begins another.
            self._spoiled_in = self.view.number
            self._cut(frame.sender, frame.incarnation, str(error))

    def _cut(self, replica: int, incarnation: int, why: str) -> None:
        log.warning("replica %d was cut off by replica %d: %s", replica, self.core.replica, why)
        self._post.cut(Member(replica, incarnation), why)

    def _judge(self, step: int, trial: int) -> None:
        again, charges = self._bailiff.judge(self.view, step, trial)
        self.discredited |= any(charge.replica == self.core.replica for charge in charges)
        if charges:
            # The step waits for a view without the accused.
            self.act(self.participant.charge(charges, time.monotonic()))
        else:
            self.act(self.participant.judged(step, trial, time.monotonic(), again=again))

    def _answer(self, step: int, trial: int) -> None:
        """Another trial begins. Only who has something to compute for it needs the training thread."""
        if trial == Trial.HEARING:
            if self._exchange.court(step).asked:
                # The training thread waits; from here on others wait for it.
                self.enter(Phase.COMPUTING)
                return
            self._exchange.testify(step, ())
            crash.reach("testify", step)
        self.act(self.participant.contribute(time.monotonic(), trial))

    def _concern(self, action: Action) -> None:
        """What the training thread may be waiting for."""
        match action:
            case Completed():
                self._complete(action.step, action.verdict)
            case Attempt() if action.trial != Trial.FIRST:
                self._answer(action.step, action.trial)
            case Attempt() if self.at_rest is not None:
                self.at_rest()
            case Digest() | Verified() | Dropped() if self._comparing is not None:
                self._comparing.do(action)
                self._returns = 0 if isinstance(action, Verified) else self._returns
                self._strays = 0 if isinstance(action, Verified) and action.kept else self._strays
            case Differ():
                self._tell_of(action)
            case Accused():
                log.log(
                    logging.ERROR if self.view.chief == self.core.replica else logging.INFO,
                    "silent corruption: step %d was done again and gave something else: it was replica %d "
                    "(at %s) that was wrong, and it is evicted",
                    action.step,
                    action.member,
                    next((m.address for m in self.view.members if m.replica == action.member), ""),
                )
            case GoBack():
                self._go_back(action)
            case EndReached():
                self.ended = action.step
            case saving.SaySave():
                self._telling.say_save(self.view, action.to, action.body)
            case saving.Copy() | saving.Intend() | saving.Commit() | saving.Ended() | saving.SavedByOther():
                if self._saving is not None:
                    before = self._saving.saved_step
                    self._saving.do(action)
                    self._tell_saved(just_now=self._saving.saved_step != before)
            case Adopt():
                self._adopt(action.view)
            case FencedOff():
                self._adopt_nothing()
                self.over = action.reason
            case JobOver():
                self.outcome = action.outcome
                if self._link is not None:
                    self._link.perform([action])
            case Found():
                self.founding = True
            case MayBegin():
                self.may_begin = action.foundation
            case Pin():
                self._giving.pin(action, self.header(Kind.IMAGE))
                self._giving.give_final()
            case AllDone():
                self.all_done = True
                if self._saving is not None:
                    last = self.participant.steps.newest
                    words = self._exchange.last_words(last + 1)
                    self._saving.finish(last, {replica: part.keeps for replica, part in words.items()})
                elif self._saves_no_more:
                    self._refuse_to_save()
            case LeftAlone():
                self.left_alone = action.others
            case Lost():
                self.over = action.reason
                if action.differ is not None:
                    self._stray(action.differ)
            case _:
                pass

    def _adopt(self, view: View) -> None:
        if view.renews and self.view.member(self.core.replica) is not None:
            self._tell_of_standstill()
        if view.planned_since != self.view.planned_since:
            # The cores have forgotten what they were told.
            self.broken = self._back = frozenset()
        anew = 0 < self.view.lineage < view.lineage
        self.view = view
        self.founding = self.all_done = False
        self._exchange.adopt(view)
        self._supply.adopt(view.number, anew=anew)
        self._post.adopt(view, self.core.incarnation)
        self.adopted_at = time.monotonic()
        crash.life = self.core.incarnation
        if self._saving is not None:
            self._saving.adopt(view)
        if self._mesh is not None:
            self._mesh.live(self.core.incarnation)
            self._mesh.peers([*view.members, *view.learners])
        if self._link is not None:
            self._link.perform([Adopt(view)])

    def _adopt_nothing(self) -> None:
        self.view = View(number=self.view.number)
        self.founding = False
        self._exchange.adopt(self.view)
        if self._mesh is not None and not self.leaving:
            # One that leaves stays for those who still lack its last frames; they let go of it themselves.
            self._post.adopt(self.view, self.core.incarnation)
            self._mesh.peers(())

    def _tell_of_standstill(self) -> None:
        """It should not have come to that; this is to find out why."""
        lives = self._mesh.connected_lives() if self._mesh is not None else ()
        log.warning(
            "replica %d stood still: %s; it is connected with %s, and frames wait for %s. Nothing is lost: "
            "the step is done again. Please report this",
            self.core.replica,
            self._stood,
            [f"{life.replica}.{life.incarnation}" for life in lives],
            self._post.lines.waiting or "nobody",
        )

    def _tell_of(self, differ: Differ) -> None:
        """For people: who differs in what, and since when at the earliest. One log has to be enough."""
        report = self._comparing.report(differ) if self._comparing is not None else None
        self._differed_in = report.what if report is not None else ""
        if differ.again and report is not None:
            reason = report.ending(self.view.chief)
            charge = Charge(view=self.view.number, step=differ.step, reason=reason, ends=True)
            self.act(self.participant.charge([charge], time.monotonic()))
            return
        if report is not None:
            level = logging.ERROR if self.view.chief == self.core.replica else logging.INFO
            log.log(level, "%s", report.first(self.view))

    def _stray(self, differ: Differ) -> None:
        """This replica was given the state, followed the records, and has something else than members."""
        self._strays += 1
        what = self._comparing.report(differ).what if self._comparing is not None else ""
        if self._strays >= STRAYS_MOST:
            self.break_down(DivergedError(astray(self.core.replica, self._strays, differ.step, what)))

    def _go_back(self, action: GoBack) -> None:
        self._returns += 1
        if self._returns > RETURNS_MOST:
            place = f" (the last time in {self._differed_in})" if self._differed_in else ""
            raise DivergedError(
                f"replica {self.core.replica}: the states of replicas differ again and again after step "
                f"{action.fork.step}{place}. Either a machine computes wrongly all the time, or the script "
                "keeps something in the model, the optimizer or `state` that is not the same on all "
                "replicas; join(verify=None) compares nothing"
            )
        if self._comparing is not None:
            self._comparing.do(action)
        if self._saving is not None:
            self._saving.go_back(action.fork.step)
        self.records.clear()
        self._supply.go_back(self.view.number)
        self._giving.go_back(action.fork.step)
        if action.step != BLANK or self.applied >= 0:
            self.back = action
        else:
            # It had no state before.
            self.given()

    def given(self) -> None:
        """The state may have come before it was known that it is needed."""
        arrival = self._supply.arrival
        if arrival.complete and self.participant.steps.newest == BLANK:
            self.act(self.participant.loaded(arrival.step, time.monotonic(), arrival.view))

    def _complete(self, step: int, verdict: Verdict) -> None:
        given = self._supply.take(step)
        self.records[step] = given or self._exchange.record(step, verdict)
        oldest = min(self.participant.steps.oldest, self.applied + 1)
        for old in [kept for kept in self.records if kept < oldest]:
            del self.records[old]
        if self._progress is not None:
            self._progress.advance(step)
            self._progress.tell_loss(self.records[step].loss)
            if given is None:
                self._progress.contribute(step)
        note = self.records[step].note
        if note.save and self._saving is not None:
            gated = note.verdict.chosen
            self.act(self.participant.save_decided(step, note.view, time.monotonic(), gated=gated))
        elif note.kept is not None and self._saving is not None:
            self.act(self.participant.save_decided(step, note.view, time.monotonic(), kept=note.kept))

    def save_no_more(self) -> None:
        """The last state is saved, or cannot be, and this replica has no part in checkpoints any more."""
        self._saves_no_more = self._saving is not None
        self._saving = None

    def _refuse_to_save(self) -> None:
        """In a view that came after that: one who has not heard how the last save ended must not wait."""
        why = f"the script of replica {self.core.replica} has come to its end"
        unable = saving.Unable(self.participant.steps.newest, why)
        others = tuple(m.replica for m in self.view.members if m.replica != self.core.replica)
        self._telling.say_save(self.view, others, unable)

    def break_down(self, error: Exception) -> None:
        """A promise of our own is broken; the training thread has to know."""
        self.failure = error
        self.wake()

    def wake(self) -> None:
        """The training thread may have something to do; it waits for us, or for the mesh."""
        self.changed.notify_all()
        if self._mesh is not None:
            self._mesh.call_guest()

    def check(self) -> None:
        """In the training thread: raises what it has to know at once."""
        if self.failure is not None:
            raise self.failure
        if self.outcome is not None:
            # The agent is about to end this process; there is nothing left to do in it.
            self.enter(Phase.DONE)
            raise SystemExit(0 if self.outcome.finished else JobFailed.exit_code)

    def stand_after(self, step: int) -> None:
        """The training thread has loaded the state after this step."""
        self.applied = step
        if self._progress is not None:
            self._progress.advance(step)

    def enter(self, phase: Phase) -> None:
        """The training thread does this from now on; others measure it by that."""
        if self._progress is not None:
            self._progress.enter(phase)

    def _tell_saved(self, *, just_now: bool) -> None:
        """For people, who may ask when this process is gone."""
        saving, progress = self._saving, self._progress
        if saving is not None and progress is not None and saving.saved_step != self._told_saved:
            self._told_saved = saving.saved_step
            progress.saved(saving.saved_step, time.monotonic_ns() if just_now else 0)

    def take_part(self) -> None:
        """The training thread takes part in the view in force."""
        if self._progress is not None:
            self._progress.adopt(self.view.number)

    def header(self, kind: Kind, step: int = 0, flags: int = 0) -> Header:
        life = self.core.incarnation
        return Header(kind, flags=flags, incarnation=life, view=self.view.number, step=step)

    def be_patient(self) -> None:
        """Tell the others that this replica still looks for what the lineage begins with."""
        peers = [m for m in self.view.members if m.replica != self.core.replica]
        self._post.all(peers, self.header(Kind.FOUNDING))

    def forget_status(self) -> None:
        """What was said before does not count."""
        self.status = None

    def ask(self) -> None:
        """Have the coordinator say how the job stands."""
        if self._link is not None:
            self._link.perform([Tell(Ask())])

    # Connections.

    def send_bulk(self, replica: int, header: Header, memory: memoryview, keep: object, more: bool) -> None:
        """To a member, straight from memory."""
        member = self.view.member(replica)
        assert member is not None, "bulk is for members of the view in force"
        self._post.send(member, header, memory, keep, more=more)

    def connected(self, line: Line) -> None:
        self._post.connected(line)
        self.settle()

    def lost(self, line: Line, why: str) -> None:
        if self._post.lines.line(line.peer) == line and not self.closed:
            log.debug("replica %d lost replica %d: %s", self.core.replica, line.peer.replica, why)
        self._post.lines.lost(line)
        self.settle()

    def heard_of_gap(self, line: Line, era: int) -> None:
        self._post.lines.gap(line, era)
        self.settle()

    def _notice_lines(self) -> bool:
        """Tell the cores from whom this replica is cut off. Whether that was news."""
        lines = self._post.lines
        if lines.changes == self._lines_seen:
            return False
        self._lines_seen = lines.changes
        torn, back = lines.torn, lines.torn_and_back
        broken = frozenset(m.replica for m in self.view.members if m in torn)
        if self.closed or self.outcome is not None:
            # Everybody leaves now.
            return False
        returned = frozenset(m.replica for m in self.view.members if m in back)
        if (broken, returned) == (self.broken, self._back):
            return False
        if broken - self.broken:
            self.broken_at = time.monotonic()
        self.broken, self._back = broken, returned
        self._todo.extend(self.participant.peers_lost(broken, time.monotonic(), returned))
        return True

    def _look_at_connections(self, now: float) -> None:
        """A member that cannot be reached by another some time after a view began is as good as lost. (One
        that learns waits: members may be in the middle of a long step, and come to their view after it.)"""
        here = self.view.member(self.core.replica) is not None
        if self._mesh is None or not here or now - self.adopted_at < 2 * self._timing.detect_within_s:
            return
        for member in self.view.members:
            if member.replica != self.core.replica and self._post.lines.line(member) is None:
                self._post.lines.give_up(member)
