"""Carrying out saves: copies, stripes, manifests, and what a lineage begins with.

    training thread        copies its share of the state (`copying`), while the next step computes
    saving thread          writes chunks; as the committer makes and puts the manifest; prunes; fills tiers
    whoever brings events  tells the core (`protocol/saving.py`) under the engine's lock

A storage that is away, full or slow costs checkpoints, never training: whatever goes wrong in the saving
thread ends one save, is said once, and the next save is tried a little later. Nobody waits for ever: neither
for the coordinator's leave to commit, nor at the end of a run for the others, nor to be let go.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from outlast import crashpoints as crash
from outlast.errors import OutlastError, SaveGivenUp, StorageError, VaultTaken
from outlast.protocol import saving as core
from outlast.protocol.participant import Action, Participant
from outlast.protocol.views import Intent, View
from outlast.state.contents import Image
from outlast.state.storage.opening import is_remote
from outlast.state.training import TrainingState
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter
from outlast.state.vault.manifest import RAW, ZSTD_SHUFFLE, Chunk, Claim, Manifest
from outlast.state.vault.names import Era, checkpoint_of
from outlast.state.vault.occupancy import Beating, Process, note_end
from outlast.state.vault.pruning import prune
from outlast.state.vault.retention import Keep
from outlast.state.vault.vault import Vault
from outlast.train.cadence import Cadence, Every
from outlast.train.claims import HeldClaim
from outlast.train.copying import Room, ShareCopy
from outlast.train.gathering import Gathering, ReadRequest, read_for
from outlast.train.pace import Pace
from outlast.train.restoring import Beginning, find_beginning
from outlast.train.stripes import StripeNote, put_together, share_of
from outlast.train.tiers import Tiers

log = logging.getLogger(__name__)

WRITING_THREADS = 2
SENDING_THREADS = 6
"""To a disk, a few threads are as fast as many and take less from training; to a server, they mostly wait."""

FINAL_TRIES = 3
INTENT_WITHIN_S = 60.0
"""A coordinator that is away comes back sooner. It does not answer at all where members went back behind a
step whose checkpoint is on record."""

OTHERS_WITHIN_S = 60.0
OTHERS_SLOWER = 3.0
"""At the end of a run, one whose share is durable waits so long for the others', or so many times as long as
its own took."""

SHADOW_WITHIN_S = 60.0
SHADOW_INTERVALS = 4.0
"""Members save by themselves if their shadow has not for so long, or for so many times the usual interval."""

NO_STEP = -1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the script says about its checkpoints."""

    every: Every = "auto"
    keep: Keep = field(default_factory=Keep)
    compress: bool = False


class _Job:
    """One save in this process."""

    def __init__(self, save: core.Save) -> None:
        self.save = save
        self.cancelled = threading.Event()
        self.share: ShareCopy | None = None
        self.image: Image | None = None
        self.rows: list[Chunk] = []
        self.manifest: Manifest | None = None
        self.new_bytes = 0
        self.held_s = 0.0
        self.worked_s = 0.0
        self.room = Room()
        self.began_at = time.monotonic()
        self.written_at: float | None = None
        self.intended_at: float | None = None
        self.committing = False


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
        self._settings = settings
        self._state = state
        self._held = claim
        self._shards = shards
        self._changed = changed
        self._stopped = stopped
        self._participant: Participant
        self._act: Callable[[Iterable[Action]], None]
        self._alone = True
        self._evicted_within_s = 0.0
        self.heard_at = -math.inf
        """When the coordinator last said something."""
        self._leave_within_s = leave_within_s
        self._is_shadow = is_shadow
        self._cadence = Cadence(settings.every, time.monotonic())
        self._pace = Pace()
        self._room: Room | None = Room()
        """Where the next copy is made, unless somebody may still read or write there."""
        self._due: core.Save | None = None
        self._job: _Job | None = None
        self._known: dict[str, Chunk] | None = None
        """Chunks of the newest checkpoint that this replica need not write again."""
        self._view = View()
        self._busy = 0
        """Work of the saving thread that a save must not overlap: pruning, filling tiers."""
        self._unfinished = 0
        """All work that the saving thread has not come to the end of, also of saves that were given up."""
        self._hurry_since: int | None = None
        self._hurry_until = 0.0
        self._last_step = NO_STEP
        """The last step of the run, once all have done it."""
        self._last_at = 0.0
        self._final_tries = 0
        self._failed_step = NO_STEP
        """The step whose save was given up last because something could not be done."""
        self._beating: Beating | None = None
        self._beats_for: Claim | None = None
        self._stood_under: Claim | None = None
        self._claimed: Claim | None = None
        self._closed = False
        self._taken = ""
        self.saved_step = -1
        self._saved_at = 0.0
        self.trouble = ""
        """Why the newest save that ended was not committed; empty if it was."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def directed_by(
        self,
        participant: Participant,
        act: Callable[[Iterable[Action]], None],
        *,
        alone: bool,
        evicted_within_s: float,
    ) -> None:
        """Who decides, and who carries out what follows from that; and how soon a silent replica is
        evicted."""
        self._participant, self._act, self._alone = participant, act, alone
        self._evicted_within_s = evicted_within_s

    # Under the lock: what the core wants done, and what the engine asks.

    def do(self, action: core.SaveAction) -> None:
        match action:
            case _ if self._closed:
                pass
            case core.Copy():
                self._due = action.save
                self._job = _Job(action.save)
                self._cadence.decided(action.save.step)
                self._participant.member.saving = self.said()
                self._pace.save_decided()
            case core.Intend() if self._job is not None:
                job = self._job
                job.intended_at = time.monotonic()
                self._enqueue(lambda: self._try(job, lambda: self._make_manifest(job, action.stripes)))
            case core.Commit() if self._job is not None:
                job = self._job
                self._enqueue(lambda: self._try(job, lambda: self._commit(job)))
            case core.Ended():
                self._ended(action)
            case core.SavedByOther():
                self.saved_step, self._saved_at, self.trouble = action.step, time.monotonic(), ""
                self._known = None
                self._participant.member.saving = self.said()
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
        if self._job is not None or self._unfinished:
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
        if self._taken or not self._held.known or not self._participant.member.is_member:
            return True
        now = time.monotonic()
        if self._hurry_since is None:
            self._hurry_since, self._hurry_until = applied, now + self._leave_within_s
        failed = self._failed_step >= self._hurry_since
        return self.saved_step >= self._hurry_since or failed or now >= self._hurry_until

    def finish(self, step: int) -> None:
        """All have left the loop of steps and hold the state after this one, the last."""
        self._last_step, self._last_at = step, time.monotonic()
        if self._job is None:
            self._save_last()

    def _save_last(self) -> None:
        """See to it that the last state is saved, or say that it is not."""
        step, why = self._last_step, self._taken or self.trouble
        if step <= self.saved_step or not self._held.known:
            return
        if self._taken or self._failed_step == step or self._final_tries == FINAL_TRIES:
            newest = f"step {self.saved_step}" if self.saved_step >= 0 else "none"
            log.error("the state after the last step, %d, is NOT saved: %s (saved: %s)", step, why, newest)
            return
        self._final_tries += 1
        self._act(self._participant.save_decided(step, self._view.number, time.monotonic()))

    @property
    def idle(self) -> bool:
        return self._job is None and not self._busy

    def due(self, applied: int, now: float, *, chosen: bool | None = None) -> core.Save | None:
        """A share to copy now, while the model holds the state after that step. `chosen`: whether members
        compare it; None if they compare none."""
        self._lose_patience(now)
        follows = self._is_shadow(self._replica) and self._held.known and not self._taken
        idle = self._job is None and not self._unfinished
        idle = idle and applied > self.saved_step and chosen is not False
        if follows and idle and self._cadence.wants(applied, now):
            self._act(self._participant.save_alone(applied, now, gated=bool(chosen)))
        if self._due is None or self._due.step > applied:
            return None
        save, self._due = self._due, None
        if save.step < applied:
            self._act(self._participant.save_failed(save.step, "the state has changed since", now))
            return None
        return save if self._job is not None and self._job.save == save else None

    def _lose_patience(self, now: float) -> None:
        """Give up what would wait for ever."""
        job = self._job
        if job is None:
            return
        reason = ""
        if job.intended_at is not None and job.manifest is not None and not job.committing:
            if now - job.intended_at > INTENT_WITHIN_S:
                reason = f"the coordinator did not allow it within {INTENT_WITHIN_S:g} s"
        elif job.written_at is not None and self._last_step != NO_STEP and job.intended_at is None:
            own_s = job.written_at - job.began_at
            if now - max(job.written_at, self._last_at) > max(OTHERS_WITHIN_S, OTHERS_SLOWER * own_s):
                reason = f"replica {self._replica} has waited too long for the others"
        if reason:
            self._act(self._participant.save_failed(job.save.step, reason, now))

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
            self._begin_copy(job, overrides)
        except (MemoryError, RuntimeError, OSError) as error:
            # There is no room for it, most likely.
            self._fail(job, f"the training state could not be copied: {error}")
            return
        job.held_s += time.perf_counter() - begun
        with self._changed:
            self._enqueue(lambda: self._try(job, lambda: self._write(job)))

    def _begin_copy(self, job: _Job, overrides: dict[int, Tensor]) -> None:
        save = job.save
        image, tensors = self._state.capture(overrides)
        ranges = chunk_ranges(image)
        place = save.writers.index(self._replica)
        lasting = self._state.lasting(overrides)
        with self._changed:
            # Whatever still copies or writes for a save that was given up has the room for itself.
            if self._room is not None:
                job.room, self._room = self._room, None
        share = ShareCopy(
            image,
            tensors,
            share_of(ranges, place, len(save.writers)),
            job.room,
            lasting=lambda tensor: id(tensor) in lasting,
        )
        with self._changed:
            job.image, job.share = image, share
            if job.cancelled.is_set():
                share.give_up("it was given up while it began")
        share.start()

    def settle(self) -> None:
        """The state is about to change: let the copy be complete."""
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
        may_claim: Callable[[], int | None],
    ) -> Beginning:
        """What the lineage begins with; takes as long as reading a checkpoint does."""
        found = find_beginning(
            self._tiers,
            run=self._run,
            lineage=lineage,
            intents=tuple(intents),
            process=self._process,
            gathering=gathering,
            may_claim=may_claim,
        )
        self._claimed = found.claim
        if found.manifest is not None:
            foreign = found.manifest.run != self._run
            said = f", made by the run {found.manifest.run}, and trusted by its seal alone" if foreign else ""
            log.info("the run goes on from the checkpoint of step %d%s", found.manifest.step, said)
        self.saved_step = found.manifest.step if found.manifest is not None else -1
        self._known = {c.hash: c for c in found.manifest.chunks} if found.manifest is not None else {}
        return found

    def read_for(
        self, request: ReadRequest, send: Callable[[int, memoryview], None], wanted: Callable[[], bool]
    ) -> None:
        """Read some chunks for the founder of the lineage."""
        read_for(self._tiers, request, send, wanted)

    def stands(self, step: int) -> None:
        """Under the lock: this replica holds the state after that step now, and the claim with it."""
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
        self._known = None
        self.stands(step)

    def close(self, *, clean: bool) -> None:
        """Stop; a save that is under way is given up."""
        with self._changed:
            self._closed = True
            job, self._job = self._job, None
            beating, self._beating = self._beating, None
        if job is not None:
            job.cancelled.set()
            if job.share is not None:
                job.share.give_up("this replica has ended")
        if beating is not None:
            beating.end(clean=clean)
        elif self._alone and self._claimed is not None:
            # Nobody has begun under it, and this process may live on.
            with contextlib.suppress(StorageError):
                note_end(self._tiers.first.storage, self._claimed)
        self._stopped.set()
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout=1.0)

    # The saving thread.

    def _enqueue(self, work: Callable[[], None]) -> None:
        """Under the lock."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="outlast-saving", daemon=True)
            self._thread.start()
        self._unfinished += 1
        self._work.put(work)

    def _run_thread(self) -> None:
        # No less important than training: what it computes has to be computed once in any case, and a save
        # that gets the rest of busy cores takes many times as long, and from training no less than a short
        # one.
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("the saving thread met with something unforeseen, and goes on")
            finally:
                # What the work held on to, such as a copy of the state, goes with it.
                del work
                with self._changed:
                    self._unfinished -= 1
                    self._changed.notify_all()

    def _try(self, job: _Job, work: Callable[[], None]) -> None:
        """Do it; whatever goes wrong ends this save."""
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

    def _fail(self, job: _Job, reason: str, *, taken: bool = False) -> None:
        with self._changed:
            if taken:
                self._taken = reason
            self._act(self._participant.save_failed(job.save.step, reason, time.monotonic()))

    def _write(self, job: _Job) -> None:
        assert job.share is not None and job.image is not None
        storage = self._tiers.first.storage
        known = self._known
        if known is None:
            known = self._tiers.first.known_chunks(under=self._held.claim)
        codec = ZSTD_SHUFFLE if self._settings.compress else RAW
        threads = SENDING_THREADS if is_remote(storage.url) else WRITING_THREADS
        assert self._held.claim is not None
        era = _era(self._held.claim.number, job.save)
        if self._held.elsewhere:
            # What the run goes on from is not known to be whole here; what it has written itself is.
            known = {d: chunk for d, chunk in known.items() if chunk.era.startswith(f"{era.claim}-")}
        writer = ChunkWriter(storage, known, codec=codec, era=era, threads=threads, cancelled=job.cancelled)
        job.rows = writer.write(job.share.parts())
        job.new_bytes = writer.written_bytes
        crash.reach("written", job.save.step)
        note = StripeNote(job.image.digest, socket.gethostname(), writer.written_bytes, tuple(job.rows))
        with self._changed:
            # All went well, so nobody copies to this room or reads from it any more.
            self._room = job.room
            if self._job is not job:
                # Given up; and after members have gone back, another one may be at the same step.
                return
            job.written_at = time.monotonic()
            payload = msgspec.msgpack.encode(note)
            self._act(self._participant.stripe_written(job.save.step, payload, time.monotonic()))

    def _make_manifest(self, job: _Job, stripes: dict[int, bytes]) -> None:
        assert job.image is not None and self._held.claim is not None
        job.manifest = put_together(
            job.save,
            job.image,
            stripes,
            run=self._run,
            claim=self._held.claim,
            shards=self._shards,
        )
        intent = Intent(step=job.save.step, lineage=job.save.lineage, seal=job.manifest.seal)
        crash.reach("intending", job.save.step)
        with self._changed:
            now = time.monotonic()
            decide = self._participant.allowed if self._alone else self._participant.intends
            self._act(decide(intent, now))

    def _commit(self, job: _Job) -> None:
        assert job.manifest is not None
        job.committing = True
        crash.reach("committing", job.save.step)
        self._tiers.first.commit(job.manifest)
        crash.reach("committed", job.save.step)
        with self._changed:
            self._act(self._participant.save_committed(job.save.step, time.monotonic()))

    def _ended(self, ended: core.Ended) -> None:
        """Under the lock."""
        job = self._job
        if job is None or job.save != ended.save:
            return
        self._job, self._due = None, None
        job.cancelled.set()
        if ended.committed:
            self.saved_step, self._saved_at, self.trouble = job.save.step, time.monotonic(), ""
            log.info(
                "the checkpoint of step %d is committed, %.3f s after it was decided; training was held for "
                "%.4f s; %.3f s of CPU time and %d bytes were written here",
                job.save.step,
                self._saved_at - job.began_at,
                job.held_s,
                job.worked_s,
                job.new_bytes,
            )
            self._known = {row.hash: row for row in job.rows}
            if job.manifest is not None:
                self._afterwards(job.manifest, _era(job.manifest.claim, job.save))
        else:
            # It may have been committed all the same, and what was known to be stored deleted.
            self._known = None
            if job.share is not None:
                job.share.give_up(ended.reason)
            if ended.reason != self.trouble:
                log.warning("the checkpoint of step %d was given up: %s", job.save.step, ended.reason)
            self.trouble = ended.reason
            if not ended.again:
                self._failed_step = job.save.step
        self._pace.save_ended()
        self._cadence.ended(
            time.monotonic(), committed=ended.committed, held_s=job.held_s, worked_s=job.worked_s
        )
        self._participant.member.saving = self.said()
        self._changed.notify_all()
        if self._last_step != NO_STEP:
            self._save_last()

    def _afterwards(self, manifest: Manifest, era: Era) -> None:
        """The committer makes room, and fills the other tiers. No save begins meanwhile."""

        def work() -> None:
            try:
                for vault in self._tiers.vaults:
                    self._tend(vault, manifest, era)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

        self._busy += 1
        self._enqueue(work)

    def _tend(self, vault: Vault, manifest: Manifest, era: Era) -> None:
        try:
            if vault is not self._tiers.first:
                self._tiers.replicate(manifest, vault, self._commits)
            prune(vault, self._settings.keep, claim=manifest.claim, era=era, wanted=self._commits)
        except SaveGivenUp:
            pass
        except Exception as error:
            where = vault.storage.url
            log.warning("after the checkpoint of step %d, at %s: %s", manifest.step, where, error)

    def _commits(self) -> bool:
        """Whether this replica is still the one to write: nobody else deletes or copies then. One that was
        stopped for a while may have been evicted; so it has to have heard from the coordinator lately."""
        fresh = self._alone or time.monotonic() - self.heard_at < self._evicted_within_s
        if self._is_shadow(self._replica):
            return fresh and self._view.learner(self._replica) is not None
        return fresh and self._view.chief == self._replica and self._participant.member.is_member

    def _beat(self) -> None:
        """The chief says for all of the run that its claim is held."""
        claim = self._held.claim if self._view.chief == self._replica else None
        if self._closed or claim == self._beats_for:
            return
        if self._beating is not None:
            beating, self._beating = self._beating, None
            self._enqueue(lambda: beating.end(clean=False))
        self._beats_for = claim
        if claim is not None:
            self._beating = Beating(self._tiers.first.storage, claim, self._process)


def _era(claim: int, save: core.Save) -> Era:
    return Era(claim, save.view, save.committer)
