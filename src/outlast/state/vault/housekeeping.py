"""A claim for whoever tidies up: it takes the right to write, and changes nothing about what comes next.

Deleting is writing, so it needs a claim like training does: a job that trains keeps a tidier out, and a job
that starts meanwhile is told to wait. Nothing is saved under such a claim, so it is never part of the trunk.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

from outlast.state.vault.manifest import Claim
from outlast.state.vault.occupancy import Beating, Watch
from outlast.state.vault.vault import Vault


@contextlib.contextmanager
def holding_still(vault: Vault, why: str, watch: Watch | None = None) -> Iterator[Claim]:
    """Hold such a claim; VaultTaken if a job writes to this vault."""
    base = next(iter(vault.trunk()), None)
    claim = vault.make_claim(run=f"{why}-{secrets.token_hex(4)}", lineage=0, base=base, watch=watch)
    with Beating(vault.storage, claim):
        yield claim
