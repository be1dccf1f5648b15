"""A claim for whoever tidies up: it takes the right to write, and changes nothing about what comes next.

Deleting is writing, so it needs a claim like training does: a job that trains keeps a tidier out, and a job
that starts meanwhile is told to wait. The claim goes on from whatever the next run would have gone on from.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

from outlast.errors import VaultTaken
from outlast.state.vault.manifest import Claim
from outlast.state.vault.names import checkpoint_of
from outlast.state.vault.occupancy import Beating, Watch
from outlast.state.vault.vault import Vault

ATTEMPTS = 5


@contextlib.contextmanager
def holding_still(vault: Vault, why: str, watch: Watch | None = None) -> Iterator[Claim]:
    """Hold such a claim; VaultTaken if a job writes to this vault."""
    claim = _claim_in_place(vault, f"{why}-{secrets.token_hex(4)}", watch)
    with Beating(vault.storage, claim):
        yield claim


def _claim_in_place(vault: Vault, run: str, watch: Watch | None) -> Claim:
    before = vault.newest_claim()
    known = set(vault.manifests())
    base = next(iter(vault.trunk()), None)
    for _ in range(ATTEMPTS):
        claim = vault.make_claim(run=run, lineage=0, base=base, watch=watch)
        # Its last act may have been a checkpoint, between our looking and our claim: go on from that one.
        late = [name for name in vault.manifests() if name not in known and _claim_of(name) == before]
        if not late:
            return claim
        known.update(late)
        base = max(late)
    raise VaultTaken(f"Somebody keeps writing to {vault.storage.url}. End that job first.")


def _claim_of(name: str) -> int:
    found = checkpoint_of(name)
    return found.claim if found else 0
