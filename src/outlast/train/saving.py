"""Carrying out saves: copies, stripes, manifests, and what a lineage begins with.

    training thread        copies its share of the state (`copying`), while the next step computes
    saving thread          writes chunks; as the committer makes and puts the manifest; prunes; fills tiers
    whoever brings events  tells the core (`protocol/saving.py`) under the engine's lock

A storage that is away, full or slow costs checkpoints, never training: whatever goes wrong in the saving
thread ends one save, is said once, and the next save is tried a little later.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import version

import msgspec
import torch
from torch import Tensor

from outlast import crashpoints as crash
from outlast.errors import CheckpointError, OutlastError, ProtocolError, SaveGivenUp, VaultTaken
from outlast.protocol import saving as core
from outlast.protocol.participant import Action, Participant
from outlast.protocol.views import Intent, View
from outlast.state.contents import Image
from outlast.state.training import TrainingState
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter
from outlast.state.vault.manifest import RAW, ZSTD_SHUFFLE, Chunk, Manifest, sealed
from outlast.state.vault.occupancy import Beating, Process
from outlast.state.vault.pruning import prune
from outlast.state.vault.retention import Keep
from outlast.state.vault.vault import now_as_text
from outlast.train.cadence import Cadence, Every
from outlast.train.claims import HeldClaim
from outlast.train.copying import Room, ShareCopy
from outlast.train.pace import Pace
from outlast.train.restoring import Beginning, find_beginning
from outlast.train.tiers import Tiers

log = logging.getLogger(__name__)

WRITING_THREADS = 2
FINAL_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the script says about its checkpoints."""

    every: Every = "auto"
    keep: Keep = field(default_factory=Keep)
    compress: bool = False


class StripeNote(msgspec.Struct, frozen=True, array_like=True):
    """What a writer tells the committer: where its share is, and of which state."""

    image: str
    """The digest of the table of contents: all writers must have copied the same state."""
    host: str
    new_bytes: int
    chunks: tuple[Chunk, ...]


_NOTES = msgspec.msgpack.Decoder(StripeNote)


class _Job:
    """One save in this process."""

    def __init__(self, save: core.Save) -> None:
        self.save = save
        self.cancelled = threading.Event()
        self.share: ShareCopy | None = None
        self.image: Image | None = None
        self.rows: list[Chunk] = []
        self.manifest: Manifest | None = None
        self.decided_at = time.monotonic()
        self.new_bytes = 0
        self.held_s = 0.0
        self.worked_s = 0.0


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
        self._cadence = Cadence(settings.every, time.monotonic())
        self._pace = Pace()
        self._room = Room()
        self._due: core.Save | None = None
        self._job: _Job | None = None
        self._known: dict[str, Chunk] | None = None
        """Chunks of the newest checkpoint that this replica need not write again."""
        self._view = View()
        self._busy = 0
        """Work of the saving thread that a save must not overlap: pruning, filling tiers."""
        self._hurry_since: int | None = None
        self._final_tries = 0
        self._last_step = -1
        self._beating: Beating | None = None
        self._taken = ""
        self.saved_step = -1
        self._saved_at = 0.0
        self.trouble = ""
        """Why the newest save that ended was not committed; empty if it was."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def directed_by(
        self, participant: Participant, act: Callable[[Iterable[Action]], None], *, alone: bool
    ) -> None:
        """Who decides, and who carries out what follows from that."""
        self._participant, self._act, self._alone = participant, act, alone

    # Under the lock: what the core wants done, and what the engine asks.

    def do(self, action: core.SaveAction) -> None:
        match action:
            case core.Copy():
                self._due = action.save
                self._job = _Job(action.save)
                self._cadence.decided(action.save.step)
                self._pace.save_decided()
            case core.Intend() if self._job is not None:
                job = self._job
                self._enqueue(lambda: self._try(job, lambda: self._make_manifest(job, action.stripes)))
            case core.Commit() if self._job is not None:
                job = self._job
                self._enqueue(lambda: self._try(job, lambda: self._commit(job)))
            case core.Ended():
                self._ended(action)
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
        if self._job is not None or self._busy:
            return 2
        hurries = self._hurry_since is not None and self.saved_step < self._hurry_since
        return 1 if hurries or self._cadence.wants(step, now) else 0

    def hurry(self, applied: int) -> bool:
        """This replica is to leave: have the state saved first. Whether that is settled."""
        if self._taken or not self._held.known:
            return True
        if self._hurry_since is None:
            self._hurry_since = applied
        return self.saved_step >= self._hurry_since or bool(self.trouble and self._job is None)

    def finish(self, step: int) -> None:
        """All have left the loop of steps and hold the state after this one, the last."""
        self._last_step = step
        if step > self.saved_step and not self._taken and self._held.known and self._job is None:
            self._final_tries += 1
            self._act(self._participant.save_decided(step, self._view.number, time.monotonic()))

    @property
    def idle(self) -> bool:
        return self._job is None and not self._busy

    def due(self, applied: int) -> core.Save | None:
        """A share to copy now, while the model holds the state after that step."""
        if self._due is None or self._due.step > applied:
            return None
        save, self._due = self._due, None
        return save if self._job is not None and self._job.save == save else None

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
        image, tensors = self._state.capture(overrides)
        ranges = chunk_ranges(image)
        place = save.writers.index(self._replica)
        lasting = self._state.lasting(overrides)
        job.image = image
        job.share = ShareCopy(
            image,
            tensors,
            _mine(ranges, place, len(save.writers)),
            self._room,
            lasting=lambda tensor: id(tensor) in lasting,
        )
        job.share.start()
        job.held_s += time.perf_counter() - begun
        self._enqueue(lambda: self._try(job, lambda: self._write(job)))

    def settle(self) -> None:
        """The state is about to change: let the copy be complete."""
        job = self._job
        if job is not None and job.share is not None:
            begun = time.perf_counter()
            job.share.settle()
            job.held_s += time.perf_counter() - begun

    def begin(self, lineage: int, intents: Iterable[Intent]) -> Beginning:
        """What the lineage begins with; takes as long as reading a checkpoint does."""
        found = find_beginning(
            self._tiers, run=self._run, lineage=lineage, intents=tuple(intents), process=self._process
        )
        if found.manifest is not None:
            foreign = found.manifest.run != self._run
            said = f", made by the run {found.manifest.run}, and trusted by its seal alone" if foreign else ""
            log.info("the run goes on from the checkpoint of step %d%s", found.manifest.step, said)
        self.saved_step = found.manifest.step if found.manifest is not None else -1
        self._known = {c.hash: c for c in found.manifest.chunks} if found.manifest is not None else {}
        return found

    def stands(self, step: int) -> None:
        """Under the lock: this replica holds the state after that step now, and the claim with it."""
        self._cadence.decided(step)
        self._beat()

    def close(self, *, clean: bool) -> None:
        """Stop; a save that is under way is given up."""
        with self._changed:
            job, self._job = self._job, None
            beating, self._beating = self._beating, None
        if job is not None:
            job.cancelled.set()
            if job.share is not None:
                job.share.give_up("this replica has ended")
        if beating is not None:
            beating.end(clean=clean)
        self._stopped.set()
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout=1.0)

    # The saving thread.

    def _enqueue(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_thread, name="outlast-saving", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run_thread(self) -> None:
        # No less important than training: what it computes has to be computed once in any case, and a save
        # that gets the rest of busy cores takes many times as long, and from training no less than a short
        # one.
        while (work := self._work.get()) is not None:
            work()

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
        known = self._known if self._known is not None else self._tiers.first.known_chunks()
        codec = ZSTD_SHUFFLE if self._settings.compress else RAW
        writer = ChunkWriter(storage, known, codec=codec, threads=WRITING_THREADS, cancelled=job.cancelled)
        job.rows = writer.write(job.share.parts())
        job.new_bytes = writer.written_bytes
        crash.reach("written", job.save.step)
        note = StripeNote(job.image.digest, socket.gethostname(), writer.written_bytes, tuple(job.rows))
        with self._changed:
            payload = msgspec.msgpack.encode(note)
            self._act(self._participant.stripe_written(job.save.step, payload, time.monotonic()))

    def _make_manifest(self, job: _Job, stripes: dict[int, bytes]) -> None:
        assert job.image is not None
        notes = {replica: _decoded(replica, payload) for replica, payload in stripes.items()}
        strangers = sorted(replica for replica, note in notes.items() if note.image != job.image.digest)
        if strangers:
            raise CheckpointError(
                f"replica {strangers[0]} holds another state after step {job.save.step} than replica "
                f"{self._replica}: the checkpoint would be a mixture"
            )
        job.manifest = sealed(
            Manifest(
                step=job.save.step,
                claim=self._held.number,
                base=self._held.base,
                run=self._run,
                lineage=job.save.lineage,
                view=job.save.view,
                saved_at=now_as_text(),
                writers={str(replica): note.host for replica, note in sorted(notes.items())},
                versions={"outlast": version("outlast"), "torch": str(torch.__version__)},
                replicas=len(notes),
                shards=self._shards,
                tensor_bytes=sum(entry.size_bytes for entry in job.image.entries),
                new_bytes=sum(note.new_bytes for note in notes.values()),
                chunks=tuple(sorted((c for n in notes.values() for c in n.chunks), key=lambda c: c.start)),
                image=job.image,
            )
        )
        intent = Intent(step=job.save.step, lineage=job.save.lineage, seal=job.manifest.seal)
        crash.reach("intending", job.save.step)
        with self._changed:
            now = time.monotonic()
            decide = self._participant.allowed if self._alone else self._participant.intends
            self._act(decide(intent, now))

    def _commit(self, job: _Job) -> None:
        assert job.manifest is not None
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
                self._saved_at - job.decided_at,
                job.held_s,
                job.worked_s,
                job.new_bytes,
            )
            self._known = {row.hash: row for row in job.rows}
            if job.manifest is not None:
                self._afterwards(job.manifest)
        else:
            if job.share is not None:
                job.share.give_up(ended.reason)
                # Somebody may still be writing from it, or hang while doing so.
                self._room = Room()
            if ended.reason != self.trouble:
                log.warning("the checkpoint of step %d was given up: %s", job.save.step, ended.reason)
            self.trouble = ended.reason
        self._pace.save_ended()
        self._cadence.ended(
            time.monotonic(), committed=ended.committed, held_s=job.held_s, worked_s=job.worked_s
        )
        self._participant.member.saving = self.said()
        if self._last_step >= 0 and self._final_tries < FINAL_TRIES:
            # An earlier save was under way when the last step was done, or the last one failed.
            self.finish(self._last_step)
        self._changed.notify_all()

    def _afterwards(self, manifest: Manifest) -> None:
        """The committer makes room, and fills the other tiers. No save begins meanwhile."""

        def work() -> None:
            try:
                for vault in self._tiers.vaults:
                    if vault is not self._tiers.first:
                        self._tiers.replicate(manifest, self._commits)
                    if self._commits():
                        prune(vault, self._settings.keep, claim=manifest.claim)
            except Exception as error:
                log.warning("after the checkpoint of step %d: %s", manifest.step, error)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

        self._busy += 1
        self._enqueue(work)

    def _commits(self) -> bool:
        """Whether this replica is still the one to write: nobody else deletes or copies then."""
        return self._view.chief == self._replica and self._participant.member.is_member

    def _beat(self) -> None:
        """The chief says for all of the run that its claim is held."""
        claim = self._held.claim
        if claim is not None and self._view.chief == self._replica and self._beating is None:
            self._beating = Beating(self._tiers.first.storage, claim, self._process)
        elif self._view.chief != self._replica and self._beating is not None:
            beating, self._beating = self._beating, None
            self._enqueue(lambda: beating.end(clean=False))


def _mine(ranges: list[range], place: int, count: int) -> list[range]:
    """A share of about the same size for each writer, in one piece: neighbours differ by one chunk."""
    total = sum(map(len, ranges))
    lo, hi = total * place // count, total * (place + 1) // count
    return [one for one in ranges if lo <= one.start < hi]


def _decoded(replica: int, payload: bytes) -> StripeNote:
    try:
        return _NOTES.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"what replica {replica} says of its stripe can not be read: {error}") from error
