"""What a training script holds: `join` gives a `Job`, a job gives steps, a step gives this replica's shards.

    with outlast.join(model=model, optimizer=opt, data=data) as job:
        for step in job.steps(10_000):
            for x, y in step:
                step.backward(loss_fn(model(x), y))
            opt.step()

The script is the same for one process and for a hundred. The inner loop goes over the shards that this
replica is to compute: a few more if a peer has died, none for one that is catching up. When it ends, `.grad`
holds the step's gradient, the same bits on every replica. What the script does with it, it does everywhere.

The rules of the loop are checked, and every error names the replica and the step.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from outlast import crashpoints as crash
from outlast.errors import ConfigError, DataError, LoopError, OutlastError
from outlast.protocol.messages import Phase
from outlast.rules import Rule
from outlast.state.vault.names import ENDED, check_name
from outlast.state.vault.retention import Keep
from outlast.train.assembly import Parts, Saves, assemble
from outlast.train.cadence import Every
from outlast.train.data import Data
from outlast.train.records import Record
from outlast.train.rhythm import Verify
from outlast.train.saving import Settings
from outlast.train.screening import Screened
from outlast.train.seeding import seed_shard
from outlast.train.together import guarded

CHECK_EVERY = 100
"""Steps between two looks at the model's list of parameters, which takes a while for large models."""

CHECK_FIRST = 3
REASON_CHARS = 300


class Step:
    """One optimizer step. Iterate over it once, then use the gradients."""

    def __init__(self, job: Job) -> None:
        self._parts = job._parts
        self._begun = False
        self._left = False
        self._shard = -1
        self._record: Record | None = None

    @property
    def number(self) -> int:
        """From 1 up; the same on every replica."""
        return self._record.step if self._record is not None else self._parts.engine.applied + 1

    @property
    def epoch(self) -> int:
        """The pass over the data that this step is in, from 0 up."""
        return (self.number - 1) // self._steps_per_epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether this step is the last one of its pass over the data."""
        return self.number % self._steps_per_epoch == 0

    @property
    def _steps_per_epoch(self) -> int:
        if self._parts.data is None:
            raise self._wrong("epochs are passes over `data`, and outlast.join was given none")
        return self._parts.data.steps_per_epoch

    @property
    def loss(self) -> float:
        """The weighted mean of all shards' losses, known when the loop over the shards has ended."""
        if self._record is None:
            raise self._wrong("step.loss is known after the loop over the step's shards, not before")
        return self._record.note.mean_loss

    @property
    def done(self) -> bool:
        return self._record is not None

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise self._wrong("a step can be iterated over only once: `for batch in step`")
        self._begun = True
        try:
            yield from self._shards()
        except GeneratorExit:
            # The loop was left, by `break`, `return` or an error.
            self._left = True
            raise
        except (ConfigError, DataError) as error:
            raise self._wrong(str(error)) from error

    def backward(self, loss: Tensor, weight: float | None = None, *, retain_graph: bool = False) -> None:
        """Add this loss to the step, instead of `loss.backward()`.

        The step's gradient is the mean of the shards', weighted by their number of samples. Where a loss is a
        mean over something else (tokens, say), pass how many as `weight`; several such calls in one shard
        count each with its own. Several calls without a weight add up, as two terms of one loss.
        """
        try:
            self._parts.gradients.backward(loss, weight, retain_graph=retain_graph)
        except ConfigError as error:
            raise self._wrong(str(error)) from None

    def _shards(self) -> Iterator[Any]:
        engine, gradients, progress = self._parts.engine, self._parts.gradients, self._parts.progress
        gradients.start_step()
        while True:
            todo = engine.work()
            if isinstance(todo, Record):
                break
            self._shard = todo
            number = engine.applied + 1
            samples, batch = self._parts.load(number, todo)
            if samples == 0:
                gradients.empty_shard(todo)
                continue
            gradients.open_shard(todo, samples)
            if progress is not None:
                progress.computing(todo)
            seed_shard(self._parts.facts.seed, number, todo)
            crash.reach("forward", number)
            yield batch
            if progress is not None:
                progress.computing(None)
            gradients.close_shard()
            self._shard = -1
        crash.reach("reduced", todo.step)
        engine.settle()
        gradients.take(todo.vector, todo.note.weight, todo.mask, todo.note.integers)
        # Whatever is random in the update is the same everywhere, too.
        seed_shard(self._parts.facts.seed, todo.step, self._parts.shard_count)
        self._record = todo

    def _wrong(self, what: str) -> LoopError:
        shard = f", shard {self._shard}" if self._shard >= 0 else ""
        return LoopError(f"replica {self._parts.replica}, step {self.number}{shard}: {what}")


class Job:
    """A replica's part in a run; made by `join`, used in a `with` block."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._step: Step | None = None
        self._total: int | None = None
        self._entered = False
        """Whether the `with` block has begun."""
        self._left_loop = False
        """Whether the script is behind its loop of steps."""
        self._broke_out = False
        """Whether it has left that by `break`, and nothing has come of it yet."""
        self._in_order = False
        """Whether the `with` block has been left as it should be."""
        self._saved = False
        """Whether it has asked for a save."""
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_update) for optimizer in parts.optimizers
        ]
        self._hooks += [
            optimizer.register_step_post_hook(self._after_update) for optimizer in parts.optimizers
        ]

    @property
    def replica(self) -> int:
        return self._parts.replica

    @property
    def chief(self) -> bool:
        """True on one replica, which prints and evaluates for all. From the last step on it stays with that
        replica: if it is killed, with its next life, which has the rest of the script to do again. Before
        that it may pass to another at any time: a convenience, not a lock."""
        self._end_what_was_left()
        if self._parts.engine.resting:
            return self._parts.chief
        return self._parts.engine.view.chief == self.replica

    @property
    def members(self) -> int:
        """How many replicas train at the moment."""
        return len(self._parts.engine.view.members)

    @property
    def steps_done(self) -> int:
        return max(0, self._parts.engine.applied)

    @property
    def id(self) -> str:
        """The run's own, the same whenever it goes on from its checkpoints: for what is kept elsewhere, such
        as `wandb.init(id=job.id, resume="allow")`. Known once the `with` block has begun."""
        return self._parts.facts.id

    @property
    def screened(self) -> Screened:
        """What screening and audits have found, as far as this process has seen it."""
        return self._parts.facts.screening.counts

    @property
    def verified(self) -> int | None:
        """The newest step whose state was found to be the same on all replicas; None if there is none."""
        return self._parts.engine.verified if self._parts.engine.verified >= 0 else None

    def steps(self, total: int) -> Iterator[Step]:
        """The steps that are left to do until the run has done `total`. Where replicas compare their states,
        it ends when all have the same one; else some steps are done again."""
        if not isinstance(total, int) or total < 0:
            raise ConfigError(f"job.steps({total!r}): a run has 0 or more steps; say how many in total.")
        if not self._entered:
            # Nothing is running that could ever end a step.
            raise LoopError(
                f"replica {self.replica}: job.steps() outside of its `with` block. Write "
                "`with outlast.join(...) as job:`, and the loop of steps inside of it"
            )
        engine, facts = self._parts.engine, self._parts.facts
        if self._end_what_was_left():
            # It was not the end of the run.
            facts.ended = 0
        self._parts.resuming.tell(total)
        # One that the script has ended before stays as it is.
        total = self._total = facts.ended or total
        self._left_loop = False
        self._parts.expect(total)
        while engine.applied < total or not engine.end_loop():
            if engine.applied >= total:
                continue
            self._check_parameters(engine.applied)
            step = self._step = Step(self)
            try:
                yield step
            except GeneratorExit:
                # By `break`, or an exception is on its way.
                self._left_loop = self._broke_out = True
                self._step = step if step._begun else None
                raise
            if not step.done:
                raise self._left_early(step)
            self._finish(step)
        self._step = None
        self._left_loop = True

    def save(self, name: str) -> None:
        """Have the state after this step saved as a checkpoint of that name, such as "best"; after the loop
        of steps, the last state.

        All replicas call it alike, after the update. It returns at once: the checkpoint is made in the
        background, and the end of the `with` block waits for it. From then on the name stands for this
        checkpoint, which is kept until the name moves on to a newer one.
        """
        check_name(name)
        if not self._parts.saves:
            raise ConfigError(
                f"job.save({name!r}) has no place to save to: give outlast.join one, such as "
                'checkpoints="runs/one" or checkpoints="s3://bucket/run".'
            )
        step = self._step
        if step is not None and not step.done:
            raise step._wrong(
                f"job.save({name!r}) saves the state after a step: call it after the loop over the step's "
                "shards and the optimizer's step()"
            )
        if step is None and not self._left_loop:
            raise LoopError(
                f"replica {self.replica}: job.save({name!r}) was called before the first step. Call it in "
                "the body of a step, after the update, or after the loop of steps"
            )
        self._save(name)

    def _save(self, name: str) -> None:
        self._end_what_was_left()
        self._saved = True
        self._parts.engine.save(name, last=self._step is None)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Long work beside the steps, such as an evaluation: it must not look like a hang."""
        self._end_what_was_left()
        progress = self._parts.progress
        if progress is None:
            yield
            return
        progress.enter(Phase.ASIDE)
        try:
            yield
        finally:
            progress.enter(Phase.ASIDE if self._parts.engine.resting else Phase.COMPUTING)

    def __enter__(self) -> Job:
        try:
            self._parts.engine.start()
        except BaseException as error:
            self._fail(error)
            self._close()
            raise
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, SystemExit) and not self._parts.engine.ending:
                if self._step is not None:
                    raise LoopError(
                        f"replica {self.replica}, step {self._step.number}: the script ended itself in the "
                        "middle of the loop of steps. All must leave it at the same step: give job.steps() "
                        "the run's total"
                    ) from error
                self._leave()
            elif error is None:
                if self._step is not None and self._step._begun and not self._step.done:
                    raise self._left_early(self._step)
                self._leave()
            elif isinstance(error, ConfigError) and self._step is not None:
                # From a place that does not know where it is in the run, such as a hook inside of backward.
                raise self._step._wrong(str(error)) from error
            else:
                self._fail(error)
        except BaseException as late:
            self._fail(late)
            raise
        finally:
            self._close()

    def _leave(self) -> None:
        self._left_loop = self._broke_out = True
        self._end_what_was_left()
        applied, total = self._parts.engine.applied, self._total
        early = total is not None and applied < total
        if self._parts.saves and (early or (self._saved and self._parts.facts.ended)):
            # The script has decided that this is the end, and so it is when the run is started again; also if
            # the last state is saved once more under some name.
            self._save(ENDED)
        self._parts.engine.leave_loop()
        self._parts.engine.done(chief=self._parts.chief)
        self._in_order = True

    def _end_what_was_left(self) -> bool:
        """The script has broken out of its loop of steps, in the body of a step whose update has been made,
        and does something else now. Whoever is given the state from here on does no more steps either."""
        step = self._step
        if not self._broke_out or step is None or not step.done:
            return False
        self._broke_out = False
        self._finish(step)
        self._parts.facts.ended = step.number
        self._parts.engine.end_early()
        return True

    def _finish(self, step: Step) -> None:
        engine = self._parts.engine
        assert step._record is not None
        engine.apply(step.number)
        self._parts.finished(step._record)
        self._step = None
        if engine.leave_requested and engine.may_leave():
            engine.leave()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, SystemExit | GeneratorExit) or self._parts.engine.closed:
            return
        first_line = f"{type(error).__name__}: {error}".partition("\n")[0][:REASON_CHARS]
        shard = self._step._shard if self._step is not None else -1
        with contextlib.suppress(OSError, OutlastError):
            self._parts.engine.fail(first_line, shard)

    def _close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._parts.close(stays=self._in_order)

    def _left_early(self, step: Step) -> LoopError:
        if not step._begun:
            return step._wrong(
                "the step was not iterated over. Every replica goes through its shards: `for batch in step`"
            )
        return step._wrong(
            "the loop over the step's shards was left before its end, so its gradient is not complete. Do "
            "not break out of it: every shard counts, and the loop ends by itself"
        )

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        step = self._step
        if step is not None and step._left:
            raise self._left_early(step)
        if step is not None and step._begun and not step.done:
            raise step._wrong(
                f"{type(optimizer).__name__}.step() was called inside the loop over the shards. The gradient "
                "is complete only after it: call the optimizer once per step, behind the inner loop"
            )
        if step is not None and self._goes_past_the_scaler(step, optimizer):
            raise step._wrong(
                "the gradient is not finite. It was let through for the GradScaler in `state` to skip the "
                f"step, and {type(optimizer).__name__}.step() is about to apply it. Call "
                "scaler.step(optimizer) instead, or leave the scaler out of `state`: then what is not "
                "finite is left out"
            )
        return guarded(optimizer, args, kwargs) if step is not None else None

    def _goes_past_the_scaler(self, step: Step, optimizer: Optimizer) -> bool:
        record = step._record
        if not self._parts.facts.screening.lenient or record is None or math.isfinite(record.note.norm):
            return False
        if getattr(optimizer, "found_inf", None) is not None:
            # A fused one is told by the scaler, and skips the step itself.
            return False
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        return not all(bool(grad.isfinite().all()) for grad in grads)

    def _after_update(self, *_: Any) -> None:
        crash.reach("optimizer", self._step.number if self._step is not None else -1)

    def _check_parameters(self, applied: int) -> None:
        if applied > CHECK_FIRST and applied % CHECK_EVERY:
            return
        try:
            self._parts.check_schedules()
        except ConfigError as error:
            raise LoopError(f"replica {self.replica}, step {applied + 1}: {error}") from None
        added = self._parts.unknown_parameters()
        if added:
            raise LoopError(
                f"replica {self.replica}, step {applied + 1}: the model has parameters that it did not have "
                f"when the job was joined: {', '.join(added[:5])}. Build the whole model before "
                "outlast.join(), and freeze after it what should not train yet"
            )


def join(
    *,
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
    data: Data | None = None,
    state: Mapping[str, Any] | None = None,
    shards: int | None = None,
    micro_batch: int | None = None,
    rule: Rule | None = None,
    ledger: str | None = None,
    exact: bool = True,
    audit: float = 0.0,
    checkpoints: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    every: Every = "auto",
    keep_last: int = 3,
    keep_every: int | None = None,
    compress: bool = False,
    verify: Verify = "auto",
    unchecked_schedules: bool = False,
    changed: Sequence[str] = (),
) -> Job:
    """Take part in the run that this process was started for, or run alone if it was started by hand.

    model, optimizer: what is trained, each one or several by name. All replicas begin with the same values,
        whatever each was made with.
    data: where shards come from. Without it, a step yields the numbers of this replica's shards.
    state: whatever else belongs to the training state (schedules, counters), by name; anything that has
        `state_dict` and `load_state_dict` and holds tensors and plain data.
    shards: into how many parts a step's batch is cut, for the whole run; by default as many as replicas were
        asked for. The results depend on it, and not on how many replicas there are. More shards spread the
        work of a dead replica more evenly and let a run grow, but make each piece of work smaller.
    micro_batch: the same, said as the number of samples in a shard.
    rule: how the shards' gradients become one, from `outlast.rules`; by default their weighted mean. A robust
        one needs every shard by itself, which costs traffic and memory where replicas hold several of them.
    ledger: a folder in which each member writes down which samples were used, for audits.
    exact: refuse replicas whose machines would compute other bits.
    audit: the share of steps, from 0 to 1, in which a contribution and a sum that look fine are computed
        again by another replica and compared bit for bit; with 1, all sums of every step. Contributions that
        do not look fine are always computed again, before anybody is blamed.
    checkpoints: where to save the state, and to resume from by itself: a path or a file://, s3://, gs://,
        az:// or hdfs:// URL; or several, the nearest first, which then hold the same checkpoints.
    every: how often: a number of steps, a duration ("90s", "10m"), or "auto": as often as pays.
    keep_last, keep_every: which checkpoints are kept: the newest ones, and those of every so many steps.
    compress: store chunks compressed, which takes more CPU and less storage.
    verify: how often replicas compare digests of their whole state: after so many steps, or "auto", as often
        as takes less than 0.5 % of the time; those of the model's buffers are compared in every step. If one
        differs, all go back to the last state that was the same everywhere, and do those steps again. Takes
        twice the state in host memory; None switches it off, as exact=False does.
    unchecked_schedules: let learning-rate schedules of the optimizers pass that are in no entry of `state`.
        Without it they are refused: who comes back would train with other rates than the others.
    changed: what differs on purpose from the checkpoint that the run goes on from, such as
        ("weight_decay",), ("global_batch",) or ("dataset_length",). A wrong name lists the right ones.
    """
    saves = None
    if checkpoints is not None:
        given: Any = checkpoints
        several = isinstance(given, Sequence) and not isinstance(given, str)
        urls = list(given) if several else [given]
        if not all(isinstance(url, str | os.PathLike) for url in urls):
            raise ConfigError(f"checkpoints = {checkpoints!r}: give a path or a URL, or a list of these.")
        saves = Saves(
            urls, Settings(every=every, keep=Keep(last=keep_last, every=keep_every), compress=compress)
        )
    return Job(
        assemble(
            model=model,
            optimizer=optimizer,
            data=data,
            state=state if state is not None else {},
            shards=shards,
            micro_batch=micro_batch,
            rule=rule,
            ledger=ledger,
            exact=exact,
            audit=audit,
            saves=saves,
            verify=verify,
            unchecked_schedules=unchecked_schedules,
            on_purpose=_names(changed),
        )
    )


def _names(changed: Any) -> tuple[str, ...]:
    if isinstance(changed, str):
        # A word is a sequence of letters, too.
        return (changed,)
    if not isinstance(changed, Sequence) or not all(isinstance(name, str) for name in changed):
        raise ConfigError(f'changed = {changed!r}: give names, such as ("weight_decay",).')
    return tuple(changed)
