"""The engine of a replica: its two protocol cores, the mesh and the link, and the training thread.

    coordinator ──link thread──▶ ┐                        ┌──▶ mesh: frames to peers
                                 ├─▶ Participant ─actions─┼──▶ link: words to the coordinator
    peers ───────mesh thread──▶ ─┘   (one lock)           └──▶ wakes the training thread
                 (or the training thread itself, while it waits)

The cores decide, whichever thread brings the event; one lock makes events follow each other. The training
thread asks for work (`work`): a shard to compute, or the record of the step, and waits when there is neither.
Everything that touches the model is done in it: it computes, applies records, copies snapshots for others
and loads those that it is given. Nobody ever waits for the coordinator.

What there is to do for a step is in `stepping.py`, how the replica comes by its state in `taking.py`: when a
life is over (it was stopped for too long and evicted, or cannot catch up), it begins a new one and is given
the state of the others, and the training loop goes on from there as if nothing had happened. What the cores
decide is carried out in `conduct.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from outlast import crashpoints as crash
from outlast.errors import LoopError
from outlast.kinship import unnice
from outlast.mesh.frames import Header
from outlast.mesh.transport import Mesh
from outlast.protocol.member import MemberCore
from outlast.protocol.messages import Phase
from outlast.protocol.saving import Save
from outlast.protocol.step_words import Digest, GoBack, Mode, Pin
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, View
from outlast.state.training import TrainingState
from outlast.train.comparing import Comparing
from outlast.train.conduct import Conduct
from outlast.train.exchange import Exchange
from outlast.train.giving import Giving
from outlast.train.gradients import Gradients
from outlast.train.link import Link
from outlast.train.post import Post
from outlast.train.reception import Reception
from outlast.train.records import Record
from outlast.train.restoring import Beginning
from outlast.train.saving import Saving
from outlast.train.stepping import Stepping
from outlast.train.sums import NodeSum
from outlast.train.supply import Supply
from outlast.train.taking import LOOK_AGAIN_S, Taking
from outlast.train.unlocked import unlocked
from outlast.wire.progress import Progress


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
        self._gradients = gradients
        self._exchange = exchange
        self._link = link
        self._mesh = mesh
        self._post = post
        self._ending_in: tuple[int, int] | None = None
        """The attempt, (view, step), in which it was said that the loop ends."""
        self._stepping = Stepping(
            conduct=self.conduct,
            exchange=exchange,
            gradients=gradients,
            saving=saving,
            comparing=comparing,
        )
        self._taking = Taking(
            conduct=self.conduct,
            supply=self._supply,
            giving=self._giving,
            post=post,
            state=state,
            gradients=gradients,
            timing=timing,
            changed=changed,
            link=link,
            saving=saving,
            comparing=comparing,
            settle=self.settle,
        )

    def on_beginning(self, begin: Callable[[Beginning], None]) -> None:
        """How what a lineage begins with becomes the own state, before anybody else is given it."""
        self._taking.on_beginning = begin

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
        self._taking.get()
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
                with self._changed:
                    self._stepping.forget()
                    self._ending_in = None
                self._taking.go_back(todo)
            case None:
                self._taking.get()
            case _:
                self._giving.serve(*todo, at_once=self.view.learner(todo[0].to.replica) is None)

    def bucket(self, node: NodeSum, bucket: int) -> None:
        """A bucket of an own sum is there, in the middle of backward: send it ahead of the rest."""
        step = self.applied + 1
        crash.reach("backward", step)
        with self._changed:
            self._stepping.bucket(step, node, bucket)

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
        entered: Phase | None = None
        while True:
            self.conduct.check()
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
                self.conduct.enter(Phase.COMPUTING)
                return found
            # What is left to do in the end is nobody's wait: saves. That it is the end may be heard in here.
            phase = Phase.ASIDE if self.conduct.all_done else Phase.WAITING
            if phase is not entered:
                # Looking for work may have brought about some, such as the save of the last state.
                self.conduct.enter(phase)
                entered = phase
                continue
            if self._giving.idle:
                self._wait()
            else:
                with unlocked(self._changed):
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
        if self._steps.mode is Mode.LEARNING:
            self._taking.learn(shadow=self._shadow)
        return self._stepping.work(step)

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
        self._stepping.contribute_nothing()
        return None

    def _ending_work(self) -> int | None:
        """1 when the last state was compared, or cannot be."""
        steps = self._steps
        if steps.mode is Mode.LEARNING and steps.newest <= self.applied:
            return 1
        attempt = (self.view.number, steps.step)
        if steps.mode is Mode.RUNNING and steps.newest == self.applied and self._ending_in != attempt:
            self._ending_in, self.conduct.ended = attempt, -1
            self.conduct.take_part()
            self.conduct.enter(Phase.WAITING)
            self.conduct.act(self.conduct.participant.end(time.monotonic()))
        return 1 if self.conduct.ended == self.applied else None
