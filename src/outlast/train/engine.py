"""The engine of a replica: its two protocol cores, the mesh and the link, and the training thread.

    coordinator ──link thread──▶ ┐                        ┌──▶ mesh: frames to peers
                                 ├─▶ Participant ─actions─┼──▶ link: words to the coordinator
    peers ───────mesh thread──▶ ─┘   (one lock)           └──▶ wakes the training thread
                 (or the training thread itself, while it waits)

The cores decide, whichever thread brings the event; one lock makes events follow each other. The training
thread asks for work (`work`): a shard to compute, or the record of the step, and waits when there is neither.
Everything that touches the model is done in it: it computes, applies records, copies snapshots for others
and loads those that it is given. Nobody ever waits for the coordinator.

A life that is over (it was stopped for too long and evicted, or cannot catch up) is noticed here, too: the
engine begins a new one, is given the state of the others, and the training loop goes on from there as if
nothing had happened.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from outlast import crashpoints as crash
from outlast.errors import (
    ConfigError,
    DivergedError,
    JobFailed,
    LoopError,
    OutlastError,
    SaveGivenUp,
)
from outlast.kinship import unnice
from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind
from outlast.mesh.transport import Mesh
from outlast.protocol.member import MemberCore
from outlast.protocol.messages import Phase, Status
from outlast.protocol.saving import Save
from outlast.protocol.step_words import BLANK, Digest, GoBack, Mode, Pin, Trial
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import Intent, Member, View
from outlast.state.training import TrainingState
from outlast.train.comparing import CHECKSUM_MASK, Comparing, checksum
from outlast.train.conduct import Conduct
from outlast.train.exchange import Exchange
from outlast.train.gathering import Gathering, ReadRequest
from outlast.train.giving import Giving
from outlast.train.gradients import Gradients
from outlast.train.link import Link
from outlast.train.patience import Patience
from outlast.train.post import Post
from outlast.train.reception import Reception
from outlast.train.records import Record
from outlast.train.restoring import Beginning
from outlast.train.saving import Saving
from outlast.train.snapshots import Arrival
from outlast.train.sums import NodeSum
from outlast.train.supply import Supply
from outlast.wire.progress import Progress

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5
"""How often a waiting training thread looks at the clock; whatever happens wakes it at once."""


class Engine:
    """What the training thread uses."""

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
        saving: Saving | None = None,
        comparing: Comparing | None = None,
        shadow: bool = False,
    ) -> None:
        post = Post(mesh)
        self._supply = Supply(exchange.vectors)
        self._giving = Giving(core.replica, state, gradients, post, changed)
        self.conduct = Conduct(
            core=core,
            exchange=exchange,
            supply=self._supply,
            giving=self._giving,
            post=post,
            timing=timing,
            changed=changed,
            link=link,
            mesh=mesh,
            progress=progress,
            saver=saving,
            comparing=comparing,
        )
        self._comparing = comparing
        self._saving = saving
        self._shadow = shadow
        """Whether this process only ever follows."""
        self.progress = progress
        self._core = core
        self._changed = changed
        self._state = state
        self._gradients = gradients
        self._exchange = exchange
        self._timing = timing
        self._link = link
        self._mesh = mesh
        self._post = post
        # The attempts, (view, step, trial), for which these have been done.
        self._assigned: tuple[int, int, int] | None = None
        self._contributed: tuple[int, int, int] | None = None
        self._ending_in: tuple[int, int] | None = None
        self._void = False
        """Whether the state was found to be wrong, and there was none to go back to."""
        self.on_beginning: Callable[[Beginning], None] = lambda _: None
        """Makes what a lineage begins with the own state, before anybody else is given it."""
        self._ready = False
        self._loaded = -1
        """The step whose state this life was given."""

    def reception(self) -> Reception:
        """What the mesh is to call."""
        return Reception(
            self.conduct.participant,
            self._exchange,
            self._supply,
            self._changed,
            act=self.conduct.act,
            broken=self.conduct.break_down,
            wake=self.conduct.wake,
            connected=self._post.connected,
            lost=self.conduct.lost,
        )

    @property
    def view(self) -> View:
        """The view in force."""
        return self.conduct.view

    @property
    def applied(self) -> int:
        """The step whose result the model holds; -1 while it holds nothing that counts."""
        return self.conduct.applied

    @property
    def _steps(self) -> StepCore:
        return self.conduct.participant.steps

    def apply(self, step: int) -> None:
        """The script has applied the record of this step."""
        self.conduct.applied = step

    # The training thread.

    def start(self) -> None:
        """Take part; returns once the model holds the state that the job begins or goes on with."""
        if self._link is None:
            self._start_alone()
        else:
            assert self._mesh is not None
            self._link.decided_by(self.conduct)
            self._mesh.open()
            self._link.open()
        self._get_state()
        if self._link is not None:
            # From here on others come to wait for this process.
            unnice()
        # Others may wait for this state, and the script may do something else before its first step.
        while True:
            with self._changed:
                due = self._giving.due(self.applied)
            if due is None:
                return
            self._giving.serve(*due, at_once=True)

    def work(self) -> int | Record:
        """A shard to compute for the step after the applied one, or the record of that step."""
        while True:
            with self._changed:
                todo = self._next(self._step_work)
            if isinstance(todo, int | Record):
                return todo
            self._do(todo)

    def _do(self, todo: Save | Digest | GoBack | tuple[Pin, Header] | None) -> None:
        """What is not the script's."""
        match todo:
            case Save():
                self._copy(todo)
            case Digest():
                assert self._comparing is not None
                self._comparing.copy(todo.step, self._gradients.step_buffers())
            case GoBack():
                self._go_back(todo)
            case None:
                self._get_state()
            case _:
                self._giving.serve(*todo, at_once=self.view.learner(todo[0].to.replica) is None)

    def bucket(self, node: NodeSum, bucket: int) -> None:
        """A bucket of an own sum is there, in the middle of backward: send it ahead of the rest."""
        step = self.applied + 1
        crash.reach("backward", step)
        with self._changed:
            # It may have been evicted, or another view adopted, while it computed.
            first = (self.view.number, step, Trial.FIRST)
            attempt = self._assigned == first == self._attempt and self._exchange.in_view
            if attempt and self._steps.mode is Mode.RUNNING:
                self._exchange.bucket(step, node, bucket)

    @property
    def _attempt(self) -> tuple[int, int, int]:
        return self.view.number, self._steps.step, self._steps.trial

    @property
    def own_shards(self) -> tuple[int, ...]:
        """The shards that are this replica's in the view in force."""
        return self._exchange.plan.shards if self._exchange.in_view else ()

    @property
    def verified(self) -> int:
        """The newest step whose state was the same on all replicas; -1 if there is none."""
        return self._comparing.verified if self._comparing is not None else -1

    def end_loop(self) -> bool:
        """The loop of steps ends here: have the state compared, before the script uses it. False if there are
        steps to do again."""
        last = self.applied
        while self._comparing is not None and self.applied == last:
            with self._changed:
                todo = self._next(self._ending_work)
            if isinstance(todo, int | Record):
                return True
            self._do(todo)
            if isinstance(todo, Save | Digest):
                # There is no next step beside which it could be copied.
                self.settle()
        return self.applied >= last

    def leave_loop(self) -> None:
        """The training loop is over here: stay until everybody holds the last record."""
        last = self.applied
        if not self.end_loop():
            raise LoopError(
                f"replica {self._core.replica} left the loop of steps after step {last}, and its state is "
                "not that of the other replicas, so the result may be wrong. Do not break out of the loop: "
                "job.steps() does what has to be done again"
            )
        while True:
            with self._changed:
                self._steps.closing = True
                todo = self._next(self._closing_work)
            if isinstance(todo, Save | Digest):
                self._do(todo)
                self.settle()
            elif isinstance(todo, tuple):
                self._giving.serve(*todo, at_once=True)
            elif todo is None or isinstance(todo, GoBack):
                raise LoopError(
                    f"replica {self._core.replica} left the loop of steps after step {self.applied}, and "
                    f"its place in the job was lost then ({self.conduct.over}): it may not be complete"
                )
            else:
                return

    def fail(self, reason: str, shard: int) -> None:
        """This process ends by an error of its own; tell everybody before its slow exit."""
        if self._link is not None:
            self._link.fail(reason, self.applied + 1, shard)

    @property
    def ending(self) -> bool:
        """Whether this process ends because the job does, or because it was asked to leave."""
        return self.conduct.outcome is not None or self.conduct.leaving

    @property
    def leave_requested(self) -> bool:
        return self._link is not None and self._link.leave_requested

    def leave(self) -> None:
        """Ask to be let go; the view that does so ends this process."""
        if self._link is not None and not self.conduct.leaving:
            self.conduct.leaving = True
            self._link.leave()

    def may_leave(self) -> bool:
        """Whether the state that this replica leaves behind is saved, or cannot be."""
        with self._changed:
            return self._saving is None or self._saving.hurry(self.applied)

    def close(self) -> None:
        self.conduct.closed = True
        if self._saving is not None:
            # When one that is alone ends, the job does: the next may begin at once, in this process perhaps.
            self._saving.close(clean=self.conduct.all_done or self._link is None)
        if self._mesh is not None:
            self._mesh.close()
        if self._link is not None:
            self._link.close()

    def _start_alone(self) -> None:
        me = Member(self._core.replica, 1)
        shards = (me.replica,) * self._core.shards
        view = View(number=1, lineage=1, members=(me,), shards=shards, slices=(me.replica,), planned_since=1)
        with self._changed:
            self._core.incarnation = 1
            self.conduct.act(self.conduct.participant.alone(view, time.monotonic()))

    # What the training thread does next, under the lock.

    def settle(self) -> None:
        """The script is about to change the state: let what is being copied of it be complete."""
        self._giving.settle()
        if self._saving is not None:
            self._saving.settle()
        if self._comparing is not None:
            self._comparing.settle()

    def _copy(self, save: Save) -> None:
        assert self._saving is not None
        self._saving.copy(save, self._gradients.step_buffers())

    def _next(
        self, look: Callable[[], int | Record | None]
    ) -> int | Record | tuple[Pin, Header] | Save | Digest | GoBack | None:
        """A shard or a record, by `look`; a snapshot to give, a share to save, a state to compare or to go
        back to; or None: get the state anew. For one who closes: a number means that everybody is done."""
        waiting = False
        while True:
            self._check()
            if self.conduct.over is not None:
                return None
            if self.conduct.back is not None:
                return self.conduct.back
            if self.applied < 0:
                return None
            due = self._giving.due(self.applied)
            if due is not None:
                return due
            digest = self._comparing.due(self.applied) if self._comparing is not None else None
            if digest is not None:
                return digest
            save = self._save_due()
            if save is not None:
                return save
            found = look()
            if found is not None:
                self._enter(Phase.COMPUTING)
                return found
            if not waiting:
                # Looking for work may have brought about some, such as the save of the last state.
                self._enter(Phase.WAITING)
                waiting = True
                continue
            if self._giving.idle:
                self._wait()
            else:
                with self._unlocked():
                    self._giving.settle()

    def _save_due(self) -> Save | None:
        if self._saving is None:
            return None
        compares = self._comparing is not None and len(self.view.members) > 1
        chosen = self._comparing.chosen == self.applied if self._comparing is not None and compares else None
        return self._saving.due(self.applied, time.monotonic(), chosen=chosen)

    def _wait(self) -> None:
        """Until something happens. What it waits for comes over the mesh, so it serves that meanwhile."""
        if self._mesh is None:
            self._changed.wait(LOOK_AGAIN_S)
            return
        self._mesh.announce()
        self._changed.release()
        try:
            self._mesh.attend(LOOK_AGAIN_S)
        finally:
            self._changed.acquire()

    def _step_work(self) -> int | Record | None:
        step = self.applied + 1
        record = self.conduct.records.get(step)
        if record is not None:
            return record
        steps = self._steps
        if steps.mode is Mode.RUNNING and steps.step == step and self._has_a_part(step):
            if self._assigned != self._attempt:
                self._assign(step)
            missing = self._gradients.missing()
            if missing:
                return missing[0]
            if self._contributed != self._attempt:
                self._contribute(step)
                return self.conduct.records.get(step)
        elif steps.mode is Mode.LEARNING:
            self._learn()
        return None

    def _has_a_part(self, step: int) -> bool:
        """After the first trial, only who is called as a witness has something to do."""
        trial = self._steps.trial
        return trial == Trial.FIRST or (trial == Trial.HEARING and bool(self._exchange.court(step).asked))

    def _assign(self, step: int) -> None:
        self._assigned = self._attempt
        trial = self._steps.trial
        if trial == Trial.HEARING:
            self._gradients.ask(self._exchange.court(step).asked)
        else:
            self._gradients.assign(self._exchange.plan.shards)
        if self.progress is not None:
            self.progress.adopt(self.view.number)

    def _contribute(self, step: int) -> None:
        self._contributed = self._attempt
        trial = self._steps.trial
        if trial == Trial.FIRST:
            self._contribute_first(step)
        else:
            self._exchange.testify(step, self._gradients.opinions())
            crash.reach("testify", step)
        # It may have been said for this thread that it computes; from here on it does not.
        self._enter(Phase.WAITING)
        self.conduct.act(self.conduct.participant.contribute(time.monotonic(), trial))

    def _contribute_first(self, step: int) -> None:
        wish = self._saving.wish(step) if self._saving is not None else 0
        if self._comparing is not None:
            chief = self.view.chief == self._core.replica
            self._steps.due = self._comparing.wish(step, chief=chief) or wish == 1
            self._steps.checksum = self._checksum() if len(self.view.members) == 2 else 0
        check = self._steps.check()
        self._exchange.contribute(step, self._gradients.nodes(), self._steps.pending, wish, check)
        crash.reach("scatter", step)

    def _checksum(self) -> int:
        """Of what this replica contributes to the step; see `protocol/recomputing.py`."""
        return sum(checksum(node.flat) for node in self._gradients.nodes()) & CHECKSUM_MASK

    def _closing_work(self) -> int | None:
        if self.conduct.all_done:
            # The last state is saved before anybody leaves.
            return 1 if self._saving is None or self._saving.idle else None
        if self.conduct.left_alone is not None:
            others = " and ".join(str(replica) for replica in self.conduct.left_alone)
            raise LoopError(
                f"replica {self._core.replica} left the loop of steps after step {self.applied}, while "
                f"replica {others} went on. All must leave it at the same step: give job.steps() the run's "
                "total and do not break out of the loop on one replica only"
            )
        steps = self._steps
        if steps.mode is Mode.LEARNING and steps.newest <= self.applied:
            # It has applied everything that it was given; the others end the job.
            return 1
        if steps.mode is Mode.RUNNING and self._contributed != self._attempt:
            self._contributed = self._attempt
            if self.progress is not None:
                self.progress.adopt(self.view.number)
            self._exchange.contribute_nothing(steps.step, steps.check())
            self.conduct.act(self.conduct.participant.contribute(time.monotonic()))
        return None

    def _ending_work(self) -> int | None:
        """1 when the last state was compared, or cannot be."""
        steps = self._steps
        if steps.mode is Mode.LEARNING and steps.newest <= self.applied:
            return 1
        attempt = (self.view.number, steps.step)
        if steps.mode is Mode.RUNNING and steps.newest == self.applied and self._ending_in != attempt:
            self._ending_in, self.conduct.ended = attempt, -1
            if self.progress is not None:
                self.progress.adopt(self.view.number)
                self.progress.enter(Phase.WAITING)
            self.conduct.act(self.conduct.participant.end(time.monotonic()))
        return 1 if self.conduct.ended == self.applied else None

    def _go_back(self, back: GoBack) -> None:
        """In the training thread, without the lock: the state is void."""
        log.info("replica %d goes back to step %d", self._core.replica, back.fork.step)
        self._gradients.abandon_shard()
        self.settle()
        if back.step != BLANK:
            assert self._comparing is not None
            self._comparing.load(back.step)
            self._gradients.start_step()
        with self._changed:
            self._void = back.step == BLANK
            self._assigned = self._contributed = self._ending_in = None
            if self.conduct.back is not back:
                return
            self.conduct.back = None
            self.conduct.applied = back.step
            if self._void:
                self.conduct.given()
        if self._void:
            self._get_state()

    def _learn(self) -> None:
        """A learner with nothing to apply has caught up; one that is cut off from a member starts over."""
        if self._link is None:
            return
        # Others will wait for it from the first step after its promotion on, so it shows first that it keeps
        # up: by a record that it has applied, unless there are none because the members pause.
        if not self._ready and not self._shadow and (self.applied > self._loaded or self.view.paused):
            self._ready = True
            self._link.ready()
        if self.conduct.broken and time.monotonic() - self.conduct.adopted_at > self._timing.silent_at_most_s:
            self.conduct.over = "a connection over which it was given records broke"

    def _check(self) -> None:
        if self.conduct.failure is not None:
            raise self.conduct.failure
        if self.conduct.outcome is not None:
            # The agent is about to end this process; there is nothing left to do in it.
            raise SystemExit(0 if self.conduct.outcome.finished else JobFailed.exit_code)

    def _enter(self, phase: Phase) -> None:
        if self.progress is not None:
            self.progress.enter(phase)

    # The state that this replica is given.

    def _get_state(self) -> None:
        """Wait for the state, beginning a new life if the old one is over."""
        with self._changed:
            self._enter(Phase.STARTING)
            while True:
                self._check()
                if self.conduct.over is not None:
                    self._begin_anew()
                if self.applied >= 0:
                    return
                if self.conduct.founding:
                    self._found()
                    continue
                if self._supply.arrival.complete:
                    break
                if self._supply.asked is not None:
                    self._help_to_read(*self._supply.asked)
                    continue
                if self._hungry():
                    self.conduct.over = "the state that it waits for does not come"
                else:
                    self._changed.wait(LOOK_AGAIN_S)
            arrival = self._supply.arrival
        self._load(arrival)

    def _found(self) -> None:
        """It is on this replica to say what the lineage begins with. Under the lock, but not throughout."""
        self.conduct.founding = False
        step = 0
        if self._saving is None:
            self._refuse_void()
        else:
            lineage, view = self.view.lineage, 0
            gathering = self._supply.gathering = Gathering(
                self.view, self._core.replica, self._changed, self._post.send, self.conduct.header
            )
            # Reading takes as long as it takes, and the storage has deadlines of its own.
            self._enter(Phase.ASIDE)
            try:
                with self._unlocked(), Patience(self.conduct, self._changed):
                    found = self._saving.begin(
                        lineage, self._intents(), gathering, lambda: self._may_found(lineage)
                    )
                    step, view = self._restore(found), found.claim.view
            except SaveGivenUp:
                log.info("replica %d is not the one to begin with any more", self._core.replica)
                # Unless the coordinator was only quicker to tell of a view than this replica to adopt it.
                self._changed.wait(LOOK_AGAIN_S)
                self.conduct.founding = self._steps.mode is Mode.FOUNDING
                return
            finally:
                self._supply.gathering = None
                self._enter(Phase.STARTING)
            if view != self.view.number:
                # In a view between the two another one may have made a claim of its own. Then this replica's
                # is superseded, and there would be no checkpoints; so it makes another.
                self.conduct.founding = self._steps.mode is Mode.FOUNDING
                return
        actions = self.conduct.participant.founded(step, time.monotonic())
        if actions:
            # A change of views may have asked for the same thing again meanwhile, and a state that members of
            # the lineage before had sent may have come.
            self.conduct.founding = False
            self._supply.arrival = Arrival()
            self.conduct.applied = step
            if self._saving is not None:
                self._saving.stands(step)
            self.conduct.act(actions)

    def _help_to_read(self, view: int, founder: int, request: ReadRequest) -> None:
        """Read some of a checkpoint for who puts it together. Under the lock, but not throughout."""
        self._supply.asked = None
        member = self.view.member(founder)
        if self._saving is None or member is None or view != self.view.number:
            return

        def send(index: int, memory: memoryview) -> None:
            with self._changed:
                if self.view.number == view:
                    self._post.send(member, self.conduct.header(Kind.CHUNK)._replace(lo=index), memory)

        with self._unlocked():
            try:
                self._saving.read_for(request, send, lambda: self.view.number == view)
            except OutlastError as error:
                log.warning("replica %d cannot help to read: %s", self._core.replica, error)

    def _intents(self) -> tuple[Intent, ...]:
        """What the coordinator knows of checkpoints; there is no beginning without its word."""
        status = self._ask()
        return status.intents if status is not None else ()

    def _may_found(self, lineage: int) -> int | None:
        """In which view it is on this replica to begin; None if it is on somebody else by now. It may have
        been stopped while it looked for a checkpoint, and evicted; so the coordinator is asked, who knows.
        If it is stopped after that, its claim is known by the view to come too late."""
        status = self._ask()
        with self._changed:
            if self._steps.mode is not Mode.FOUNDING or self.view.lineage != lineage:
                return None
            here = self.view.number
            if status is None:
                return here
            mine = status.view.holds(self._core.replica, self._core.incarnation)
            return here if mine and status.view.lineage == lineage else None

    def _ask(self) -> Status | None:
        """How the job stands, as the coordinator says now; None for one who has none."""
        if self._link is None:
            return None
        with self._changed:
            self.conduct.forget_status()
            while self.conduct.status is None:
                self._check()
                self.conduct.ask()
                self._changed.wait(LOOK_AGAIN_S)
            return self.conduct.status

    def _restore(self, beginning: Beginning) -> int:
        """Become the state of the checkpoint, if there is one; the step after which it was made."""
        crash.reach("restoring", beginning.manifest.step if beginning.manifest is not None else 0)
        if beginning.manifest is None:
            self._refuse_void()
        self._void = False
        self._gradients.abandon_shard()
        self.on_beginning(beginning)
        self._gradients.start_step()
        return beginning.manifest.step if beginning.manifest is not None else 0

    def _refuse_void(self) -> None:
        """What this process has is not what a job begins with; the one that is started in its place has."""
        if self._void:
            raise DivergedError(
                f"replica {self._core.replica}: the states of replicas differ, and nobody is left who has "
                "one that was verified. The job begins again, as if all replicas had died"
            )

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        self._changed.release()
        try:
            yield
        finally:
            self._changed.acquire()

    def _hungry(self) -> bool:
        """Whether a snapshot is overdue: the view has members, and nothing of it has come for long."""
        served = self._steps.mode in (Mode.LEARNING, Mode.LOADING) and bool(self.view.members)
        # A member gives its share at the end of its step, which may be a long one; so be patient at first.
        begun = self._supply.arrival.view >= 0
        patience_s = self._timing.silent_at_most_s if begun else self._timing.cold_within_s
        return served and self._supply.silent_s(time.monotonic()) > patience_s

    def _begin_anew(self) -> None:
        assert self._link is not None
        if self.conduct.leaving:
            self._enter(Phase.DONE)
            raise SystemExit(0)
        log.info("replica %d begins a new life: %s", self._core.replica, self.conduct.over)
        self.conduct.over = self.conduct.back = None
        if self._comparing is not None:
            self._comparing.begin_anew()
        self.conduct.founding = self._ready = False
        self.conduct.applied = -1
        self.conduct.records.clear()
        self._giving.clear()
        self._supply.clear()
        self._link.rejoin()

    def _load(self, arrival: Arrival) -> None:
        crash.reach("joining", arrival.step)
        log.info("the state of %d bytes came in %.3f s", arrival.image.total_bytes, self._supply.took_s())
        self._gradients.abandon_shard()
        self.settle()
        try:
            self._state.load(arrival.image, arrival.tensors())
        except ConfigError as error:
            raise ConfigError(f"replica {self._core.replica} differs from its peers: {error}") from error
        self._gradients.start_step()
        with self._changed:
            if arrival is not self._supply.arrival:
                return
            self.conduct.applied = self._loaded = arrival.step
            self._void = False
            if self._saving is not None:
                self._saving.was_given(arrival.step)
            self._supply.arrival = Arrival()
            for member in self.view.members:
                if member.replica != self._core.replica:
                    self._post.send(member, self.conduct.header(Kind.LOADED))
