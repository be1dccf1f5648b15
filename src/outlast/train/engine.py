"""The engine of a replica: its two protocol cores, the mesh and the link, and the training thread.

    coordinator ──link thread──▶ ┐                        ┌──▶ mesh: frames to peers
                                 ├─▶ Participant ─actions─┼──▶ link: words to the coordinator
    peers ───────mesh thread──▶ ─┘   (one lock)           └──▶ wakes the training thread

The cores decide, whichever thread brings the event; one lock makes events follow each other. The training
thread asks for work (`work`): a shard to compute, or the record of the step, and waits when there is neither.
Everything that touches the model is done in it: it computes, applies records, copies snapshots for others
and loads those that it is given. Nobody ever waits for the coordinator.

A life that is over (it was stopped for too long and evicted, or cannot catch up) is noticed here, too: the
engine begins a new one, is given the state of the others, and the training loop goes on from there as if
nothing had happened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from outlast import crashpoints as crash
from outlast.errors import ConfigError, JobFailed, LoopError
from outlast.kinship import unnice
from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind, encode
from outlast.mesh.transport import Mesh
from outlast.protocol.member import Adopt, Deliver, FencedOff, JobOver, MemberAction, MemberCore, Tell
from outlast.protocol.messages import Message, Phase
from outlast.protocol.participant import Action, Participant
from outlast.protocol.steps import (
    AllDone,
    Body,
    Completed,
    Conclude,
    Feed,
    FeedAgain,
    Found,
    Gone,
    HandOver,
    Holding,
    LeftAlone,
    Lost,
    Mode,
    Part,
    Pin,
    Say,
    Stable,
    Sum,
    Switched,
    Want,
    Whole,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, Outcome, View
from outlast.state.training import TrainingState
from outlast.train.exchange import Exchange
from outlast.train.giving import Giving
from outlast.train.gradients import Gradients
from outlast.train.link import Link
from outlast.train.post import Post
from outlast.train.reception import Reception
from outlast.train.records import Record
from outlast.train.snapshots import Arrival
from outlast.train.sums import NodeSum
from outlast.train.supply import Supply
from outlast.wire.progress import Progress

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5
"""How often a waiting training thread looks at the clock; whatever happens wakes it at once."""


class Engine:
    """What the training thread uses, and what decides for the link."""

    def __init__(
        self,
        *,
        core: MemberCore,
        state: TrainingState,
        gradients: Gradients,
        exchange: Exchange,
        timing: Timing,
        changed: threading.Condition,
        link: Link | None = None,
        mesh: Mesh | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.participant = Participant(core)
        self.core = core
        self.changed = changed
        self.progress = progress
        self.view = View()
        """The view in force: the last one whose adoption has been carried out."""
        self.applied = -1
        """The step whose result the model holds; -1 while it holds nothing that counts."""
        self.closed = False
        self.keep_stable = False
        self._stable: list[Record] = []
        self._state = state
        self._gradients = gradients
        self._exchange = exchange
        self._timing = timing
        self._link = link
        self._mesh = mesh
        self._post = Post(mesh)
        self._giving = Giving(core.replica, state, gradients, self._post, changed)
        self._supply = Supply(exchange.vectors)
        self._records: dict[int, Record] = {}
        # The attempts, (view, step), for which these have been done.
        self._assigned: tuple[int, int] | None = None
        self._contributed: tuple[int, int] | None = None
        self._adopted_at = time.monotonic()
        self._broken: set[int] = set()
        self._over: str | None = None
        self._outcome: Outcome | None = None
        self._left_alone: tuple[int, ...] | None = None
        self._all_done = False
        self._ready = False
        self._leaving = False
        self._failure: Exception | None = None

    def reception(self) -> Reception:
        """What the mesh is to call."""
        return Reception(
            self.participant,
            self._exchange,
            self._supply,
            self.changed,
            act=self._act,
            give_up=self._give_up,
            broken=self._break_down,
            connected=self._post.connected,
            lost=self._lost,
        )

    # The training thread.

    def start(self) -> None:
        """Take part; returns once the model holds the state that the job begins or goes on with."""
        if self._link is None:
            self._start_alone()
        else:
            assert self._mesh is not None
            self._link.decided_by(self)
            self._mesh.open()
            self._link.open()
        self._get_state()
        # Others may wait for this state, and the script may do something else before its first step.
        while True:
            with self.changed:
                due = self._giving.due(self.applied)
            if due is None:
                return
            self._giving.serve(*due)

    def work(self) -> int | Record:
        """A shard to compute for the step after the applied one, or the record of that step."""
        while True:
            with self.changed:
                todo = self._next(closing=False)
            if isinstance(todo, tuple):
                self._giving.serve(*todo)
            elif todo is None:
                self._get_state()
            else:
                return todo

    def bucket(self, node: NodeSum, bucket: int) -> None:
        """A bucket of an own sum is there, in the middle of backward: send it ahead of the rest."""
        step = self.applied + 1
        crash.reach("backward", step)
        with self.changed:
            steps = self.participant.steps
            if (
                steps.mode is Mode.RUNNING
                and steps.step == step
                and self._assigned == (self.view.number, step)
            ):
                self._exchange.bucket(step, node, bucket)

    @property
    def own_shards(self) -> tuple[int, ...]:
        """The shards that are this replica's in the view in force."""
        return self._exchange.plan.shards if self._exchange.in_view else ()

    def take_stable(self) -> list[Record]:
        """The records that have become stable since the last time, if they are kept."""
        with self.changed:
            stable, self._stable = self._stable, []
        return stable

    def leave_loop(self) -> None:
        """The training loop is over here: stay until everybody holds the last record."""
        while True:
            with self.changed:
                self.participant.steps.closing = True
                todo = self._next(closing=True)
            if isinstance(todo, tuple):
                self._giving.serve(*todo)
            elif todo is None:
                raise LoopError(
                    f"replica {self.core.replica} left the loop of steps after step {self.applied}, and its "
                    f"place in the job was lost then ({self._over}): what it has done may be incomplete"
                )
            else:
                return

    def fail(self, reason: str, shard: int) -> None:
        """This process ends by an error of its own; tell everybody before its slow exit."""
        if self._link is not None:
            self._link.fail(reason, self.applied + 1, shard)

    @property
    def leave_requested(self) -> bool:
        return self._link is not None and self._link.leave_requested

    def leave(self) -> None:
        """Ask to be let go; the view that does so ends this process."""
        if self._link is not None and not self._leaving:
            self._leaving = True
            self._link.leave()

    def close(self) -> None:
        self.closed = True
        if self._mesh is not None:
            self._mesh.close()
        if self._link is not None:
            self._link.close()

    def _start_alone(self) -> None:
        me = Member(self.core.replica, 1)
        shards = (me.replica,) * self.core.shards
        view = View(number=1, lineage=1, members=(me,), shards=shards, slices=(me.replica,), planned_since=1)
        with self.changed:
            self.core.incarnation = 1
            self._act(self.participant.alone(view, time.monotonic()))

    # What the training thread does next, under the lock.

    def _next(self, *, closing: bool) -> int | Record | tuple[Pin, Header] | None:
        """A shard, a record, a snapshot to give, or None: get the state anew. For one who closes: a number
        means that everybody is done."""
        waiting = False
        while True:
            self._check()
            if self._over is not None:
                return None
            due = self._giving.due(self.applied)
            if due is not None:
                return due
            found = self._closing_work() if closing else self._step_work()
            if found is not None:
                self._enter(Phase.COMPUTING)
                return found
            if not waiting:
                self._enter(Phase.WAITING)
                waiting = True
            self.changed.wait(LOOK_AGAIN_S)

    def _step_work(self) -> int | Record | None:
        step = self.applied + 1
        record = self._records.get(step)
        if record is not None:
            return record
        steps = self.participant.steps
        if steps.mode is Mode.RUNNING and steps.step == step:
            if self._assigned != (self.view.number, step):
                self._assign(step)
            missing = self._gradients.missing()
            if missing:
                return missing[0]
            if self._contributed != (self.view.number, step):
                self._contribute(step)
                return self._records.get(step)
        elif steps.mode is Mode.LEARNING:
            self._learn()
        return None

    def _assign(self, step: int) -> None:
        self._assigned = (self.view.number, step)
        self._gradients.assign(self._exchange.plan.shards)
        if self.progress is not None:
            self.progress.adopt(self.view.number)

    def _contribute(self, step: int) -> None:
        self._contributed = (self.view.number, step)
        self._exchange.contribute(step, self._gradients.nodes(), self.participant.steps.pending)
        crash.reach("scatter", step)
        self._act(self.participant.contribute(time.monotonic()))

    def _closing_work(self) -> int | None:
        if self._all_done:
            return 1
        if self._left_alone is not None:
            others = " and ".join(str(replica) for replica in self._left_alone)
            raise LoopError(
                f"replica {self.core.replica} left the loop of steps after step {self.applied}, while "
                f"replica {others} went on. All must leave it at the same step: give job.steps() the run's "
                "total and do not break out of the loop on one replica only"
            )
        steps = self.participant.steps
        if steps.mode is Mode.LEARNING and steps.newest <= self.applied:
            # It has applied everything that it was given; the others end the job.
            return 1
        attempt = (self.view.number, steps.step)
        if steps.mode is Mode.RUNNING and self._contributed != attempt:
            self._contributed = attempt
            self._exchange.contribute_nothing(steps.step)
            self._act(self.participant.contribute(time.monotonic()))
            return 1 if self._all_done else None
        return None

    def _learn(self) -> None:
        """A learner with nothing to apply has caught up; one that is cut off from a member starts over."""
        if self._link is None:
            return
        if not self._ready:
            self._ready = True
            self._link.ready()
        if self._broken and time.monotonic() - self._adopted_at > self._timing.silent_at_most_s:
            self._over = "a connection over which it was given records broke"

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._outcome is not None:
            # The agent is about to end this process; there is nothing left to do in it.
            raise SystemExit(0 if self._outcome.finished else JobFailed.exit_code)

    def _enter(self, phase: Phase) -> None:
        if self.progress is not None:
            self.progress.enter(phase)

    # The state that this replica is given.

    def _get_state(self) -> None:
        """Wait for the state, beginning a new life if the old one is over."""
        with self.changed:
            self._enter(Phase.STARTING)
            while True:
                self._check()
                if self._over is not None:
                    self._begin_anew()
                if self.applied >= 0:
                    return
                if self._supply.arrival.complete:
                    break
                if self._hungry():
                    self._over = "the state that it waits for does not come"
                else:
                    self.changed.wait(LOOK_AGAIN_S)
            arrival = self._supply.arrival
        self._load(arrival)

    def _hungry(self) -> bool:
        """Whether a snapshot is overdue: the view has members, and nothing of it has come for long."""
        served = self.participant.steps.mode in (Mode.LEARNING, Mode.LOADING) and bool(self.view.members)
        # A member gives its share at the end of its step, which may be a long one; so be patient at first.
        begun = self._supply.arrival.view >= 0
        patience_s = self._timing.silent_at_most_s if begun else self._timing.cold_within_s
        return served and self._supply.silent_s(time.monotonic()) > patience_s

    def _begin_anew(self) -> None:
        assert self._link is not None
        if self._leaving:
            self._enter(Phase.DONE)
            raise SystemExit(0)
        log.info("replica %d begins a new life: %s", self.core.replica, self._over)
        self._over = None
        self._ready = False
        self.applied = -1
        self._records.clear()
        self._giving.clear()
        self._supply.clear()
        self._link.rejoin()

    def _load(self, arrival: Arrival) -> None:
        crash.reach("joining", arrival.step)
        log.info("the state of %d bytes came in %.3f s", arrival.image.total_bytes, self._supply.took_s())
        self._gradients.abandon_shard()
        try:
            self._state.load(arrival.image, arrival.tensors())
        except ConfigError as error:
            raise ConfigError(f"replica {self.core.replica} differs from its peers: {error}") from error
        self._gradients.start_step()
        with self.changed:
            if arrival is not self._supply.arrival:
                return
            self.applied = arrival.step
            self._supply.arrival = Arrival()
            for member in self.view.members:
                if member.replica != self.core.replica:
                    self._post.send(member, self._header(Kind.LOADED))

    # What decides for the link; called under the lock.

    def received(self, message: Message, now: float) -> list[MemberAction]:
        self._act(self.participant.received(message, now))
        return []

    def tick(self, now: float) -> list[MemberAction]:
        self._look_at_connections(now)
        self._act(self.participant.tick(now))
        return []

    def tell(self, now: float) -> list[MemberAction]:
        self._act(self.participant.tell(now))
        return []

    def rejoin(self, now: float) -> list[MemberAction]:
        self._act(self.participant.rejoin(now))
        return []

    # What the cores want done. Under the lock, in any thread.

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Deliver():
                    self._exchange.deliver(action.frame)
                case Say():
                    self._say(action.to, action.body)
                case Conclude():
                    self._exchange.round(action.step).concluded()
                    self._act(self.participant.summed(action.step, time.monotonic()))
                    crash.reach("gather", action.step)
                case Stable():
                    record = self._records.get(action.step)
                    if record is not None and self.keep_stable:
                        self._stable.append(record)
                case Feed():
                    self._giving.feed(self._records.get(action.step), self.view, self._header(Kind.NOTE))
                case FeedAgain():
                    self._giving.feed_again(action, self._records, self.view, self._header(Kind.NOTE))
                case HandOver():
                    record = self._records[action.step]
                    self._giving.hand_over(action, record, self.view, self._header(Kind.NOTE))
                case Tell():
                    if self._link is not None:
                        self._link.perform([action])
                case _:
                    self._concern(action)
                    self.changed.notify_all()

    def _concern(self, action: Action) -> None:
        """What the training thread may be waiting for."""
        match action:
            case Completed():
                self._complete(action.step)
            case Adopt():
                self._adopt(action.view)
            case FencedOff():
                self._adopt_nothing()
                self._over = action.reason
            case JobOver():
                self._outcome = action.outcome
                if self._link is not None:
                    self._link.perform([action])
            case Found():
                self.applied = action.step
            case Pin():
                self._giving.pin(action, self._header(Kind.IMAGE))
            case AllDone():
                self._all_done = True
            case LeftAlone():
                self._left_alone = action.others
            case Lost():
                self._over = action.reason
            case _:
                pass

    def _adopt(self, view: View) -> None:
        joins = self.core.is_member and not self._exchange.in_view
        self.view = view
        self._exchange.adopt(view)
        self._supply.adopt()
        self._post.adopt(view)
        self._adopted_at = time.monotonic()
        self._broken.clear()
        self._assigned = self._contributed = None
        crash.life = self.core.incarnation
        if self._mesh is not None:
            self._mesh.live(self.core.incarnation)
            self._mesh.peers([*view.members, *view.learners])
        if self._link is not None:
            self._link.perform([Adopt(view)])
            if self.core.unreachable:
                self._link.complain(frozenset())
            if joins:
                unnice()

    def _adopt_nothing(self) -> None:
        self.view = View(number=self.view.number)
        self._exchange.adopt(self.view)
        self._post.adopt(self.view)
        if self._mesh is not None and not self._leaving:
            # One that leaves stays for those who still lack its last frames; they let go of it themselves.
            self._mesh.peers(())

    def _complete(self, step: int) -> None:
        self._records[step] = self._supply.take(step) or self._exchange.record(step)
        oldest = min(self.participant.steps.oldest, self.applied + 1)
        for old in [kept for kept in self._records if kept < oldest]:
            del self._records[old]
        if self.progress is not None:
            self.progress.advance(step)

    def _give_up(self, reason: str) -> None:
        """This life cannot go on; the training thread begins another one."""
        self._over = reason
        self.changed.notify_all()

    def _break_down(self, error: Exception) -> None:
        """A promise of our own is broken; the training thread has to know."""
        self._failure = error
        self.changed.notify_all()

    def _header(self, kind: Kind, step: int = 0) -> Header:
        return Header(kind, incarnation=self.core.incarnation, view=self.view.number, step=step)

    def _say(self, to: tuple[int, ...], body: Body) -> None:
        if not to:
            return
        peers = [m for m in (*self.view.members, *self.view.learners) if m.replica in to]
        match body:
            case Part():
                note = self._exchange.round(body.step).parts[self.core.replica]
                self._post.all(peers, self._header(Kind.PART, body.step), encode(note))
            case Sum():
                self._post.all(peers, self._header(Kind.SUM, body.step))
            case Holding():
                # Blank is -1, and a header has no negative numbers.
                flags = 1 if body.running else 0
                self._post.all(peers, self._header(Kind.HOLDING, body.newest + 1)._replace(flags=flags))
            case Want():
                self._post.all(peers, self._header(Kind.WANT, body.step))
            case Gone():
                self._post.all(peers, self._header(Kind.GONE, body.step))
            case Switched():
                self._post.all(peers, self._header(Kind.SWITCHED), encode(body.view))
            case Whole():
                self._giving.answer(peers, self._records[body.step], self._header(Kind.NOTE))
            case _:
                raise AssertionError(f"{body} is said by what carries it")

    # Connections.

    def send_bulk(self, replica: int, header: Header, memory: memoryview, more: bool) -> None:
        """To a member, straight from memory."""
        assert self._mesh is not None
        if not self._mesh.send(replica, header, memory, more=more):
            self._cut_off(replica)

    def _lost(self, peer: Member) -> None:
        if self.view.member(peer.replica) == peer:
            self._cut_off(peer.replica)

    def _cut_off(self, replica: int) -> None:
        """Frames to or from this member may be lost for good, so for as long as this view lasts it counts as
        cut off, whatever becomes of the connection."""
        if replica in self._broken or self._all_done or self.closed:
            return
        self._broken.add(replica)
        if self.core.is_member and self._link is not None:
            self._link.complain(frozenset(self._broken))
            self._act(self.participant.peers_lost(frozenset(self._broken), time.monotonic()))

    def _look_at_connections(self, now: float) -> None:
        """A member that cannot be reached some time after a view began is as good as lost."""
        if self._mesh is None or now - self._adopted_at < 2 * self._timing.detect_within_s:
            return
        for member in self.view.members:
            if member.replica != self.core.replica and not self._mesh.is_connected(member.replica):
                self._cut_off(member.replica)
