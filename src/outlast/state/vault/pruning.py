"""Deleting what nobody needs any more, so that a death at any point leaves garbage and never a gap.

Manifests go first, and only then the chunks that no manifest names any more: a checkpoint that is there is
whole. Deleting is writing, so it needs a claim, and ends when there is a newer one. What may be deleted is
found from a listing of the chunks that is older than everything else that is looked at; a chunk that is put
afterwards is not in it. What a save in progress relies on, though it was there before, the caller has to
protect.

One who prunes may be evicted and not know it yet, or be stopped in the middle of a deletion, while the others
save in a later view. Nothing of theirs is in its reach: chunks have their era in their names, and it takes
only those of eras that are over for it. And what a later save relies on without writing it is in the newest
checkpoint, which is kept.

Where a manifest cannot be read, nobody knows which chunks it needs. Then no chunk is deleted at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from outlast.errors import ObjectDamaged, ObjectMissing, SaveGivenUp
from outlast.protocol.trunk import Checkpoint
from outlast.state.storage.seam import Storage
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import (
    CHUNKS,
    CLAIMS,
    ENDED,
    MAX_CLAIM,
    Era,
    beat_number,
    checkpoint_of,
    chunk_digest,
    chunk_era,
    manifest_name,
)
from outlast.state.vault.pointers import pointers, targets
from outlast.state.vault.retention import Keep, kept_steps
from outlast.state.vault.search import Problem, Problems
from outlast.state.vault.vault import Vault

BATCH = 500
"""How many objects are deleted before the claim is looked at again."""


@dataclass
class Pruned:
    """What was deleted, or would be in a dry run."""

    kept: list[str]
    manifests: list[str]
    chunks: int = 0
    chunk_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    chunks_left_alone: bool = False
    """Unreferenced chunks were not looked for, since some manifest cannot be read."""


def prune(
    vault: Vault,
    keep: Keep,
    *,
    claim: int | None,
    era: Era | None = None,
    protected: Collection[str] = (),
    force: bool = False,
    dry_run: bool = False,
    wanted: Callable[[], bool] = lambda: True,
) -> Pruned:
    """Delete checkpoints that `keep` does not want, and chunks that none of the remaining ones needs.

    `claim` is the caller's own, and VaultTaken says that there is a newer one; a dry run needs none. `era` is
    that of the caller's last save, for one who takes part in a run.
    `wanted` is asked again before each batch of deletions, and SaveGivenUp is raised once it says no.
    `protected` are hashes that a save in progress relies on. `force` deletes manifests that cannot be read,
    too, and with them what only they knew to be needed.
    """
    assert claim is not None or dry_run, "deleting needs a claim"
    keep.validate()
    now = era or Era(claim or MAX_CLAIM, 0, 0)
    chunks = {s.key: s.size_bytes for s in vault.storage.list(CHUNKS) if chunk_digest(s.key)}
    if claim is not None:
        vault.refuse_if_superseded(claim)
    problems = Problems()
    names = vault.manifests()
    readable, unreadable = _read_all(vault, names, problems)
    # Where nothing good is left to go on from, every rest may be of use.
    trunk = vault.trunk()
    kept = _kept(trunk, readable, chunks, keep) or set(names)
    kept |= {manifest for name, manifest in targets(vault, names, trunk).items() if name != ENDED}
    doomed = [name for name in names if name not in kept and (force or name not in unreadable)]
    result = Pruned(
        kept=[name for name in names if name not in doomed], manifests=doomed, problems=problems.all
    )
    if not dry_run:
        _delete(vault, claim, doomed, wanted)
        _delete(vault, claim, _old_pointers(vault, claim, doomed), wanted)
        # Whoever committed meanwhile named chunks that may be in the listing.
        arrived, unknown = _read_all(vault, set(vault.manifests()) - set(names), problems)
        readable |= arrived
        unreadable |= unknown
    result.chunks_left_alone = bool(unreadable - set(doomed))
    if result.chunks_left_alone:
        return result
    needed = {
        chunk.name for name, manifest in readable.items() if name not in doomed for chunk in manifest.chunks
    }
    garbage = sorted(
        key
        for key in chunks
        if key not in needed
        and chunk_digest(key) not in protected
        and ((written := chunk_era(key)) is None or written.is_over_for(now))
    )
    result.chunks, result.chunk_bytes = len(garbage), sum(chunks[key] for key in garbage)
    if not dry_run:
        _delete(vault, claim, garbage, wanted)
        _delete(vault, claim, _old_beats(vault.storage, claim), wanted)
    return result


def _read_all(vault: Vault, names: Iterable[str], problems: Problems) -> tuple[dict[str, Manifest], set[str]]:
    readable: dict[str, Manifest] = {}
    unreadable: set[str] = set()
    for name in sorted(names):
        try:
            readable[name] = vault.read_manifest(name)
        except ObjectMissing:
            continue
        except ObjectDamaged as error:
            unreadable.add(name)
            problems.note(name, str(error))
    return readable, unreadable


def _kept(trunk: list[str], readable: dict[str, Manifest], chunks: dict[str, int], keep: Keep) -> set[str]:
    """Only checkpoints that are whole, as far as a listing can tell, count as kept ones: what is damaged must
    not take the place of what is good."""
    whole = {
        found.step: name
        for name in reversed(trunk)
        if name in readable and (found := checkpoint_of(name)) and _is_whole(readable[name], chunks)
    }
    return {whole[step] for step in kept_steps(list(whole), keep)}


def _is_whole(manifest: Manifest, chunks: dict[str, int]) -> bool:
    return all(chunks.get(c.name) == c.stored_bytes for c in manifest.chunks)


def _delete(vault: Vault, claim: int | None, names: list[str], wanted: Callable[[], bool]) -> None:
    assert claim is not None
    for start in range(0, len(names), BATCH):
        vault.refuse_if_superseded(claim)
        if not wanted():
            raise SaveGivenUp("it is not on this replica any more to delete checkpoints")
        vault.storage.delete(names[start : start + BATCH])


def _old_pointers(vault: Vault, claim: int | None, doomed: Collection[str]) -> list[str]:
    """Those whose checkpoint is gone, or was never made. One that is about to be made is of the present
    claim, and newer than what its name stands for."""
    assert claim is not None
    there = set(vault.manifests())
    newest = {name: checkpoint_of(manifest) for name, manifest in targets(vault, there).items()}
    return [
        key
        for name, checkpoint, key in pointers(vault)
        if (manifest := manifest_name(*checkpoint)) in doomed
        or (manifest not in there and (checkpoint.claim < claim or _is_newer(newest.get(name), checkpoint)))
    ]


def _is_newer(one: Checkpoint | None, other: Checkpoint) -> bool:
    return one is not None and one > other


def _old_beats(storage: Storage, claim: int | None) -> list[str]:
    assert claim is not None
    return [s.key for s in storage.list(CLAIMS) if (number := beat_number(s.key)) and number < claim]
