"""The work of one save: a copy of the own share, its chunks in the storage, the manifest, the commit.

    begin_copy  in the training thread, as the state is now; the copy is made while the next step computes
    write       in the saving thread: the share's chunks, as far as they are not stored already
    manifest    in the saving thread of the committer: the shares of all, put together
    commit      likewise: from here on it is a checkpoint

When each is done, and what is told to whom afterwards, is for `saving.py` to say. Whatever goes wrong is
raised, and ends this save alone.
"""

from __future__ import annotations

import socket
import threading

import msgspec
from torch import Tensor

from outlast import crashpoints as crash
from outlast.protocol.views import Intent
from outlast.state.storage.opening import is_remote
from outlast.state.training import TrainingState
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter
from outlast.state.vault.manifest import RAW, ZSTD_SHUFFLE, Chunk
from outlast.train.claims import HeldClaim
from outlast.train.copying import Room, ShareCopy
from outlast.train.save_job import SaveJob
from outlast.train.stripes import StripeNote, put_together, share_of
from outlast.train.tiers import Tiers

WRITING_THREADS = 2
SENDING_THREADS = 6
"""To a disk, a few threads are as fast as many and take less from training; to a server, they mostly wait."""


class Writing:
    """Nothing is called under the engine's lock, unless it says so."""

    def __init__(
        self,
        *,
        replica: int,
        run: str,
        tiers: Tiers,
        compress: bool,
        state: TrainingState,
        claim: HeldClaim,
        shards: int,
        changed: threading.Condition,
    ) -> None:
        self._replica = replica
        self._run = run
        self._tiers = tiers
        self._compress = compress
        self._state = state
        self._held = claim
        self._shards = shards
        self._changed = changed
        self._room: Room | None = Room()
        """Where the next copy is made, unless somebody may still read or write there."""
        self.known: dict[str, Chunk] | None = None
        """Chunks of the newest checkpoint that this replica need not write again; None if it has to look."""

    def begin_copy(self, job: SaveJob, overrides: dict[int, Tensor]) -> None:
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

    def write(self, job: SaveJob) -> bytes:
        """What to tell the committer of the own share, which is durable now."""
        assert job.share is not None and job.image is not None and self._held.claim is not None
        storage = self._tiers.first.storage
        era = job.era(self._held.claim.number)
        known = self.known
        if known is None:
            known = self._tiers.first.known_chunks(under=self._held.claim)
        if self._held.elsewhere:
            # What the run goes on from is not known to be whole here; what it has written itself is.
            known = {digest: row for digest, row in known.items() if row.era.startswith(f"{era.claim}-")}
        writer = ChunkWriter(
            storage,
            known,
            codec=ZSTD_SHUFFLE if self._compress else RAW,
            era=era,
            threads=SENDING_THREADS if is_remote(storage.url) else WRITING_THREADS,
            cancelled=job.cancelled,
        )
        job.rows = writer.write(job.share.parts())
        job.new_bytes = writer.written_bytes
        crash.reach("written", job.save.step)
        note = StripeNote(job.image.digest, socket.gethostname(), writer.written_bytes, tuple(job.rows))
        return msgspec.msgpack.encode(note)

    def written(self, job: SaveJob) -> None:
        """Under the lock: all went well, so nobody copies to its room or reads from it any more."""
        self._room = job.room

    def make_manifest(self, job: SaveJob, stripes: dict[int, bytes]) -> Intent:
        """What the coordinator has to allow before it is committed."""
        assert job.image is not None and self._held.claim is not None
        job.manifest = put_together(
            job.save,
            job.image,
            stripes,
            run=self._run,
            claim=self._held.claim,
            shards=self._shards,
        )
        crash.reach("intending", job.save.step)
        save = job.save
        return Intent(step=save.step, lineage=save.lineage, seal=job.manifest.seal, named=save.named)

    def commit(self, job: SaveJob) -> None:
        assert job.manifest is not None
        job.committing = True
        crash.reach("committing", job.save.step)
        for name in job.names:
            # Before the manifest is there it means nothing; with it, both are there at once.
            self._tiers.first.point(name, job.manifest)
        if job.save.named:
            job.manifest = self._tiers.first.ensure(job.manifest)
        else:
            self._tiers.first.commit(job.manifest)
        crash.reach("committed", job.save.step)
