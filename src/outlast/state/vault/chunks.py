"""Chunks on their way into a storage and back: hashed, sent and verified on a few threads.

The hash is taken of the bytes in memory. It names the object, with the era in which it was written, so a
chunk that the newest checkpoint has is not stored again, and a chunk that was read is what was written or it
is an error. Nothing is copied that is not
compressed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from blake3 import blake3

from outlast.errors import ObjectDamaged, ObjectMissing, SaveGivenUp
from outlast.state.storage.seam import Storage
from outlast.state.vault.compression import compressed, decompress
from outlast.state.vault.crew import work_off
from outlast.state.vault.manifest import RAW, ZSTD_SHUFFLE, Chunk, Codec, Manifest
from outlast.state.vault.names import Era, manifest_name

THREADS = 4


class Slots(Protocol):
    """Where chunks are read to; `image.Assembly` is one, made with the manifest's ranges."""

    def slot(self, index: int) -> memoryview: ...

    def note(self, index: int) -> None: ...


class ChunkWriter:
    """One member's part of one save. `known` are chunks that are in the storage already, by their hash."""

    def __init__(
        self,
        storage: Storage,
        known: Mapping[str, Chunk],
        *,
        codec: Codec = RAW,
        era: Era | None = None,
        threads: int = THREADS,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.written_bytes = 0
        """As stored, that is after compression."""
        self.written_chunks = 0
        self.skipped_bytes = 0
        self.skipped_chunks = 0
        self._storage = storage
        self._known = known
        self._codec = codec
        self._era = str(era) if era is not None else ""
        self._threads = threads
        self._cancelled = cancelled or threading.Event()
        self._counting = threading.Lock()
        self._stored: dict[str, Chunk] = {}

    def write(self, parts: Iterable[tuple[range, memoryview]]) -> list[Chunk]:
        """Store these ranges of the state, and give the manifest's rows for them, in order of their place.

        When it returns, every one of them is durable. SaveGivenUp once the event is set.
        """
        rows: list[Chunk] = []
        work_off(parts, lambda part: rows.append(self._write(*part)), self._threads)
        return sorted(rows, key=lambda row: row.start)

    def _write(self, place: range, data: memoryview) -> Chunk:
        self._refuse_cancelled()
        data = data.cast("B")
        assert data.nbytes == len(place) > 0, "a chunk's bytes are as many as its range has"
        digest = blake3(data).hexdigest()
        # The same bytes may occur twice in one state, as the zeros of fresh moments do. If two threads come
        # to them at the same time, both store them, which does no harm.
        known = self._known.get(digest) or self._stored.get(digest)
        if known is None:
            return self._store(place, data, digest)
        with self._counting:
            self.skipped_bytes += data.nbytes
            self.skipped_chunks += 1
        return Chunk(place.start, data.nbytes, digest, known.stored_bytes, known.codec, known.era)

    def _store(self, place: range, data: memoryview, digest: str) -> Chunk:
        packed = compressed(data) if self._codec == ZSTD_SHUFFLE else None
        stored = data if packed is None else packed
        codec: Codec = RAW if packed is None else ZSTD_SHUFFLE
        self._refuse_cancelled()
        row = Chunk(place.start, data.nbytes, digest, len(stored), codec, self._era)
        self._storage.put(row.name, stored)
        with self._counting:
            self._stored[digest] = row
            self.written_bytes += row.stored_bytes
            self.written_chunks += 1
        return row

    def _refuse_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise SaveGivenUp("the save was given up before all of its chunks were written")


def read_chunks(
    storage: Storage,
    manifest: Manifest,
    slots: Slots,
    indices: Iterable[int] | None = None,
    *,
    threads: int = THREADS,
) -> None:
    """Read the chunks with these indices, or all, each into its slot, and note them.

    ObjectDamaged or ObjectMissing name the object and the checkpoint.
    """

    def read(index: int) -> None:
        read_chunk(storage, manifest, manifest.chunks[index], slots.slot(index))
        slots.note(index)

    work_off(range(len(manifest.chunks)) if indices is None else indices, read, threads)


def read_chunk(storage: Storage, manifest: Manifest, chunk: Chunk, out: memoryview) -> None:
    """Fill `out`, which has the chunk's size, and verify it."""
    name = chunk.name
    try:
        if chunk.codec == RAW:
            storage.read_into(name, out)
        elif not decompress(storage.get(name, chunk.stored_bytes), out):
            raise ObjectDamaged(f"{name} in {storage.url} cannot be decompressed")
    except ObjectMissing as error:
        raise ObjectMissing(f"{error} It belongs to {_called(manifest)}.") from error
    except ObjectDamaged as error:
        raise ObjectDamaged(f"{error} It belongs to {_called(manifest)}.") from error
    if blake3(out).hexdigest() != chunk.hash:
        raise ObjectDamaged(
            f"{name} in {storage.url} is damaged: its bytes have another hash than those that were written. "
            f"It belongs to {_called(manifest)}."
        )


def verify_chunks(
    storage: Storage,
    manifest: Manifest,
    chunks: Sequence[Chunk],
    *,
    threads: int = THREADS,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[Chunk, str]]:
    """Read and verify these chunks, and keep nothing; those that are bad, and why. `progress` is told the
    bytes of each, from several threads."""
    bad: list[tuple[Chunk, str]] = []

    def verify(chunk: Chunk) -> None:
        try:
            read_chunk(storage, manifest, chunk, memoryview(bytearray(chunk.size)))
        except (ObjectDamaged, ObjectMissing) as error:
            bad.append((chunk, str(error)))
        if progress:
            progress(chunk.size)

    work_off(chunks, verify, threads)
    return sorted(bad, key=lambda found: found[0].start)


def _called(manifest: Manifest) -> str:
    return f"the checkpoint of step {manifest.step} ({manifest_name(manifest.claim, manifest.step)})"
