"""Checkpoints of a small state in plain folders, made by the vault's own means, for tests of restoring."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from outlast.protocol.trunk import Checkpoint
from outlast.protocol.views import Intent
from outlast.state.image import copy_piece, describe
from outlast.state.storage.files import Files
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter
from outlast.state.vault.manifest import Claim, Manifest, sealed
from outlast.state.vault.names import chunk_name
from outlast.state.vault.occupancy import Process
from outlast.state.vault.vault import Vault
from outlast.train.tiers import Tiers

RUN = "run"


def tiers_in(*folders: Path) -> Tiers:
    return Tiers([Files(str(folder)) for folder in folders])


def dead() -> Process:
    """A process of this machine that is not there any more."""
    own = Process.own()
    return Process(own.host, own.pid, own.started + 1, own.pid_space, own.boot_id)


def claim_for(tiers: Tiers, base: Checkpoint | None = None, run: str = RUN, lineage: int = 1) -> Claim:
    return tiers.claim(run=run, lineage=lineage, base=base, process=dead())


def state_after(step: int) -> list[Tensor]:
    return [torch.full((1000,), float(step)), torch.tensor(step)]


def commit(vault: Vault, claim: Claim, step: int) -> Manifest:
    """The checkpoint of this step."""
    tensors = state_after(step)
    image = describe(["large", "small"], tensors, b"", b"")
    flat = torch.empty(image.total_bytes, dtype=torch.uint8)
    copy_piece(image, tensors, range(image.total_bytes), flat)
    space = memoryview(flat.numpy())
    chunks = ChunkWriter(vault.storage, {}).write((r, space[r.start : r.stop]) for r in chunk_ranges(image))
    manifest = sealed(
        Manifest(
            step=step,
            claim=claim.number,
            base=claim.base,
            run=claim.run,
            lineage=claim.lineage,
            view=1,
            saved_at="2026-01-02T03:04:05Z",
            writers={"0": "here"},
            versions={},
            replicas=1,
            shards=4,
            tensor_bytes=sum(entry.size_bytes for entry in image.entries),
            new_bytes=0,
            chunks=tuple(chunks),
            image=image,
        )
    )
    vault.commit(manifest)
    return manifest


def intent_of(manifest: Manifest) -> Intent:
    return Intent(step=manifest.step, lineage=manifest.lineage, seal=manifest.seal)


def damage(folder: Path, manifest: Manifest) -> None:
    """Flip a bit of its first chunk."""
    path = folder / chunk_name(manifest.chunks[0].hash, manifest.chunks[0].codec)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def remove_chunks(folder: Path, manifest: Manifest) -> None:
    for chunk in manifest.chunks:
        (folder / chunk_name(chunk.hash, chunk.codec)).unlink()
