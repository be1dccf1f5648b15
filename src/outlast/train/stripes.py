"""What each writer of a checkpoint contributes, and how the committer makes one manifest of it."""

from __future__ import annotations

import msgspec

from outlast.errors import CheckpointError, ProtocolError
from outlast.protocol.saving import Save
from outlast.state.contents import Image
from outlast.state.vault.manifest import Chunk, Claim, Manifest, sealed
from outlast.state.vault.vault import now_as_text, program_versions


class StripeNote(msgspec.Struct, frozen=True, array_like=True):
    """What a writer tells the committer: where its share is, and of which state."""

    image: str
    """The digest of the table of contents: all writers must have copied the same state."""
    host: str
    new_bytes: int
    chunks: tuple[Chunk, ...]


_NOTES = msgspec.msgpack.Decoder(StripeNote)


def share_of(ranges: list[range], place: int, count: int) -> list[range]:
    """A share of about the same size for each writer, in one piece: neighbours differ by one chunk."""
    total = sum(map(len, ranges))
    lo, hi = total * place // count, total * (place + 1) // count
    return [one for one in ranges if lo <= one.start < hi]


def decode_stripe(replica: int, payload: bytes) -> StripeNote:
    try:
        return _NOTES.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"what replica {replica} says of its stripe can not be read: {error}") from error


def put_together(
    save: Save, image: Image, stripes: dict[int, bytes], *, run: str, claim: Claim, shards: int
) -> Manifest:
    """The manifest of a save whose stripes are all durable. CheckpointError if they are not of one state."""
    notes = {replica: decode_stripe(replica, payload) for replica, payload in stripes.items()}
    strangers = sorted(replica for replica, note in notes.items() if note.image != image.digest)
    if strangers:
        raise CheckpointError(
            f"replica {strangers[0]} holds another state after step {save.step} than replica "
            f"{save.committer}: the checkpoint would be a mixture"
        )
    return sealed(
        Manifest(
            step=save.step,
            claim=claim.number,
            base=claim.base,
            run=run,
            lineage=save.lineage,
            view=save.view,
            saved_at=now_as_text(),
            writers={str(replica): note.host for replica, note in sorted(notes.items())},
            versions=program_versions(),
            replicas=len(notes),
            shards=shards,
            tensor_bytes=sum(entry.size_bytes for entry in image.entries),
            new_bytes=sum(note.new_bytes for note in notes.values()),
            chunks=tuple(sorted((c for n in notes.values() for c in n.chunks), key=lambda c: c.start)),
            image=image,
        )
    )
