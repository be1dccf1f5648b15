"""Checkpoints made for tests: a small state of some tensors, saved under a claim."""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.state.contents import Image
from outlast.state.image import Assembly, copy_piece, describe
from outlast.state.storage.seam import Storage
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter, read_chunks
from outlast.state.vault.manifest import Chunk, Claim, Codec, Manifest
from outlast.state.vault.names import Era
from outlast.state.vault.occupancy import Process
from outlast.state.vault.vault import Vault


def some_state(seed: int, *, elements: int = 1 << 18) -> tuple[Image, list[Tensor]]:
    """Three large tensors, of which only the last depends on the seed, and a few small ones."""
    tensors = [
        torch.arange(elements, dtype=torch.float32),
        torch.ones(7, dtype=torch.bfloat16),
        torch.arange(elements, dtype=torch.float32).sqrt(),
        torch.tensor(True),
        torch.arange(elements, dtype=torch.float32) + seed,
        torch.tensor(float(seed)),
    ]
    return describe([f"t{index}" for index in range(len(tensors))], tensors, b"", b""), tensors


def written(
    storage: Storage,
    image: Image,
    tensors: list[Tensor],
    known: dict[str, Chunk],
    codec: Codec = "",
    era: Era | None = None,
) -> tuple[ChunkWriter, list[Chunk]]:
    flat = torch.empty(image.total_bytes, dtype=torch.uint8)
    copy_piece(image, tensors, range(image.total_bytes), flat)
    space = memoryview(flat.numpy()) if image.total_bytes else memoryview(b"")
    writer = ChunkWriter(storage, known, codec=codec, era=era, threads=3)
    return writer, writer.write((r, space[r.start : r.stop]) for r in chunk_ranges(image))


def manifest_of(claim: Claim, step: int, image: Image, chunks: list[Chunk], new_bytes: int = 0) -> Manifest:
    return Manifest(
        step=step,
        claim=claim.number,
        base=claim.base,
        run=claim.run,
        lineage=claim.lineage,
        view=1,
        saved_at="2026-01-02T03:04:05Z",
        writers={"0": "somewhere"},
        versions={"outlast": "0.1.0", "torch": "2.13.0"},
        replicas=1,
        shards=1,
        tensor_bytes=sum(entry.size_bytes for entry in image.entries),
        new_bytes=new_bytes,
        chunks=tuple(chunks),
        image=image,
    )


def claimed(vault: Vault, run: str = "run", base: str | None = None) -> Claim:
    """A claim of a run on this machine, whose process is dead."""
    return vault.make_claim(run=run, lineage=1, base=base, process=dead_process())


def dead_process() -> Process:
    own = Process.own()
    return Process(own.host, own.pid, own.started + 1, own.pid_space, own.boot_id)


def save(vault: Vault, claim: Claim, step: int, codec: Codec = "") -> Manifest:
    """A checkpoint whose last large tensor is its step."""
    image, tensors = some_state(step)
    writer, chunks = written(vault.storage, image, tensors, dict(vault.known_chunks()), codec)
    manifest = manifest_of(claim, step, image, chunks, writer.written_bytes)
    assert vault.commit(manifest)
    return manifest


def load(vault: Vault, manifest: Manifest) -> list[Tensor]:
    assembly = Assembly(manifest.image, ranges=[range(c.start, c.stop) for c in manifest.chunks])
    read_chunks(vault.storage, manifest, assembly, threads=3)
    return assembly.tensors()
