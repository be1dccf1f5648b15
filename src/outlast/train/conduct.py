"""Carrying out what the cores decide: the view in force, the records held, words out, connections lost.

Everything here happens under one lock, in whichever thread brought the event: the link's, the mesh's or the
training thread. Actions are carried out in their order, each in the view that was in force when it was
decided; a view is in force from the moment its adoption is carried out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from outlast import crashpoints as crash
from outlast.errors import DivergedError, JobFailed
from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind
from outlast.mesh.transport import Mesh
from outlast.protocol import saving
from outlast.protocol.member import Adopt, Deliver, FencedOff, JobOver, MemberAction, MemberCore, Tell
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
    Survey,
    Trial,
    Verdict,
    Verified,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, Outcome, View
from outlast.train.bailiff import Bailiff
from outlast.train.comparing import Comparing
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
        self.over: str | None = None
        """Why this life is over, if it is."""
        self.outcome: Outcome | None = None
        self.failure: Exception | None = None
        self.founding = False
        """Whether it is on this replica to say what the lineage begins with."""
        self.left_alone: tuple[int, ...] | None = None
        self.all_done = False
        self.leaving = False
        self.closed = False
        self.broken: set[int] = set()
        """Members that are cut off, in the view in force."""
        self.adopted_at = time.monotonic()
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
        self._stood = self.participant.steps.stands
        return self._carry_out(lambda: self.participant.tick(now))

    def tell(self, now: float) -> list[MemberAction]:
        return self._carry_out(lambda: self.participant.tell(now))

    def rejoin(self, now: float) -> list[MemberAction]:
        return self._carry_out(lambda: self.participant.rejoin(now))

    def _carry_out(self, decide: Callable[[], list[Action]]) -> list[MemberAction]:
        """Everything is done here, the link's own part included."""
        try:
            self.act(decide())
        except Exception as error:
            self.break_down(error)
            raise
        return []

    # What the cores want done. Under the lock, in any thread.

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Deliver():
                    header, payload = cast(tuple[Header, Any], action.frame.payload)
                    if payload is not None:
                        self._exchange.deliver(action.frame.sender, header, payload)
                case Say():
                    self._telling.say(self.view, action.to, action.body)
                case Survey():
                    self._exchange.survey(action.step)
                    self.act(self.participant.surveyed(action.step, time.monotonic(), action.trial))
                case Conclude():
                    self._exchange.conclude(action.step, action.trial)
                    self.act(self.participant.summed(action.step, time.monotonic(), action.trial))
                    crash.reach("gather", action.step)
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
            case Digest() | Verified() | Dropped() if self._comparing is not None:
                self._comparing.do(action)
                self._returns = 0 if isinstance(action, Verified) else self._returns
            case Differ():
                self._tell_of(action)
            case Accused():
                log.error(
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
                # From here on the others wait for this script to leave its loop.
                self.enter(Phase.COMPUTING)
            case saving.SaySave():
                self._telling.say_save(self.view, action.to, action.body)
            case saving.Copy() | saving.Intend() | saving.Commit() | saving.Ended() | saving.SavedByOther():
                if self._saving is not None:
                    self._saving.do(action)
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
            case Pin():
                self._giving.pin(action, self.header(Kind.IMAGE))
            case AllDone():
                self.all_done = True
                if self._saving is not None:
                    self._saving.finish(self.participant.steps.newest)
            case LeftAlone():
                self.left_alone = action.others
            case Lost():
                self.over = action.reason
            case _:
                pass

    def _adopt(self, view: View) -> None:
        if view.renews and self.view.member(self.core.replica) is not None:
            self._tell_of_standstill()
        self.view = view
        self.founding = False
        self._exchange.adopt(view)
        self._supply.adopt()
        self._post.adopt(view, self.core.incarnation)
        self.adopted_at = time.monotonic()
        self.broken.clear()
        crash.life = self.core.incarnation
        if self._saving is not None:
            self._saving.adopt(view)
        if self._mesh is not None:
            self._mesh.live(self.core.incarnation)
            self._mesh.peers([*view.members, *view.learners])
        if self._link is not None:
            self._link.perform([Adopt(view)])
            if self.core.unreachable:
                self._link.complain(frozenset())

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
            self._post.waiting or "nobody",
        )

    def _tell_of(self, differ: Differ) -> None:
        """For people: who differs, and since when at the earliest."""
        where = {m.replica: m.address for m in self.view.members}
        named = [f"replica {replica} (at {where.get(replica, '')})" for replica in differ.members]
        who = " and ".join(named) or "there is no majority, so nobody can be named"
        log.error(
            "silent corruption: the states of replicas after step %d differ: %s. It happened in the steps "
            "%d to %d, which are void: all go back to step %d and do them again",
            differ.step,
            who,
            differ.back_to + 1,
            differ.step,
            differ.back_to,
        )

    def _go_back(self, action: GoBack) -> None:
        self._returns += 1
        if self._returns > RETURNS_MOST:
            raise DivergedError(
                f"replica {self.core.replica}: the states of replicas differ again and again after step "
                f"{action.fork.step}. Either a machine computes wrongly all the time, or the script keeps "
                "something in the model, the optimizer or `state` that is not the same on all replicas; "
                "join(verify=None) compares nothing"
            )
        if self._comparing is not None:
            self._comparing.do(action)
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
        self.records[step] = self._supply.take(step) or self._exchange.record(step, verdict)
        oldest = min(self.participant.steps.oldest, self.applied + 1)
        for old in [kept for kept in self.records if kept < oldest]:
            del self.records[old]
        if self._progress is not None:
            self._progress.advance(step)
        note = self.records[step].note
        if note.save and self._saving is not None:
            gated = note.verdict.chosen
            self.act(self.participant.save_decided(step, note.view, time.monotonic(), gated=gated))

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
            raise SystemExit(0 if self.outcome.finished else JobFailed.exit_code)

    def enter(self, phase: Phase) -> None:
        """The training thread does this from now on; others measure it by that."""
        if self._progress is not None:
            self._progress.enter(phase)

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
        assert self._mesh is not None
        if not self._mesh.send(replica, header, memory, keep=keep, more=more):
            self._cut_off(replica)

    def lost(self, peer: Member) -> None:
        # Over a connection of a life that is over nothing of this one has gone.
        if self.view.member(peer.replica) == peer and self._post.has_met(peer):
            self._cut_off(peer.replica)

    def _cut_off(self, replica: int) -> None:
        """Frames to or from this member may be lost for good, so for as long as this view lasts it counts as
        cut off, whatever becomes of the connection."""
        if replica in self.broken or self.closed:
            return
        if self.all_done:
            # It has left, as everybody does now; but the last save may have to do without it.
            if self._saving is not None and not self._saving.idle:
                self.broken.add(replica)
                self.act(self.participant.peers_lost(frozenset(self.broken), time.monotonic()))
            return
        self.broken.add(replica)
        if self.core.is_member and self._link is not None:
            self._link.complain(frozenset(self.broken))
            self.act(self.participant.peers_lost(frozenset(self.broken), time.monotonic()))

    def _look_at_connections(self, now: float) -> None:
        """A member that cannot be reached some time after a view began is as good as lost. So is one for
        which words are kept although it is connected, which should not happen: it will never have them."""
        if self._mesh is None or now - self.adopted_at < 2 * self._timing.detect_within_s:
            return
        for member in self.view.members:
            reached = self._mesh.is_connected(member.replica) and member.replica not in self._post.waiting
            if member.replica != self.core.replica and not reached:
                self._cut_off(member.replica)
