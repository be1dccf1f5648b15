"""The engine of a replica: its driver, the mesh and the link, and the training thread.

    coordinator ──link thread──▶ ┐           ┌──▶ mesh: frames to peers
                                 ├─▶ Driver ─┼──▶ link: words to the coordinator
    peers ───────mesh thread──▶ ─┘ (one lock)└──▶ wakes the training thread
                 (or the training thread itself, while it waits)

The driver decides and carries out, whichever thread brings the event (`protocol/driver.py`). Everything that
touches the model is done here, in the training thread: it asks the driver what to do next, does it without
the lock, says so, and waits when there is nothing. Nobody ever waits for the coordinator.

When a life is over (it was stopped for too long and evicted, or cannot catch up), the driver begins a new
one, which is given the state of the others, and the training loop goes on from there as if nothing had
happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from outlast import crashpoints as crash
from outlast.errors import ConfigError, Fenced, JobFailed, LoopError
from outlast.kinship import unnice
from outlast.locks import Monitor
from outlast.mesh.transport import Mesh
from outlast.parting import before_exit
from outlast.protocol.driver import Driver
from outlast.protocol.messages import Phase
from outlast.protocol.seams import Noted, Said
from outlast.protocol.step_words import BLANK, Check, Trial
from outlast.protocol.todos import (
    Apply,
    Compute,
    Copy,
    Digest,
    Finished,
    Found,
    Give,
    GoBack,
    JobEnded,
    Keep,
    Leave,
    Load,
    Read,
    Stage,
    Todo,
)
from outlast.protocol.views import Member, View
from outlast.state.image import Assembly
from outlast.state.training import TrainingState
from outlast.train.comparing import CHECKSUM_MASK, Comparing, checksum
from outlast.train.exchange import Exchange
from outlast.train.final import FinalState
from outlast.train.founding import LOOK_AGAIN_S, Founding
from outlast.train.gifts import Gifts
from outlast.train.gradients import Gradients
from outlast.train.link import Link
from outlast.train.outlet import Decider, TrainingOutlet
from outlast.train.records import Record
from outlast.train.restoring import Beginning
from outlast.train.saving import Saving
from outlast.train.sums import NodeSum
from outlast.wire.progress import Progress

log = logging.getLogger(__name__)


class Engine:
    """What the training thread uses."""

    def __init__(
        self,
        *,
        driver: Driver,
        outlet: TrainingOutlet,
        state: TrainingState,
        gradients: Gradients,
        exchange: Exchange,
        changed: Monitor,
        link: Link | None = None,
        mesh: Mesh | None = None,
        progress: Progress | None = None,
        saving: Saving | None = None,
        comparing: Comparing | None = None,
    ) -> None:
        self.driver = driver
        self.progress = progress
        self._comparing = comparing
        self._saving = saving
        self._outlet = outlet
        self._state = state
        self._changed, self._lock = changed, changed.lock
        self._gradients = gradients
        self._exchange = exchange
        self._link = link
        self._mesh = mesh
        self._gifts = Gifts(driver, state, gradients, changed)
        self._founding = Founding(driver, outlet, gradients, changed, saving, self._check)
        self._assigned: Compute | None = None
        """For which attempt the gradients were assigned."""
        self._applies: Apply | None = None
        self._final: FinalState | None = None

    def on_beginning(self, begin: Callable[[Beginning], None], found: Callable[[], None]) -> None:
        """How what a lineage begins with becomes the own state, before anybody else is given it; `found` is
        called first."""
        self._founding.on_beginning, self._founding.on_founding = begin, found

    @property
    def view(self) -> View:
        """The view in force."""
        return self.driver.view

    @property
    def applied(self) -> int:
        """The step whose result the model holds; -1 while it holds nothing that counts."""
        return self.driver.applied

    @property
    def resting(self) -> bool:
        """Whether the training thread is at the end of its loop of steps, or behind it."""
        return self.driver.resting

    @property
    def own_shards(self) -> tuple[int, ...]:
        """The shards that are this replica's in the view in force."""
        return self._exchange.plan.shards if self._exchange.in_view else ()

    @property
    def verified(self) -> int:
        """The newest step whose state was the same on all replicas; -1 if there is none."""
        return self._comparing.verified if self._comparing is not None else -1

    # The loop of steps.

    def start(self) -> None:
        """Take part; returns once the model holds the state that the job begins or goes on with."""
        if self._link is None:
            self._start_alone()
        else:
            assert self._mesh is not None
            self._link.decided_by(Decider(self.driver))
            self._mesh.open()
            self._link.open()
        self._until(Stage.STARTING)
        if self._link is not None:
            # From here on others come to wait for this process.
            unnice()

    def work(self) -> int | Record:
        """A shard to compute for the step after the applied one, or the record of that step."""
        if self.resting:
            self._go_on()
        while True:
            todo = self._next(Stage.STEPPING)
            if isinstance(todo, Compute):
                shard = self._compute(todo)
                if shard is not None:
                    return shard
            elif isinstance(todo, Apply):
                self._applies = todo
                assert isinstance(todo.record, Record)
                return todo.record
            else:
                self._do(todo)

    def apply(self, step: int) -> None:
        """The script has applied the record of this step."""
        assert self._applies is not None and self._applies.record.step == step
        with self._lock:
            self.driver.did(self._applies, time.monotonic())
            if self._saving is not None:
                self._saving.keepsakes.ran(step)

    def bucket(self, node: NodeSum, bucket: int) -> None:
        """A bucket of an own sum is there, in the middle of backward: send it ahead of the rest."""
        crash.reach("backward", self.applied + 1)
        if self._assigned is not None:
            at = self._assigned.at
            with self._lock:
                self.driver.bucket(at, lambda: self._exchange.bucket(at.step, node, bucket))

    def save(self, name: str, *, last: bool) -> None:
        """The script wants the state after the present step saved under this name. `last`: it has left the
        loop of steps, and may do anything to the state when this returns."""
        assert self._saving is not None
        with self._lock:
            step = self.applied if last else self.applied + 1
            member = self.driver.member.is_member or self._link is None
            self._saving.keepsakes.ask(name, step, last=last, member=member)
            due = last and self._saving.keep_due(step)
        if due:
            self._do(Keep(step))
            self.settle()

    def settle(self) -> None:
        """The script is about to change the state: let what is being copied of it be complete."""
        self._gifts.settle()
        if self._saving is not None:
            self._saving.settle()
        if self._comparing is not None:
            self._comparing.settle()

    # What comes after it.

    def end_loop(self) -> bool:
        """The loop of steps ends here: have the state compared, before the script uses it. False if there are
        steps to do again."""
        last = self.applied
        self._keep()
        if self._comparing is not None:
            self._until(Stage.ENDING, while_at=last)
        if self.applied < last:
            return False
        self._rest()
        return True

    def _keep(self) -> None:
        """Copy the last state for those who come back while this script does something else."""
        if self._link is None or (self._final is not None and self._final.step == self.applied):
            return
        self._final = FinalState(self.applied, self._state, self._gradients.step_buffers())
        with self._lock:
            self.driver.keep_final(self._final)

    def _rest(self) -> None:
        """The training thread is beside the steps."""
        with self._lock:
            if self.progress is not None:
                self.progress.end()
            self.driver.rest(self._final, time.monotonic())

    def _go_on(self) -> None:
        """There is another loop of steps."""
        self._final = None
        with self._lock:
            self.driver.go_on(time.monotonic())
            if self.progress is not None:
                self.progress.end(ended=False)

    def end_early(self) -> None:
        """The script has left the loop of steps, wherever it was."""
        last = self.applied
        if not self.end_loop():
            self._refuse_to_begin_again(last)
            raise LoopError(
                f"replica {self.driver.replica} left the loop of steps after step {last}, and its state is "
                "not that of the other replicas, so the result may be wrong. Do not break out of the loop: "
                "job.steps() does what has to be done again"
            )

    def leave_loop(self) -> None:
        """The training loop is over here: stay until everybody holds the last record."""
        last = self.applied
        self.end_early()
        life = self.driver.life
        while True:
            if self.applied != BLANK:
                with self._lock:
                    self.driver.close(time.monotonic())
            todo = self._next(Stage.CLOSING)
            if isinstance(todo, Finished):
                return
            if isinstance(todo, GoBack):
                raise LoopError(
                    f"replica {self.driver.replica} left the loop of steps after step {last}, and the states "
                    "of replicas were found to differ then: the result may be wrong"
                )
            self._do(todo)
            self.settle()
            if self.driver.life is not life and self.applied != BLANK:
                life = self.driver.life
                self._come_back(last)

    def _refuse_to_begin_again(self, last: int) -> None:
        if BLANK < self.applied < last:
            raise Fenced(
                f"replica {self.driver.replica} had left the loop of steps after step {last} when all who "
                f"had that state were lost. The job goes on from step {self.applied}, and this process has "
                "to be started again for that"
            )

    def _come_back(self, last: int) -> None:
        """It was evicted behind its last step, or cut off: a new life is given the same state, and leaves."""
        self._refuse_to_begin_again(last)
        if self.applied != last:
            raise LoopError(
                f"replica {self.driver.replica} left the loop of steps after step {last}, and came back to "
                f"a job that is at step {self.applied}. All must leave it at the same step"
            )
        self._keep()
        self._rest()

    def done(self, *, chief: bool) -> None:
        """All steps are done here. The process may end from now on, and only from now on is that no death;
        when the chief's does, the job is done."""
        with self._lock:
            if chief and self.progress is not None:
                self.progress.close_job()
            self._outlet.enter(Phase.DONE)

    def stay_for_others(self, chief: int) -> None:
        """The `with` block is left, and the script goes on. When it has ended, the chief's process exits, and
        the others stay until the job is over: they have the final state, should the chief be killed and
        have to do its work again."""
        if self._link is None:
            self.close()
            return
        if self._saving is not None:
            self._saving.close(clean=self.driver.life.all_done)
        with self._lock:
            self.driver.save_no_more()
        self._saving = None
        before_exit(lambda status: self._part(chief, well=status == 0))

    def _part(self, chief: int, *, well: bool) -> None:
        closes = chief == self.driver.replica
        if well and not closes:
            assert self._link is not None
            with self._lock:
                self.driver.stay(chief, time.monotonic())
                # One whose life is over has nothing to give any more, and others may wait for its word.
                while self.driver.outcome is None and self.driver.life.over is None:
                    if self._link.leave_requested:
                        break
                    self._changed.wait(LOOK_AGAIN_S)
        if well:
            with self._lock:
                self.driver.ends(closes=closes)
        self.close()

    def noted(self, noted: Noted) -> None:
        """It is in the ledger. Called by the thread that writes it."""
        with self._lock:
            self.driver.done(noted, time.monotonic())

    def break_down(self, error: Exception) -> None:
        """It cannot be written, and this replica cannot go on without that."""
        with self._lock:
            self.driver.break_down(error)

    # How it ends.

    def fail(self, reason: str, shard: int) -> None:
        """This process ends by an error of its own; tell everybody before its slow exit."""
        if self._link is not None:
            with self._lock:
                self.driver.fail(reason, shard, time.monotonic())

    @property
    def ending(self) -> bool:
        """Whether this process ends because the job does, or because it was asked to leave."""
        return self.driver.outcome is not None or self.driver.leaving

    @property
    def leave_requested(self) -> bool:
        return self._link is not None and self._link.leave_requested

    def leave(self) -> None:
        """Ask to be let go; the view that does so ends this process."""
        if self._link is not None:
            with self._lock:
                self.driver.leave(time.monotonic())

    def may_leave(self) -> bool:
        """Whether the state that this replica leaves behind is saved, or cannot be."""
        with self._lock:
            return self._saving is None or self._saving.hurry(self.applied)

    @property
    def closed(self) -> bool:
        return self.driver.closed

    def close(self) -> None:
        self.driver.closed = True
        if self._saving is not None:
            # When one that is alone ends, the job does: the next may begin at once, in this process perhaps.
            self._saving.close(clean=self.driver.life.all_done or self._link is None)
        if self._mesh is not None:
            self._mesh.close()
        if self._link is not None:
            self._link.close()
        self._outlet.close()

    def _start_alone(self) -> None:
        core = self.driver.member
        me = Member(core.replica, 1)
        shards = (me.replica,) * core.shards
        view = View(number=1, lineage=1, members=(me,), shards=shards, slices=(me.replica,), planned_since=1)
        with self._lock:
            self.driver.alone(view, time.monotonic())

    # What the training thread does.

    def _until(self, stage: Stage, while_at: int | None = None) -> None:
        """Do what there is to do until the stage is over, or the state is that of another step."""
        while while_at is None or self.applied in (while_at, BLANK):
            todo = self._next(stage)
            if isinstance(todo, Finished):
                return
            self._do(todo)
            if isinstance(todo, Copy | Keep | Digest):
                # There is no next step beside which it could be copied.
                self.settle()
            if self.applied == while_at:
                self._keep()

    def _next(self, stage: Stage) -> Todo:
        """What to do; waits until there is something."""
        while True:
            with self._lock:
                todo = self.driver.next(stage, time.monotonic())
                if todo is None and self._gifts.idle:
                    self._wait()
                    continue
            match todo:
                case None:
                    self._gifts.settle()
                case Leave():
                    raise SystemExit(0)
                case JobEnded():
                    # The agent is about to end this process; there is nothing left to do in it.
                    raise SystemExit(0 if todo.outcome.finished else JobFailed.exit_code)
                case _:
                    return todo

    def _check(self) -> None:
        """Under the lock: raises what the training thread has to know at once."""
        if self.driver.failure is not None:
            raise self.driver.failure
        if self.driver.outcome is not None:
            self._outlet.enter(Phase.DONE)
            raise SystemExit(0 if self.driver.outcome.finished else JobFailed.exit_code)

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

    def _do(self, todo: Todo) -> None:
        """What is not the script's."""
        match todo:
            case Give():
                self._gifts.begin(todo)
            case Copy():
                assert self._saving is not None
                self._saving.copy(todo.save, self._gradients.step_buffers())
            case Keep():
                assert self._saving is not None
                self._saving.keepsakes.copy(todo.step, self._gradients.step_buffers())
            case Digest():
                assert self._comparing is not None
                self._comparing.copy(todo.step, self._gradients.step_buffers(), todo.life, todo.fork)
            case GoBack():
                self._go_back(todo)
            case Load():
                self._load(todo)
            case Found():
                step, view = self._founding.found(todo)
                with self._lock:
                    self.driver.founded(todo, time.monotonic(), step=step, view=view)
            case Read():
                self._founding.help_to_read(todo)
            case _:
                raise AssertionError(f"{todo} is the script's")

    def _did(self, todo: Todo) -> None:
        with self._lock:
            self.driver.did(todo, time.monotonic())

    def _compute(self, todo: Compute) -> int | None:
        """A shard that is missing; when none is, contribute."""
        if self._assigned is not todo:
            self._assigned = todo
            with self._lock:
                self._assign(todo)
        missing = self._gradients.missing()
        if missing:
            return missing[0]
        said = self._said(todo)
        with self._lock:
            self.driver.did(todo, time.monotonic(), said=said)
        return None

    def _assign(self, todo: Compute) -> None:
        """Under the lock, since who is asked for what in a hearing may change with the view."""
        if todo is not self.driver.life.computes or not self._exchange.takes(todo.at.view):
            return
        if todo.at.trial == Trial.HEARING:
            self._gradients.ask(self._exchange.court(todo.at.step).asked)
            return
        if todo.afresh:
            self._gradients.discard()
        self._gradients.assign(self._exchange.plan.shards)

    def _said(self, todo: Compute) -> Said | None:
        """What others compare, found out before the lock is taken."""
        if self._comparing is None or todo.at.trial != Trial.FIRST:
            return None
        gradients = self._gradients
        sums = sum(checksum(node.flat) for node in gradients.nodes()) if todo.members == 2 else 0
        check = Check(
            checksum=sums & CHECKSUM_MASK,
            buffers=gradients.buffers_digest() if todo.members > 1 else b"",
            buffer_entries=gradients.buffer_entries() if todo.wary else b"",
        )
        return Said(check=check)

    def _go_back(self, todo: GoBack) -> None:
        back = todo.back
        log.info("replica %d goes back to step %d", self.driver.replica, back.fork.step)
        self._assigned, self._final = None, None
        self._gradients.abandon_shard()
        self.settle()
        if back.step != BLANK:
            assert self._comparing is not None
            self._comparing.load(back.step)
            self._gradients.start_step()
        self._founding.void = back.step == BLANK
        self._did(todo)

    def _load(self, todo: Load) -> None:
        arrival = todo.arrival
        crash.reach("joining", arrival.step)
        assembly = arrival.assembly
        assert isinstance(assembly, Assembly)
        took_s = time.monotonic() - self.driver.life.begun_at
        log.info("the state of %d bytes came in %.3f s", assembly.image.total_bytes, took_s)
        self._assigned = self._final = None
        self._gradients.abandon_shard()
        self.settle()
        try:
            self._state.load(assembly.image, assembly.tensors())
        except ConfigError as error:
            raise ConfigError(f"replica {self.driver.replica} differs from its peers: {error}") from error
        self._gradients.start_step()
        self._did(todo)
        self._founding.void &= self.applied != arrival.step
