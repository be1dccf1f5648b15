"""Carrying out saves: when one is due, who is told what came of it, and what a lineage begins with.

    training thread        copies its share of the state (`copying`), while the next step computes
    saving thread          writes chunks; as the committer makes and puts the manifest (`writing`); prunes and
                           fills tiers (`tending`)
    whoever brings events  tells the core (`protocol/saving.py`) under the engine's lock

A storage that is away, full or slow costs checkpoints, never training: whatever goes wrong in the saving
thread ends one save, is said once, and the next save is tried a little later. Nobody waits for ever: neither
for the coordinator's leave to commit, nor at the end of a run for the others, nor to be let go.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from outlast import crashpoints as crash
from outlast.errors import OutlastError, SaveGivenUp, VaultTaken
from outlast.protocol import saving as core
from outlast.protocol.driver import Driver
from outlast.protocol.kinds import ReadRequest
from outlast.protocol.seams import Committed, Decided, GaveUp, Sealed, Written
from outlast.protocol.views import Intent, View
from outlast.state.training import TrainingState
from outlast.state.vault.manifest import Claim
from outlast.state.vault.names import checkpoint_of
from outlast.state.vault.occupancy import Process
from outlast.state.vault.retention import Keep
from outlast.train.cadence import Cadence, Every
from outlast.train.claims import HeldClaim
from outlast.train.finals import NO_STEP, Finals
from outlast.train.gathering import Gathering, read_for
from outlast.train.keepsakes import Keepsakes, Share
from outlast.train.occupying import Occupying
from outlast.train.pace import Pace
from outlast.train.restoring import Beginning, find_beginning
from outlast.train.save_job import SaveJob
from outlast.train.saving_thread import SavingThread
from outlast.train.tending import Tending
from outlast.train.tiers import Tiers
from outlast.train.writing import Writing

log = logging.getLogger(__name__)

FINAL_TRIES = 3

SHADOW_WITHIN_S = 60.0
SHADOW_INTERVALS = 4.0
"""Members save by themselves if their shadow has not for so long, or for so many times the usual interval."""

NOTHING_NAMED: tuple[tuple[str, ...] | None, tuple[int, ...]] = (None, ())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the script says about its checkpoints."""

    every: Every = "auto"
    keep: Keep = field(default_factory=Keep)
    compress: bool = False


class Saving:
    """One replica's part in checkpoints. What is called under the engine's lock says so."""

    def __init__(
        self,
        *,
        replica: int,
        run: str,
        process: Process,
        tiers: Tiers,
        settings: Settings,
        state: TrainingState,
        claim: HeldClaim,
        shards: int,
        changed: threading.Condition,
        stopped: threading.Event,
        leave_within_s: float,
        is_shadow: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Once `stopped` is set, the storages behind `tiers` try nothing again; that is done in `close`."""
        self._replica = replica
        self._run = run
        self._process = process
        self._tiers = tiers
        self._held = claim
        self._changed = changed
        self._stopped = stopped
        self._driver: Driver
        self._alone = True
        self._evicted_within_s = 0.0
        self.heard_at = -math.inf
        """When the coordinator last said something."""
        self._leave_within_s = leave_within_s
        self._is_shadow = is_shadow
        self._cadence = Cadence(settings.every, time.monotonic())
        self._pace = Pace()
        self.keepsakes = Keepsakes(state, changed)
        self._due: core.Save | None = None
        self._job: SaveJob | None = None
        self._view = View()
        self._thread = SavingThread(changed)
        self._writing = Writing(
            replica=replica,
            run=run,
            tiers=tiers,
            compress=settings.compress,
            state=state,
            claim=claim,
            shards=shards,
            changed=changed,
        )
        self._tending = Tending(tiers, settings.keep, self._thread, changed, self._commits)
        self._occupying = Occupying([vault.storage for vault in tiers.vaults], process, self._thread)
        self._hurry_since: int | None = None
        self._hurry_until = 0.0
        self._finals = Finals()
        self._last_at: float | None = None
        self._failed_step = NO_STEP
        """The step whose save was given up last because something could not be done."""
        self._stood_under: Claim | None = None
        self._claimed: Claim | None = None
        self._taken = ""
        """Why nothing is saved any more: somebody else has taken over."""
        self.saved_step = -1
        self._saved_at = 0.0
        self.trouble = ""
        """Why the newest save that ended was not committed; empty if it was."""

    def driven_by(self, driver: Driver) -> None:
        """Who is told what was done."""
        self._driver, self._alone = driver, driver.setup.alone
        self._evicted_within_s = driver.setup.timing.silent_at_least_s

    def heard(self, now: float) -> None:
        """The coordinator has said something."""
        self.heard_at = now

    def _say(self, level: int, text: str) -> None:
        """For people, under the lock: no log handler is waited for there."""
        self._driver.outlet.note(level, text)

    # Under the lock: what the core wants done, and what the engine asks.

    def do(self, action: core.SaveAction) -> None:
        match action:
            case _ if self._thread.closed:
                pass
            case core.Copy() if action.save.named:
                self._write_kept(action.save)
            case core.Copy():
                self._due = action.save
                self._job = SaveJob(action.save, self._replica)
                self._cadence.decided(action.save.step)
                self._driver.says_of_saves(self.said())
                self._pace.save_decided()
            case core.Intend() if self._job is not None:
                job = self._job
                job.intended_at = time.monotonic()
                self._try_to(lambda: self._make_manifest(job, action.stripes), job)
            case core.Commit() if self._job is not None:
                job = self._job
                self._try_to(lambda: self._commit(job), job)
            case core.Ended():
                self._ended(action)
            case core.SavedByOther():
                self.saved_step = max(self.saved_step, action.step)
                self._saved_at, self.trouble = time.monotonic(), ""
                self._writing.known = None
                self._driver.says_of_saves(self.said())
            case _:
                pass

    def adopt(self, view: View) -> None:
        """Another view is in force."""
        if self._view.members and not view.planned and view.lineage == self._view.lineage:
            self._cadence.failed_over()
        self._view = view
        self._beat()

    def wish(self, step: int) -> int:
        """What to say of saving in the part for this step: 1 for yes, 2 for not now, 0 for don't care."""
        now = time.monotonic()
        lost_s = self._pace.step(now)
        if lost_s is not None:
            self._cadence.slowed(lost_s)
        if self._taken or not self._held.known:
            return 0
        if self._job is not None or self._thread.unfinished:
            return 2
        hurries = self._hurry_since is not None and self.saved_step < self._hurry_since
        return 1 if hurries or (self._cadence.wants(step, now) and not self._shadowed(now)) else 0

    def _shadowed(self, now: float) -> bool:
        """Whether a shadow saves in the members' place. One that has not for long is not relied on."""
        patience_s = max(SHADOW_WITHIN_S, SHADOW_INTERVALS * self._cadence.interval_s(now))
        present = any(self._is_shadow(learner.replica) for learner in self._view.learners)
        return present and now - self._saved_at < patience_s

    def hurry(self, applied: int) -> bool:
        """This replica is to leave: have the state saved first. Whether that is settled, one way or another:
        a storage that is away does not keep a machine that is about to go."""
        if self._taken or not self._held.known or not self._driver.member.is_member:
            return True
        now = time.monotonic()
        if self._hurry_since is None:
            self._hurry_since, self._hurry_until = applied, now + self._leave_within_s
        failed = self._failed_step >= self._hurry_since
        saved = self.saved_step >= self._hurry_since and not self.keepsakes.pending
        return saved or failed or now >= self._hurry_until

    def finish(self, step: int, keeps: Mapping[int, Iterable[int]]) -> None:
        """All have left the loop of steps and hold the state after this one, the last; and each of them keeps
        some states that are wanted by name."""
        self._last_at = time.monotonic()
        self._finals.begin(step, keeps)
        self.keepsakes.hurry()
        self._driver.finals(self._finals.number_of_last)
        if self._job is None:
            self._save_rest()

    def _save_rest(self) -> None:
        """See to it that what is wanted by name is saved, and then the last state; or say that it is not."""
        while (final := self._finals.next(self.keepsakes.kept(math.inf))) is not None:
            at, kept = final
            if not (self._taken or self._finals.tries == FINAL_TRIES):
                self._finals.tries += 1
                self._driver.done(Decided(at, kept=kept), time.monotonic())
                return
            names, why = self.keepsakes.names(kept.step), self._taken or self.keepsakes.trouble
            named = ", ".join(names)
            self._say(logging.ERROR, f"the state after step {kept.step} is NOT saved as {named}: {why}")
            self.keepsakes.forget(kept.step)
            self._finals.ended()
        self._save_last()

    def _save_last(self) -> None:
        """See to it that the last state is saved, or say that it is not."""
        finals = self._finals
        step, why = finals.last, self._taken or self.trouble
        if step <= self.saved_step or not self._held.known:
            return
        if self._taken or self._failed_step == step or finals.tries == FINAL_TRIES:
            newest = f"step {self.saved_step}" if self.saved_step >= 0 else "none"
            last = f"the state after the last step, {step}, is NOT saved: {why} (saved: {newest})"
            self._say(logging.ERROR, last)
            return
        finals.tries += 1
        at = finals.number_of_last
        self._driver.done(Decided(at, later=at - step), time.monotonic())

    # What the script wants saved by name.

    def named(self, step: int, *, last: bool = False) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:
        """For the next part: what the script has asked for after this step, and what is kept here."""
        if self._taken or not self._held.known:
            return None, ()
        now = math.inf if last else time.monotonic()
        return self.keepsakes.asked(step, last=last), self.keepsakes.kept(now)

    def waits_for_comparison(self, verified: int) -> bool:
        """Whether something is kept that members may still go back behind."""
        self.keepsakes.safe(verified)
        return self.keepsakes.newest > verified

    def go_back(self, step: int) -> None:
        self.keepsakes.go_back(step)

    def _write_kept(self, save: core.Save) -> None:
        """All of the state is there already; write the own share of it."""
        job = self._job = SaveJob(save, self._replica)
        share = self.keepsakes.share(save.step, save.writers.index(self._replica), len(save.writers))
        self._driver.says_of_saves(self.said())
        if share is None:
            # It was kept when the own part was sent, and has been given up since.
            self._driver.done(GaveUp(save, "the state is not kept any more"), time.monotonic())
            return
        job.share, job.image, job.names = share, share.image, self.keepsakes.names(save.step)
        self._try_to(lambda: self._write(job), job)

    def _ended_named(self, job: SaveJob, ended: core.Ended) -> None:
        """A save of a state that was kept is over."""
        now = time.monotonic()
        # Others may have saved the same state before, in other chunks.
        self._writing.known = None
        if ended.committed:
            self.saved_step = max(self.saved_step, job.save.step)
            self._saved_at, self.trouble = now, ""
            self.keepsakes.saved(job.save.step, job.names)
            named = ", ".join(job.names)
            self._say(logging.INFO, f"the state after step {job.save.step} is saved as {named}")
            if job.manifest is not None:
                self._tending.begin(job.manifest, job.era(job.manifest.claim))
            return
        if ended.reason != self.keepsakes.trouble:
            named = ", ".join(job.names)
            again = f"the checkpoint of step {job.save.step} ({named}) is tried again: {ended.reason}"
            self._say(logging.WARNING, again)
        self.keepsakes.failed(ended.reason, now, again=ended.again)

    @property
    def idle(self) -> bool:
        return self._job is None and not self._tending.busy

    def due(self, applied: int, now: float, *, chosen: bool | None = None) -> core.Save | None:
        """A share to copy now, while the model holds the state after that step. `chosen`: whether members
        compare it; None if they compare none."""
        self._lose_patience(now)
        follows = self._is_shadow(self._replica) and self._held.known and not self._taken
        idle = self._job is None and not self._thread.unfinished
        idle = idle and applied > self.saved_step and chosen is not False
        if follows and idle and self._cadence.wants(applied, now):
            self._driver.done(Decided(applied, alone=True, gated=bool(chosen)), now)
        if self._due is None or self._due.step > applied:
            return None
        save, self._due = self._due, None
        if save.step < applied:
            self._driver.done(GaveUp(save, "the state has changed since"), now)
            return None
        return save if self._job is not None and self._job.save == save else None

    def _lose_patience(self, now: float) -> None:
        """Give up what would wait for ever."""
        job = self._job
        if job is not None and (reason := job.overdue(now, self._last_at)):
            self._driver.done(GaveUp(job.save, reason), now)

    def keep_due(self, applied: int) -> bool:
        """Whether to copy the whole state now, for a name."""
        return self.keepsakes.due(applied) is not None

    def said(self) -> str:
        """How checkpoints stand, for people."""
        saved = f"step {self.saved_step} saved" if self.saved_step >= 0 else "nothing saved yet"
        if self._taken:
            return f"{saved}; no more checkpoints: {self._taken}"
        if self.trouble:
            return f"{saved}; the last try failed: {self.trouble}"
        return f"{saved}; saving step {self._job.save.step}" if self._job is not None else saved

    # In the training thread, without the lock.

    def copy(self, save: core.Save, overrides: dict[int, Tensor]) -> None:
        """Begin to copy the own share of the state as it is now."""
        job = self._job
        if job is None or job.save != save:
            return
        crash.reach("copying", save.step)
        begun = time.perf_counter()
        try:
            self._writing.begin_copy(job, overrides)
        except (MemoryError, RuntimeError, OSError) as error:
            # There is no room for it, most likely.
            self._fail(job, f"the training state could not be copied: {error}")
            return
        job.held_s += time.perf_counter() - begun
        with self._changed:
            self._try_to(lambda: self._write(job), job)

    def settle(self) -> None:
        """The state is about to change: let the copy be complete."""
        self.keepsakes.settle()
        job = self._job
        if job is not None and job.share is not None:
            begun = time.perf_counter()
            job.share.settle()
            job.held_s += time.perf_counter() - begun

    def begin(
        self,
        lineage: int,
        intents: Iterable[Intent],
        gathering: Gathering,
        founded: Callable[[], int],
        may_claim: Callable[[], int | None],
        may_begin: Callable[[Claim], bool],
        awaits_room: Callable[[], bool],
    ) -> Beginning:
        """What the lineage begins with; takes as long as reading a checkpoint does."""
        found = find_beginning(
            self._tiers,
            run=self._run,
            lineage=lineage,
            intents=tuple(intents),
            process=self._process,
            gathering=gathering,
            founded=founded,
            may_claim=may_claim,
            may_begin=may_begin,
            awaits_room=awaits_room,
        )
        self._claimed = found.claim
        if found.manifest is not None:
            foreign = found.manifest.run != self._run
            said = f", made by the run {found.manifest.run}, and trusted by its seal alone" if foreign else ""
            log.info("the run goes on from the checkpoint of step %d%s", found.manifest.step, said)
        self.saved_step = found.manifest.step if found.manifest is not None else -1
        self._writing.known = {c.hash: c for c in found.manifest.chunks} if found.manifest is not None else {}
        return found

    def read_for(
        self, request: ReadRequest, send: Callable[[int, memoryview], None], wanted: Callable[[], bool]
    ) -> None:
        """Read some chunks for the founder of the lineage."""
        read_for(self._tiers, request, send, wanted)

    def stands(self, step: int) -> None:
        """Under the lock: this replica holds the state after that step now, and the claim with it."""
        # What was kept for a name is of another lineage, or of a life that is over.
        self.keepsakes.clear()
        # Whoever has taken over from the claim before, this is another one.
        self._taken, self._failed_step = "", NO_STEP
        self._saved_at = time.monotonic()
        claim = self._held.claim
        if claim is not None and claim != self._stood_under:
            # What the lineage began with is saved, though this replica may not have been the one to read it;
            # and what was saved under another claim is not what this one goes on from.
            base = checkpoint_of(claim.base or "")
            self._stood_under, self.saved_step = claim, base.step if base is not None else NO_STEP
        self._cadence.decided(step)
        self._beat()

    def was_given(self, step: int) -> None:
        """Under the lock: others have given it that state. What they have saved and deleted meanwhile, it
        does not know."""
        self._writing.known = None
        self.stands(step)

    def close(self, *, clean: bool) -> None:
        """Stop; a save that is under way is given up."""
        with self._changed:
            self._thread.close()
            job, self._job = self._job, None
        if job is not None:
            job.give_up("this replica has ended")
        self._occupying.end(clean=clean, claimed=self._claimed if self._alone else None)
        self._stopped.set()
        self._thread.end()

    # In the saving thread.

    def _try_to(self, work: Callable[[], None], job: SaveJob) -> None:
        """Under the lock: have it done; whatever goes wrong ends this save."""
        self._thread.do(lambda: self._try(work, job))

    def _try(self, work: Callable[[], None], job: SaveJob) -> None:
        begun_s = time.thread_time()
        try:
            if not job.cancelled.is_set():
                work()
        except SaveGivenUp:
            pass
        except (OutlastError, OSError, MemoryError) as error:
            self._fail(job, str(error), taken=isinstance(error, VaultTaken))
        except Exception as error:
            log.exception("saving step %d failed in an unforeseen way", job.save.step)
            self._fail(job, f"{type(error).__name__}: {error}")
        finally:
            job.worked_s += time.thread_time() - begun_s

    def _fail(self, job: SaveJob, reason: str, *, taken: bool = False) -> None:
        with self._changed:
            if taken:
                self._taken = reason
            if isinstance(job.share, Share) and job.share.void:
                self.keepsakes.forget(job.save.step)
            self._driver.done(GaveUp(job.save, reason), time.monotonic())

    def _write(self, job: SaveJob) -> None:
        payload = self._writing.write(job)
        with self._changed:
            if not job.save.named:
                self._writing.written(job)
            if self._job is not job:
                # Given up; and after members have gone back, another one may be at the same step.
                return
            job.written_at = time.monotonic()
            self._driver.done(Written(job.save, payload), time.monotonic())

    def _make_manifest(self, job: SaveJob, stripes: dict[int, bytes]) -> None:
        intent = self._writing.make_manifest(job, stripes)
        with self._changed:
            self._driver.done(Sealed(job.save, intent), time.monotonic())

    def _commit(self, job: SaveJob) -> None:
        self._writing.commit(job)
        with self._changed:
            self._driver.done(Committed(job.save), time.monotonic())

    # Under the lock again: what came of it.

    def _ended(self, ended: core.Ended) -> None:
        job = self._job
        if job is None or job.save != ended.save:
            return
        self._job, self._due = None, None
        job.cancelled.set()
        if job.save.named:
            self._ended_named(job, ended)
        else:
            self._ended_unnamed(job, ended)
        self._driver.says_of_saves(self.said())
        self._changed.notify_all()
        if self._finals.last != NO_STEP:
            self._save_rest()

    def _ended_unnamed(self, job: SaveJob, ended: core.Ended) -> None:
        if ended.committed:
            self.saved_step = max(self.saved_step, job.save.step)
            self._saved_at, self.trouble = time.monotonic(), ""
            self._say(
                logging.INFO,
                f"the checkpoint of step {job.save.step} is committed, {self._saved_at - job.began_at:.3f} s "
                f"after it was decided; training was held for {job.held_s:.4f} s; {job.worked_s:.3f} s of "
                f"CPU time and {job.new_bytes} bytes were written here",
            )
            self._writing.known = {row.hash: row for row in job.rows}
            if job.manifest is not None:
                self._tending.begin(job.manifest, job.era(job.manifest.claim))
        else:
            # It may have been committed all the same, and what was known to be stored deleted.
            self._writing.known = None
            job.give_up(ended.reason)
            if ended.reason != self.trouble:
                given_up = f"the checkpoint of step {job.save.step} was given up: {ended.reason}"
                self._say(logging.WARNING, given_up)
            self.trouble = ended.reason
            if not ended.again:
                self._failed_step = job.save.step
        self._pace.save_ended()
        self._cadence.ended(
            time.monotonic(), committed=ended.committed, held_s=job.held_s, worked_s=job.worked_s
        )

    def _commits(self) -> bool:
        """Whether this replica is still the one to write: nobody else deletes or copies then. One that was
        stopped for a while may have been evicted; so it has to have heard from the coordinator lately."""
        fresh = self._alone or time.monotonic() - self.heard_at < self._evicted_within_s
        if self._is_shadow(self._replica):
            return fresh and self._view.learner(self._replica) is not None
        return fresh and self._view.chief == self._replica and self._driver.member.is_member

    def _beat(self) -> None:
        """The chief says for all of the run that its claim is held."""
        self._occupying.hold(self._held.claim if self._view.chief == self._replica else None)
