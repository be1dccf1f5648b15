"""Where a run keeps its checkpoints: one vault, or several, the nearest first.

The first one is where checkpoints are committed. The others get copies of what was committed, in the
background: `checkpoints=["/nvme/run", "s3://bucket/run"]`. All of them hold the same names, claims included,
so together they are one history, and whoever starts takes each checkpoint from the nearest place that has it
whole. A claim is made in all of them, so that a writer that was cut off is refused everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from outlast.errors import NoCheckpoint, ObjectDamaged, ObjectMissing, SaveGivenUp, VaultTaken
from outlast.protocol.trunk import Base, Checkpoint, before_claim, walk_trunk
from outlast.state.storage.seam import Storage
from outlast.state.vault.chunks import read_chunk
from outlast.state.vault.manifest import Claim, Manifest, encode_claim
from outlast.state.vault.names import ENDED, checkpoint_of, claim_name, manifest_name
from outlast.state.vault.occupancy import Process
from outlast.state.vault.pointers import pointers, targets
from outlast.state.vault.vault import Vault

log = logging.getLogger(__name__)


class Tiers:
    def __init__(self, storages: Sequence[Storage]) -> None:
        self.vaults = [Vault(storage) for storage in storages]

    @property
    def first(self) -> Vault:
        return self.vaults[0]

    @property
    def url(self) -> str:
        return " and ".join(vault.storage.url for vault in self.vaults)

    def trunk(self, before: int | None = None, founded: int = 0) -> Iterator[Checkpoint]:
        """What a start may go on from, newest first; or whoever made the claim `before`. The run was last
        allowed to begin under the claim `founded`."""
        claims = {number for vault in self.vaults for number in vault.claims()}
        names = {name for vault in self.vaults for name in vault.manifests()}
        checkpoints = {found for name in names if (found := checkpoint_of(name))}
        if before is None:
            return walk_trunk(claims, checkpoints, self._base_of, self._goes_back, founded)
        return before_claim(before, claims, checkpoints, self._base_of, self._goes_back, founded)

    def copies(self, checkpoint: Checkpoint) -> Iterator[tuple[Vault, Manifest]]:
        """The places that have this checkpoint's manifest whole, the nearest first."""
        name = manifest_name(*checkpoint)
        for vault in self.vaults:
            try:
                yield vault, vault.read_manifest(name)
            except ObjectMissing:
                continue
            except ObjectDamaged as error:
                log.warning("%s is passed over: %s", name, error)

    def claim(
        self, *, run: str, lineage: int, view: int = 0, base: Checkpoint | None, process: Process
    ) -> Claim:
        """The right to go on from `base`, in all places. The first decides; the others follow."""
        name = manifest_name(*base) if base is not None else None
        newest = [vault.newest_claim() for vault in self.vaults]
        above = max(newest)
        for vault, number in zip(self.vaults, newest, strict=True):
            if number > newest[0]:
                # Somebody has used it without the first one.
                vault.refuse_if_held(number, run)
        claim = self.first.make_claim(
            run=run, lineage=lineage, view=view, base=name, above=above, process=process
        )
        for vault in self.vaults[1:]:
            if not vault.storage.create(claim_name(claim.number), encode_claim(claim)):
                raise VaultTaken(
                    f"{vault.storage.url} has a claim {claim.number} already, which {self.first.storage.url} "
                    "does not know of. Another job seems to use one of the two: give each its own."
                )
        return claim

    def replicate(self, manifest: Manifest, vault: Vault, wanted: Callable[[], bool]) -> None:
        """Copy a checkpoint that was committed in the first place to another one, for as long as `wanted`."""
        known = vault.known_chunks(1)
        for chunk in manifest.chunks:
            if not wanted():
                raise SaveGivenUp("it is not on this replica any more to copy checkpoints")
            there = known.get(chunk.hash)
            if there is not None and (there.name, there.stored_bytes) == (chunk.name, chunk.stored_bytes):
                continue
            memory = memoryview(bytearray(chunk.size))
            read_chunk(self.first.storage, manifest, chunk, memory)
            stored = memory if not chunk.codec else self.first.storage.get(chunk.name, chunk.stored_bytes)
            vault.storage.put(chunk.name, stored)
        vault.commit(manifest)

    def replicate_named(self, vault: Vault, wanted: Callable[[], bool]) -> None:
        """What has a name in the first place has it in the other one, too."""
        there = {(name, checkpoint) for name, checkpoint, _ in pointers(vault)}
        for name, target in targets(self.first).items():
            manifest = self.first.read_manifest(target)
            if (name, Checkpoint(manifest.claim, manifest.step)) in there:
                continue
            vault.point(name, manifest)
            if target not in vault.manifests():
                self.replicate(manifest, vault, wanted)

    def is_end(self, checkpoint: Checkpoint) -> bool:
        """Whether the script has ended its run with this one."""
        return any((ENDED, checkpoint) == pointer[:2] for vault in self.vaults for pointer in pointers(vault))

    def came_too_late(self, claim: Claim) -> bool:
        """Whether the run has claimed in a later view before this claim was made."""
        return self.first.came_too_late(claim)

    def _goes_back(self, number: int) -> bool:
        return any(vault.goes_back(number) for vault in self.vaults)

    def _base_of(self, number: int) -> Base:
        for vault in self.vaults:
            try:
                base = vault.read_claim(number).base
                return checkpoint_of(base) if base else None
            except (ObjectDamaged, ObjectMissing) as error:
                problem = error
        log.warning("claim %d cannot be read: %s", number, problem)
        return "unknown"


def shards_of_newest(tiers: Tiers) -> int:
    """Into how many shards the newest readable checkpoint's run cuts a step; 0 if there is none."""
    for checkpoint in tiers.trunk():
        for _, manifest in tiers.copies(checkpoint):
            return manifest.shards
    return 0


def nothing_good(tiers: Tiers, problems: Sequence[str]) -> NoCheckpoint:
    found = "; ".join(problems[:3])
    return NoCheckpoint(
        f"There are {len(problems)} checkpoints at {tiers.url}, and none of them can be loaded: {found}. "
        "Restore one from a copy, or give the run another URL to begin anew."
    )
