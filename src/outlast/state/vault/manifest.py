"""The two documents of a vault: a manifest is one checkpoint, a claim is the right to go on writing.

Both are JSON, sealed (`sealing`), and checked on reading until nothing is left to trust: sizes and counts are
bounded, the table of tensors must be one that `describe` would have made, and the chunks must cover it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from outlast.errors import ConfigError, ObjectDamaged, ProtocolError
from outlast.protocol.trunk import MAX_STEP
from outlast.state.contents import MAX_IMAGE_BYTES, MAX_TOTAL_BYTES, Image, check_image
from outlast.state.vault.chunking import MAX_CHUNK_BYTES
from outlast.state.vault.names import ERA_PATTERN, MANIFEST_PATTERN, MAX_CLAIM, checkpoint_of, chunk_name
from outlast.state.vault.sealing import Document, Migrations, laid_out, seal_of, unsealed

VERSION = 1
MAX_MANIFEST_BYTES = 4 * MAX_IMAGE_BYTES
MAX_CLAIM_BYTES = 64 << 10

RAW: Literal[""] = ""
ZSTD_SHUFFLE: Literal["zstd-shuffle"] = "zstd-shuffle"
Codec = Literal["", "zstd-shuffle"]

Step = Annotated[int, Meta(ge=0, le=MAX_STEP)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Text = Annotated[str, Meta(max_length=1000)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
ManifestName = Annotated[str, Meta(pattern=MANIFEST_PATTERN)]


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One range of the state's space of bytes, and the object that holds it."""

    start: Annotated[int, Meta(ge=0, le=MAX_TOTAL_BYTES)]
    size: Annotated[int, Meta(ge=1, le=MAX_CHUNK_BYTES)]
    hash: Hash
    """BLAKE3 of the bytes in memory, compressed or not."""
    stored_bytes: Annotated[int, Meta(ge=1, le=2 * MAX_CHUNK_BYTES)]
    codec: Codec
    era: Annotated[str, Meta(pattern=ERA_PATTERN)] = ""
    """When it was written, as a part of the object's name; empty outside of a run."""

    @property
    def name(self) -> str:
        return chunk_name(self.hash, self.codec, self.era)

    @property
    def stop(self) -> int:
        return self.start + self.size


class Manifest(
    msgspec.Struct,
    tag_field="format",
    tag="outlast-manifest",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """One checkpoint: the state of a training run after one step."""

    version: int = VERSION
    seal: str = ""
    step: Step
    claim: Annotated[int, Meta(ge=1, le=MAX_CLAIM)]
    base: ManifestName | None
    """What the claim goes on from, once more, in case that the claim itself can no longer be read."""
    run: Name
    lineage: Count
    view: Count
    saved_at: Text
    """The writer's wall clock, for people; nothing is decided by it."""
    writers: dict[str, Text]
    """Who has written chunks of it: hosts by replica."""
    versions: dict[str, Text]
    replicas: Count
    shards: Count
    tensor_bytes: Count
    new_bytes: Count
    """What had to be written for it, as stored; the rest was there already."""
    chunks: tuple[Chunk, ...]
    image: Image


class Claim(
    msgspec.Struct,
    tag_field="format",
    tag="outlast-claim",
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """The right to go on writing, held by one run until there is a claim with a higher number."""

    version: int = VERSION
    seal: str = ""
    number: Annotated[int, Meta(ge=1, le=MAX_CLAIM)]
    run: Name
    lineage: Count
    base: ManifestName | None
    """The checkpoint that it goes on from."""
    view: Count = 0
    """Of its run: the view in which its maker was to say what the lineage begins with. A claim for a view
    that is over may come late, and supersedes none that its run has made since (`protocol/trunk.py`)."""
    goes_back: bool = False
    """Made on purpose to go on from an older checkpoint; it counts though nothing was saved under it yet."""
    host: Text
    process: Count
    """The number of the process that made it, which means something only with the next three."""
    process_started: Count
    pid_space: Text
    boot_id: Text
    made_at: Text
    """The wall clock, for people; nothing is decided by it."""
    nonce: Annotated[str, Meta(min_length=8, max_length=64)]
    """Makes it unlike every other claim, so that its maker knows it again."""


# From a version to what makes the next one of it. There is only one version so far.
MANIFEST_MIGRATIONS: Migrations = {}
CLAIM_MIGRATIONS: Migrations = {}


SealedT = TypeVar("SealedT", Manifest, Claim)


def sealed(document: SealedT) -> SealedT:
    """The same with its seal."""
    return msgspec.structs.replace(document, seal=seal_of(msgspec.to_builtins(document)))


def encode_manifest(manifest: Manifest) -> bytes:
    """Its document. What nobody could read again is not written: that is a ValueError."""
    wrong = _wrong_in(msgspec.convert(msgspec.to_builtins(manifest), Manifest))
    if wrong:
        raise ValueError(f"a manifest of step {manifest.step} does not add up: {wrong}")
    encoded = laid_out(_with_seal(manifest))
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise ConfigError(
            f"The manifest of this checkpoint with its {len(manifest.image.entries)} tensors has "
            f"{len(encoded)} bytes, over the limit of {MAX_MANIFEST_BYTES}. Keep fewer and larger tensors in "
            "what you hand over as state."
        )
    return encoded


def decode_manifest(encoded: bytes, name: str) -> Manifest:
    """The manifest, or ObjectDamaged, or CheckpointError if it needs a newer Outlast."""
    manifest = unsealed(encoded, name, Manifest, VERSION, MANIFEST_MIGRATIONS)
    wrong = _wrong_in(manifest)
    if wrong:
        raise ObjectDamaged(f"{name} does not add up: {wrong}")
    return manifest


def encode_claim(claim: Claim) -> bytes:
    msgspec.convert(msgspec.to_builtins(claim), Claim)
    if _goes_forward(claim.base, claim.number):
        raise ValueError(f"claim {claim.number} cannot go on from {claim.base}, which is of a later one")
    return laid_out(_with_seal(claim))


def decode_claim(encoded: bytes, name: str) -> Claim:
    claim = unsealed(encoded, name, Claim, VERSION, CLAIM_MIGRATIONS)
    if _goes_forward(claim.base, claim.number):
        raise ObjectDamaged(f"{name} does not add up: it goes on from a checkpoint of a later claim")
    return claim


def same_state(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests, of the same step or not, hold the same training state, in the same objects."""
    return one.image == other.image and [(c.start, c.name) for c in one.chunks] == [
        (c.start, c.name) for c in other.chunks
    ]


def same_content(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests hold the same training state, be it in other objects."""
    return one.image == other.image and [(c.start, c.hash) for c in one.chunks] == [
        (c.start, c.hash) for c in other.chunks
    ]


def _with_seal(value: Manifest | Claim) -> Document:
    document: dict[str, Any] = msgspec.to_builtins(value)
    return {**document, "seal": seal_of(document)}


def _wrong_in(manifest: Manifest) -> str | None:
    try:
        check_image(manifest.image)
    except ProtocolError as error:
        return str(error)
    if manifest.tensor_bytes != sum(entry.size_bytes for entry in manifest.image.entries):
        return "its tensors have another size than it says"
    cuts = [0, *(chunk.stop for chunk in manifest.chunks)]
    if cuts != [*(chunk.start for chunk in manifest.chunks), manifest.image.total_bytes]:
        return "its chunks do not cover its tensors"
    if any(lo >= hi for lo, hi in pairwise(cuts)):
        return "its chunks are not in order"
    if any(chunk.codec == RAW and chunk.stored_bytes != chunk.size for chunk in manifest.chunks):
        return "a chunk that is not compressed is stored with another size"
    if _goes_forward(manifest.base, manifest.claim):
        return "it goes on from a checkpoint of a later claim"
    return None


def _goes_forward(base: str | None, claim: int) -> bool:
    """Each claim goes back to an earlier one, which is why following them comes to an end."""
    found = checkpoint_of(base) if base else None
    return found is not None and found.claim >= claim
