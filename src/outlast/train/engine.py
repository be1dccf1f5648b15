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
from outlast.parting import before_exit
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
from outlast.train.final import FinalState
from outlast.train.giving import Giving
from outlast.train.gradients import Gradients
from outlast.train.keepsakes import Keep
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
        self._state = state
        self._changed = changed
        self._gradients = gradients
        self._exchange = exchange
        self._link = link
        self._mesh = mesh
        self._post = post
        self._ending_in: tuple[int, int] | None = None
        """The attempt, (view, step), in which it was said that the loop ends."""
        self.resting = False
        """Whether the training thread is at the end of its loop of steps, or behind it."""
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

    def on_beginning(self, begin: Callable[[Beginning], None], found: Callable[[], None]) -> None:
        """How what a lineage begins with becomes the own state, before anybody else is given it; `found` is
        called first."""
        self._taking.on_beginning, self._taking.on_founding = begin, found

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
            lines=self._post.lines,
            settle=self.conduct.settle,
            connected=self.conduct.connected,
            lost=self.conduct.lost,
            heard_of_gap=self.conduct.heard_of_gap,
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
        if self._saving is not None:
            self._saving.keepsakes.ran(step)

    def save(self, name: str, *, last: bool) -> None:
        """The script wants the state after the present step saved under this name. `last`: it has left the
        loop of steps, and may do anything to the state when this returns."""
        assert self._saving is not None
        with self._changed:
            step = self.applied if last else self.applied + 1
            member = self._core.is_member or self._link is None
            self._saving.keepsakes.ask(name, step, last=last, member=member)
            due = self._saving.keepsakes.due(step) if last else None
        if due is not None:
            self._do(due)
            self.settle()

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
        if self.resting:
            self._go_on()
        while True:
            with self._changed:
                todo = self._next(self._step_work)
            if isinstance(todo, int | Record):
                return todo
            self._do(todo)

    def _do(self, todo: Save | Keep | Digest | GoBack | tuple[Pin, Header] | None) -> None:
        """What is not the script's."""
        match todo:
            case Save():
                self._copy(todo)
            case Keep():
                assert self._saving is not None
                self._saving.keepsakes.copy(todo.step, self._gradients.step_buffers())
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
        self._keep()
        while self._comparing is not None and self.applied == last:
            with self._changed:
                todo = self._next(self._ending_work)
            if isinstance(todo, int | Record):
                break
            self._do(todo)
            if isinstance(todo, Save | Keep | Digest):
                # There is no next step beside which it could be copied.
                self.settle()
        if self.applied < last:
            return False
        self._rest()
        return True

    def _keep(self) -> None:
        """Copy the last state for those who come back while this script does something else."""
        if self._link is None or (self._giving.final is not None and self._giving.final.step == self.applied):
            return
        final = FinalState(self.applied, self._state, self._gradients.step_buffers())
        with self._changed:
            self._giving.final, self._giving.final_is_known = final, False

    def _rest(self) -> None:
        """The training thread is beside the steps: views change without it, and nobody takes what the script
        does for a hang, however long it takes."""
        with self._changed:
            self.resting = True
            self.conduct.enter(Phase.ASIDE)
            if self.progress is not None:
                self.progress.end()
            if self._link is not None:
                self.conduct.at_rest = self._say_at_rest
                self._giving.final_is_known = self._steps.mode is not Mode.LEARNING or self._taking.has_final
                self.conduct.act(self.conduct.participant.rest(time.monotonic()))
                self._giving.give_final()

    def _go_on(self) -> None:
        """There is another loop of steps."""
        with self._changed:
            self.resting = self._steps.resting = self._steps.ending = False
            self.conduct.at_rest = self._ending_in = None
            self._giving.forget_final()
            if self.progress is not None:
                self.progress.end(ended=False)

    def _say_at_rest(self) -> None:
        """Under the lock, in a view that began meanwhile: that this replica has left the loop, or that its
        last state is what it was."""
        if self._steps.closing:
            self._stepping.contribute_nothing()
        elif self._comparing is not None:
            self.conduct.act(self.conduct.participant.end(time.monotonic()))

    def end_early(self) -> None:
        """The script has left the loop of steps, wherever it was."""
        last = self.applied
        if not self.end_loop():
            raise LoopError(
                f"replica {self._core.replica} left the loop of steps after step {last}, and its state is "
                "not that of the other replicas, so the result may be wrong. Do not break out of the loop: "
                "job.steps() does what has to be done again"
            )

    def leave_loop(self) -> None:
        """The training loop is over here: stay until everybody holds the last record."""
        last = self.applied
        self.end_early()
        while True:
            with self._changed:
                if not self._steps.closing:
                    self.conduct.act(self.conduct.participant.close(time.monotonic()))
                todo = self._next(self._closing_work)
            if isinstance(todo, Save | Keep | Digest):
                self._do(todo)
                self.settle()
            elif todo is None:
                self._come_back(last)
            elif isinstance(todo, int | Record):
                return
            else:
                raise LoopError(
                    f"replica {self._core.replica} left the loop of steps after step {last}, and the states "
                    "of replicas were found to differ then: the result may be wrong"
                )

    def _come_back(self, last: int) -> None:
        """It was evicted behind its last step, or cut off: a new life is given the same state, and leaves."""
        self._taking.get()
        if self.applied != last:
            raise LoopError(
                f"replica {self._core.replica} left the loop of steps after step {last}, and came back to a "
                f"job that is at step {self.applied}. All must leave it at the same step"
            )
        self._rest()

    def done(self, *, chief: bool) -> None:
        """All steps are done here. The process may end from now on, and only from now on is that no death;
        when the chief's does, the job is done."""
        with self._changed:
            if chief and self.progress is not None:
                self.progress.close_job()
            self.conduct.enter(Phase.DONE)

    def stay_for_others(self, chief: int) -> None:
        """The `with` block is left, and the script goes on. When it has ended, the chief's process exits, and
        the others stay until the job is over: they have the final state, should the chief be killed and
        have to do its work again."""
        if self._link is None:
            self.close()
            return
        if self._saving is not None:
            self._saving.close(clean=self.conduct.all_done)
        with self._changed:
            self.conduct.save_no_more()
        self._saving = None
        before_exit(lambda status: self._part(chief, stays=status == 0 and chief != self._core.replica))

    def _part(self, chief: int, *, stays: bool) -> None:
        if stays:
            assert self._link is not None
            with self._changed:
                self.conduct.act(self.conduct.participant.set_staying(chief, time.monotonic()))
                while self.conduct.outcome is None and not self._link.leave_requested:
                    self._changed.wait(LOOK_AGAIN_S)
        self.close()

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
    ) -> int | Record | tuple[Pin, Header] | Save | Keep | Digest | GoBack | None:
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

    def _save_due(self) -> Save | Keep | None:
        if self._saving is None:
            return None
        keep = self._saving.keepsakes.due(self.applied)
        if keep is not None:
            return keep
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
        if self._learned_all():
            # It has applied everything that it was given; the others end the job.
            return 1
        self._stepping.contribute_nothing()
        return None

    def _learned_all(self) -> bool:
        """Whether this replica only learns, and has the final state; nobody compares it with that of others.
        So where states are compared, it has to be given to it as the final one: else it begins a new life,
        which is, since no more steps are done when that comes into a view."""
        steps = self._steps
        if steps.mode is not Mode.LEARNING or steps.newest > self.applied:
            return False
        if self._comparing is None or self._shadow or self._taking.has_final:
            return True
        self.conduct.over = "what it has learned may not be what the run ends with"
        self.conduct.wake()
        return False

    def _ending_work(self) -> int | None:
        """1 when the last state was compared, or cannot be."""
        steps = self._steps
        if self._learned_all():
            return 1
        attempt = (self.view.number, steps.step)
        at_work = steps.mode in (Mode.RUNNING, Mode.PAUSED) and steps.newest == self.applied
        if at_work and self._ending_in != attempt:
            self._ending_in, self.conduct.ended = attempt, -1
            self.conduct.take_part()
            self.conduct.enter(Phase.WAITING)
            self.conduct.act(self.conduct.participant.end(time.monotonic()))
        return 1 if self.conduct.ended == self.applied else None
