"""What a lineage begins with: the newest good checkpoint, if there is one.

    the newest one that loads ──▶ claim: I go on from it ──▶ look again ──▶ recorded ──▶ begin
               ▲                                                 │
               └─── a newer one was committed in between, ◄──────┘
                    or the view is another one by now

The coordinator records under which claim a lineage begins, as it does with intents: whoever is cut off or
evicted gets no answer, and begins nothing.

A checkpoint that is damaged, or not to be trusted, is named and passed over. A storage that does not answer
is another matter: to begin without it could mean to begin from nothing, so that is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from outlast import crashpoints as crash
from outlast.errors import ObjectDamaged, ObjectMissing, SaveGivenUp, StorageFull
from outlast.protocol.roster import INTENTS_KEPT
from outlast.protocol.trunk import Checkpoint
from outlast.protocol.views import Intent
from outlast.state.image import Assembly
from outlast.state.vault.chunks import read_chunks
from outlast.state.vault.manifest import Claim, Manifest
from outlast.state.vault.occupancy import Process
from outlast.state.vault.vault import Vault
from outlast.train.gathering import Gathering
from outlast.train.tiers import Tiers, nothing_good

log = logging.getLogger(__name__)

READING_THREADS = 8
LOOKS_MOST = 16


@dataclass(frozen=True)
class Beginning:
    """What to begin with, and the claim that allows it."""

    claim: Claim
    manifest: Manifest | None = None
    state: Assembly | None = None
    elsewhere: bool = False
    """Whether it was read from another place than the one where checkpoints are committed."""
    ended: bool = False
    """Whether the script had ended the run with it, before its total was reached."""


def find_beginning(
    tiers: Tiers,
    *,
    run: str,
    lineage: int,
    intents: Collection[Intent],
    process: Process,
    gathering: Gathering | None = None,
    founded: Callable[[], int] = lambda: 0,
    may_claim: Callable[[], int | None] = lambda: 0,
    may_begin: Callable[[Claim], bool] = lambda _: True,
    awaits_room: Callable[[], bool] = lambda: False,
) -> Beginning:
    """Load the newest good checkpoint into memory, and claim the right to go on from it.

    `founded` says under which claim this run was last allowed to begin. `may_claim` is asked just before the
    put, and says in which view it is on this replica to do so. `may_begin` has the claim recorded.
    SaveGivenUp if one of these two says no: then it is on somebody else, or in another view. `awaits_room`
    is called where the storage is full, waits for a while, and says whether to try again."""
    found: tuple[Checkpoint, Manifest, Assembly, bool] | None = None
    looks = 0
    while looks < LOOKS_MOST:
        rejected: dict[Checkpoint, str] = {}
        for checkpoint in tiers.trunk(founded=founded()):
            if found is not None and found[0] == checkpoint:
                break
            loaded = _load(tiers, checkpoint, run, intents, rejected, gathering)
            if loaded is not None:
                found = (checkpoint, *loaded)
                break
        else:
            if rejected:
                raise nothing_good(tiers, list(rejected.values()))
        base = found[0] if found is not None else None
        view = may_claim()
        if view is None:
            raise SaveGivenUp("somebody else is to say what this lineage begins with")
        try:
            claim = tiers.claim(run=run, lineage=lineage, view=view, base=base, process=process)
        except StorageFull:
            if awaits_room():
                continue
            raise
        looks += 1
        trunk = tiers.trunk(before=claim.number, founded=founded())
        now = next((c for c in trunk if c not in rejected), None)
        if now != base:
            log.warning("a newer checkpoint was committed while this run looked for one; looking again")
        elif tiers.came_too_late(claim):
            log.warning("this replica was too late with its claim; looking again")
        else:
            crash.reach("claimed", base.step if base is not None else 0)
            if not may_begin(claim):
                raise SaveGivenUp("the view in which this lineage was to begin is over")
            if found is None:
                return Beginning(claim)
            return Beginning(claim, *found[1:], ended=tiers.is_end(found[0]))
    raise nothing_good(tiers, ["others keep writing to it"])


def _load(
    tiers: Tiers,
    checkpoint: Checkpoint,
    run: str,
    intents: Collection[Intent],
    rejected: dict[Checkpoint, str],
    gathering: Gathering | None,
) -> tuple[Manifest, Assembly, bool] | None:
    reasons = []
    for vault, manifest in tiers.copies(checkpoint):
        if not is_trusted(manifest, run, intents):
            reasons.append("the coordinator knows nothing of an intent to make it")
            continue
        assembly = Assembly(manifest.image, ranges=[range(c.start, c.stop) for c in manifest.chunks])
        try:
            _read(tiers.vaults.index(vault), vault, manifest, assembly, gathering)
        except (ObjectDamaged, ObjectMissing) as error:
            reasons.append(str(error))
            continue
        return manifest, assembly, vault is not tiers.first
    reason = "; ".join(reasons) or "its manifest cannot be read"
    log.warning("the checkpoint of step %d is passed over: %s", checkpoint.step, reason)
    rejected[checkpoint] = f"step {checkpoint.step}: {reason}"
    return None


def _read(
    tier: int, vault: Vault, manifest: Manifest, assembly: Assembly, gathering: Gathering | None
) -> None:
    mine = gathering.ask(tier, manifest, assembly) if gathering is not None else None
    read_chunks(vault.storage, manifest, assembly, mine, threads=READING_THREADS)
    if gathering is not None:
        rest = gathering.collect(manifest, assembly)
        read_chunks(vault.storage, manifest, assembly, rest, threads=READING_THREADS)


def is_trusted(manifest: Manifest, run: str, intents: Collection[Intent]) -> bool:
    """Whether the manifest was allowed to be made. Of another run's nothing is known here: its coordinator's
    store is not this one's, so what it committed is taken at its word."""
    if manifest.run != run:
        return True
    if any(
        (one.step, one.lineage, one.seal) == (manifest.step, manifest.lineage, manifest.seal)
        for one in intents
    ):
        return True
    # Only the newest are remembered.
    oldest = min(((one.lineage, one.step) for one in intents), default=(0, 0))
    return len(intents) >= INTENTS_KEPT and (manifest.lineage, manifest.step) < oldest
