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
from typing import Any

from outlast import crashpoints as crash
from outlast.errors import ConfigError, JobFailed, LoopError
from outlast.kinship import unnice
from outlast.mesh.frames import Header
from outlast.mesh.kinds import PART, Kind, Way, decode, encode
from outlast.mesh.transport import Mesh
from outlast.protocol.member import Adopt, Deliver, FencedOff, Frame, JobOver, MemberAction, MemberCore, Tell
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
    Handed,
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
from outlast.train.gradients import Gradients
from outlast.train.link import Link
from outlast.train.post import VIEW, Post
from outlast.train.records import Inbox, Record
from outlast.train.snapshots import Arrival, Copy
from outlast.train.sums import NodeSum
from outlast.wire.progress import Progress

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5
"""How often a waiting training thread looks at the clock; whatever happens wakes it at once."""


class Engine:
    """What the training thread uses; the mesh's sink and the link's decider at the same time."""

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
        self._state = state
        self._gradients = gradients
        self._exchange = exchange
        self._timing = timing
        self._link = link
        self._mesh = mesh
        self.progress = progress
        self.closed = False
        self._post = Post(mesh)
        self._inbox = Inbox(exchange.vectors)
        self._arrival = Arrival()
        self._records: dict[int, Record] = {}
        self._offered: dict[int, Record] = {}
        self._pins: list[Pin] = []
        self.applied = -1
        """The step whose result the model holds; -1 while it holds nothing that counts."""
        self.keep_stable = False
        self.stable: list[Record] = []
        """Records that have become stable, for the training thread to tell of, if `keep_stable`."""
        self._assigned: tuple[int, int] | None = None
        self._contributed: tuple[int, int] | None = None
        # The attempts, (view, step), for which these have been done.
        self._broken: set[int] = set()
        self._broken_since = 0.0
        self._fed_at = time.monotonic()
        self._fenced: str | None = None
        self._outcome: Outcome | None = None
        self._left_alone: tuple[int, ...] | None = None
        self._all_done = False
        self._ready = False
        self._leaving = False
        self._failure: Exception | None = None

    # The training thread.

    @property
    def view(self) -> View:
        return self.core.view

    @property
    def is_member(self) -> bool:
        return self.core.is_member

    def start(self) -> None:
        """Take part; returns once the model holds the state that the job begins or goes on with."""
        if self._link is None:
            with self.changed:
                self.core.incarnation = 1
                me = Member(self.core.replica, 1)
                shards = (me.replica,) * self.core.shards
                view = View(
                    number=1, lineage=1, members=(me,), shards=shards, slices=(me.replica,), planned_since=1
                )
                self._act(self.participant.alone(view, time.monotonic()))
        else:
            assert self._mesh is not None
            self._link.decided_by(self)
            self._mesh.open()
            self._link.open()
        self._get_state()

    def work(self) -> int | Record:
        """A shard to compute for the step after the applied one, or the record of that step."""
        while True:
            with self.changed:
                pin = self._next(closing=False)
            if isinstance(pin, Pin):
                self._serve(pin)
            elif pin is None:
                self._get_state()
            else:
                return pin

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
        """The records that have become stable since the last time."""
        with self.changed:
            stable, self.stable = self.stable, []
        return stable

    def apply(self, step: int) -> None:
        """The user's code has applied this step's record."""
        self.applied = step

    def leave_loop(self) -> None:
        """The training loop is over here: stay until everybody holds the last record."""
        while True:
            with self.changed:
                self.participant.steps.closing = True
                todo = self._next(closing=True)
            if isinstance(todo, Pin):
                self._serve(todo)
            elif todo is None or isinstance(todo, Record):
                raise LoopError(
                    f"replica {self.core.replica} left the loop of steps after step {self.applied}, and was "
                    "not a member then: it has not done all steps"
                )
            else:
                return

    def fail(self, reason: str, shard: int) -> None:
        """This process ends by an error of its own; tell everybody before its slow exit."""
        if self._link is not None:
            self._link.fail(reason, self.applied + 1, shard)

    def leave(self) -> None:
        """Ask to be let go."""
        if self._link is not None and not self._leaving:
            self._leaving = True
            self._link.leave()

    @property
    def leave_requested(self) -> bool:
        return self._link is not None and self._link.leave_requested

    def close(self) -> None:
        self.closed = True
        if self._mesh is not None:
            self._mesh.close()
        if self._link is not None:
            self._link.close()

    # What the training thread does next, under the lock.

    def _next(self, *, closing: bool) -> int | Record | Pin | None:
        """A shard, a record, a snapshot to give, or None: get the state anew. For one who closes: a number
        means that everybody is done."""
        waiting = False
        while True:
            self._check()
            if self._fenced is not None:
                return None
            pin = self._due_pin()
            if pin is not None:
                return pin
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

    def _closing_work(self) -> int | None:
        if self._all_done:
            return 1
        if self._left_alone is not None:
            others = " and ".join(str(replica) for replica in self._left_alone)
            raise LoopError(
                f"replica {self.core.replica} left the loop of steps after step {self.applied}, while replica "
                f"{others} went on. All must leave it at the same step: give job.steps() the run's total "
                "and do not break out of the loop on one replica only"
            )
        steps = self.participant.steps
        if steps.mode is Mode.LEARNING and steps.newest <= self.applied:
            # It has applied everything that it was given; the others end the job.
            return 1
        attempt = (self.view.number, steps.step)
        if steps.mode is Mode.RUNNING and self._contributed != attempt:
            self._contributed = attempt
            self._exchange.round(steps.step).parts[self.core.replica] = self._exchange.closing_note()
            self._act(self.participant.contribute(time.monotonic()))
            return 1 if self._all_done else None
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

    def _learn(self) -> None:
        """A learner that has nothing to apply has caught up; one that is not fed any more starts over."""
        if self._link is None:
            return
        if not self._ready:
            self._ready = True
            self._link.ready()
        stale_s = time.monotonic() - self._broken_since
        if self._broken and stale_s > self._timing.silent_at_most_s:
            self._fenced = "a connection over which it was fed broke"

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._outcome is not None:
            # The agent is about to end this process; there is nothing left to do in it.
            raise SystemExit(0 if self._outcome.finished else JobFailed.exit_code)

    def _enter(self, phase: Phase) -> None:
        if self.progress is not None:
            self.progress.enter(phase)

    # State: given and received.

    def _due_pin(self) -> Pin | None:
        for pin in self._pins:
            if pin.step == self.applied:
                self._pins.remove(pin)
                return pin
        return None

    def _serve(self, pin: Pin) -> None:
        view = self.view.number
        crash.reach("serving", pin.step)
        copy = Copy(self._state, pin, self.core.replica, self._gradients.step_buffers())
        header = self._header(Kind.IMAGE, view=view, step=pin.step)
        with self.changed:
            self._post.send(pin.to, header, copy.image)
            for index, memory in copy:
                self._post.send(pin.to, header._replace(kind=Kind.PIECE, lo=index), memory)

    def _get_state(self) -> None:
        """Wait for the state, beginning a new life if the old one is over."""
        with self.changed:
            self._enter(Phase.STARTING)
            while True:
                self._check()
                if self._fenced is not None:
                    self._begin_anew()
                if self.applied >= 0:
                    return
                if self._arrival.complete:
                    break
                if self._hungry():
                    self._fenced = "the state that it waits for does not come"
                    continue
                self.changed.wait(LOOK_AGAIN_S)
        self._load(self._arrival)

    def _hungry(self) -> bool:
        """Whether a snapshot is overdue: the view has members, and nothing of it has come for long."""
        served = self.participant.steps.mode in (Mode.LEARNING, Mode.LOADING) and bool(self.view.members)
        # A member may be in a long step, and gives its share at the end of it; so be patient at first.
        patience_s = self._timing.silent_at_most_s if self._arrival.view >= 0 else self._timing.cold_within_s
        return served and time.monotonic() - self._fed_at > patience_s

    def _begin_anew(self) -> None:
        assert self._link is not None
        if self._leaving:
            raise SystemExit(0)
        log.info("replica %d begins a new life: %s", self.core.replica, self._fenced)
        self._fenced = None
        self._ready = False
        self.applied = -1
        self._records.clear()
        self._offered.clear()
        self._pins.clear()
        self._inbox.clear()
        self._arrival = Arrival()
        self._fed_at = time.monotonic()
        self._link.rejoin()

    def _load(self, arrival: Arrival) -> None:
        crash.reach("joining", arrival.step)
        self._gradients.abandon_shard()
        try:
            self._state.load(arrival.image, arrival.tensors())
        except ConfigError as error:
            raise ConfigError(f"replica {self.core.replica} differs from its peers: {error}") from error
        self._gradients.start_step()
        with self.changed:
            if arrival is not self._arrival:
                return
            self.applied = arrival.step
            self._arrival = Arrival()
            for member in self.view.members:
                self._post.send(member, self._header(Kind.LOADED))

    # What the cores want done. Under the lock, in any thread.

    def received(self, message: Message, now: float) -> list[MemberAction]:
        return self._decided(self.participant.received(message, now))

    def tick(self, now: float) -> list[MemberAction]:
        return self._decided(self.participant.tick(now))

    def tell(self, now: float) -> list[MemberAction]:
        return self._decided(self.participant.tell(now))

    def rejoin(self, now: float) -> list[MemberAction]:
        return self._decided(self.participant.rejoin(now))

    def _decided(self, actions: list[Action]) -> list[MemberAction]:
        self._act(actions)
        return []

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Tell() | FencedOff() | JobOver():
                    self._membership(action)
                case Adopt():
                    self._adopt(action.view)
                case Deliver():
                    self._exchange.deliver(action.frame)
                case Say():
                    self._say(action.to, action.body)
                case Conclude():
                    self._exchange.round(action.step).concluded()
                    self._act(self.participant.summed(action.step, time.monotonic()))
                    crash.reach("gather", action.step)
                case Completed():
                    self._complete(action.step)
                case Stable():
                    self._become_stable(action.step)
                case Found():
                    self.applied = action.step
                case Pin() if self.core.replica in action.servers:
                    self._pins.append(action)
                case Feed():
                    self._feed((action.step,), self.view.learners, self._member_ids(), Way.STABLE)
                case FeedAgain():
                    self._feed_again(action)
                case HandOver():
                    new = [member for member in self.view.members if member.replica in action.to]
                    self._feed((action.step,), new, action.servers, Way.HANDED)
                case AllDone():
                    self._all_done = True
                case LeftAlone():
                    self._left_alone = action.others
                case Lost():
                    self._fenced = action.reason
                case _:
                    pass
        self.changed.notify_all()

    def _membership(self, action: Tell | FencedOff | JobOver) -> None:
        match action:
            case Tell():
                if self._link is not None:
                    self._link.perform([action])
            case FencedOff():
                self._fenced = action.reason
                self._post.adopt(View())
                if self._mesh is not None:
                    self._mesh.peers(())
            case JobOver():
                self._outcome = action.outcome
                if self._link is not None:
                    self._link.perform([action])

    def _adopt(self, view: View) -> None:
        was_member = self._exchange.in_view
        self._exchange.adopt(view)
        self._inbox.keep_stable()
        self._post.adopt(view)
        self._broken.clear()
        self._fed_at = time.monotonic()
        self._assigned = self._contributed = None
        if self._mesh is not None:
            crash.life = self.core.incarnation
            self._mesh.live(self.core.incarnation)
            self._mesh.peers([*view.members, *view.learners])
        if self._link is not None:
            self._link.perform([Adopt(view)])
        if self.core.is_member and not was_member and self._link is not None:
            unnice()

    def _complete(self, step: int) -> None:
        record = self._offered.pop(step, None) or self._exchange.record(step)
        self._records[step] = record
        oldest = min(self.participant.steps.oldest, self.applied + 1)
        for old in [kept for kept in self._records if kept < oldest]:
            del self._records[old]
        if self.progress is not None:
            self.progress.advance(step)

    def _become_stable(self, step: int) -> None:
        record = self._records.get(step)
        if record is not None and self.keep_stable:
            self.stable.append(record)

    def _member_ids(self) -> tuple[int, ...]:
        return tuple(member.replica for member in self.view.members)

    def _feed(self, steps: Iterable[int], to: Iterable[Member], servers: tuple[int, ...], way: Way) -> None:
        """Send the own shares of records."""
        if self.core.replica not in servers:
            return
        place = servers.index(self.core.replica)
        for record in (self._records[step] for step in steps if step in self._records):
            for peer in to:
                header = self._header(Kind.NOTE, record.step)
                self._post.record(peer, record, header, way, place, len(servers))

    def _feed_again(self, again: FeedAgain) -> None:
        steps = [step for step in range(again.first, again.last + 1) if step in self._records]
        first = min(steps, default=again.last + 1)
        for learner in self.view.learners:
            self._post.send(learner, self._header(Kind.FEED_FROM, first))
        self._feed(steps, self.view.learners, self._member_ids(), Way.STABLE)

    def _header(self, kind: Kind, step: int = 0, view: int | None = None) -> Header:
        number = self.view.number if view is None else view
        return Header(kind, incarnation=self.core.incarnation, view=number, step=step)

    def _say(self, to: tuple[int, ...], body: Body) -> None:
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
                for peer in peers:
                    record = self._records[body.step]
                    self._post.record(peer, record, self._header(Kind.NOTE, body.step), Way.WHOLE, 0, 1)
            case Handed():
                raise AssertionError("is said by the record itself")

    # The mesh's sink: called in its thread.

    def destination(self, sender: Member, header: Header) -> memoryview | None:
        with self.changed:
            match header.kind:
                case Kind.SCATTER | Kind.RESULT:
                    return self._exchange.destination(sender, header)
                case Kind.SHARE:
                    return self._inbox.slot(header) if self._takes_record(header) else None
                case Kind.PIECE:
                    return self._arrival.slot(header)
            return self._post.room(header)

    def arrived(self, sender: Member, header: Header, payload: memoryview | None) -> None:
        with self.changed:
            try:
                self._arrived(sender, header, payload)
            except AssertionError as error:
                self._failure = error  # A broken promise of our own; the training thread has to know.
                raise

    def connected(self, peer: Member) -> None:
        with self.changed:
            self._post.connected(peer)

    def lost(self, peer: Member, why: str) -> None:
        with self.changed:
            if self.view.member(peer.replica) != peer or self._all_done or self.closed:
                return
            log.debug("replica %d lost replica %d: %s", self.core.replica, peer.replica, why)
            if not self._broken:
                self._broken_since = time.monotonic()
            self._broken.add(peer.replica)
            if self.core.is_member and self._link is not None:
                # Frames may be lost for good, so for as long as this view lasts the peer counts as cut off.
                self._link.complain(frozenset(self._broken))
                self._act(self.participant.peers_lost(frozenset(self._broken), time.monotonic()))

    def _takes_record(self, header: Header) -> bool:
        steps = self.participant.steps
        fits = header.flags == Way.STABLE or header.view == self.view.number
        return fits and header.step > steps.newest and header.step not in self._offered

    def _arrived(self, sender: Member, header: Header, payload: memoryview | None) -> None:
        now = time.monotonic()
        match header.kind:
            case Kind.SCATTER | Kind.RESULT:
                if payload is not None:
                    self._frame(sender, header, None, payload)
            case Kind.PART:
                note = decode(PART, _bytes(payload))
                self._frame(sender, header, Part(header.step, note.pending, note.closing), note)
            case Kind.SUM:
                self._frame(sender, header, Sum(header.step))
            case Kind.HOLDING:
                holding = Holding(header.step - 1, running=header.flags == 1)
                self._frame(sender, header, holding, moves=not holding.running)
            case Kind.WANT:
                self._frame(sender, header, Want(header.step))
            case Kind.GONE:
                self._frame(sender, header, Gone(header.step))
            case Kind.SWITCHED:
                self._act(self.participant.switched(decode(VIEW, _bytes(payload)), now))
            case Kind.NOTE | Kind.SHARE:
                if self._takes_record(header) and payload is not None:
                    self._record_came(sender, header, payload)
            case Kind.FEED_FROM:
                steps = self.participant.steps
                if steps.mode is Mode.LEARNING and 0 <= steps.newest < header.step - 1:
                    self._fenced = f"records are kept from step {header.step} on, and it has {steps.newest}"
                    self.changed.notify_all()
            case Kind.IMAGE:
                self._fed_at = now
                if self.participant.steps.newest < 0:
                    self._arrival.described(header, _bytes(payload))
                    if self._arrival.complete:
                        self._act(self.participant.loaded(self._arrival.step, now))
            case Kind.PIECE:
                self._fed_at = now
                if payload is not None and self._arrival.arrived(header):
                    self._act(self.participant.loaded(self._arrival.step, now))
            case Kind.LOADED:
                self._act(self.participant.learner_loaded(sender, now))

    def _record_came(self, sender: Member, header: Header, payload: memoryview) -> None:
        note = self._post.note(payload) if header.kind == Kind.NOTE else None
        record = self._inbox.arrived(header, note)
        if record is None:
            return
        self._offered[record.step] = record
        match header.flags:
            case Way.STABLE:
                self._act(self.participant.offered(record.step, time.monotonic()))
            case Way.WHOLE:
                self._frame(sender, header, Whole(record.step))
            case Way.HANDED:
                self._frame(sender, header, Handed(record.step))

    def _frame(
        self, sender: Member, header: Header, body: Body | None, payload: Any = None, *, moves: bool = False
    ) -> None:
        frame = Frame(
            sender=sender.replica,
            incarnation=header.incarnation,
            view=header.view,
            body=body,
            payload=(header, payload),
            moves=moves,
        )
        self._act(self.participant.frame(frame, time.monotonic()))


def _bytes(payload: memoryview | None) -> bytes:
    return b"" if payload is None else bytes(payload)
