"""What commands about checkpoints share: opening a URL, finding a checkpoint in it,
and saying sizes and ages."""

from __future__ import annotations

from datetime import UTC, datetime

from outlast.errors import NoCheckpoint, UsageError
from outlast.state.storage.opening import open_storage
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import checkpoint_of
from outlast.state.vault.vault import Vault

_NAMED_AT_MOST = 12


def open_vault(url: str) -> Vault:
    """A vault that has something in it; NoCheckpoint otherwise, since a URL is easily mistyped."""
    vault = Vault(open_storage(url))
    if not vault.manifests():
        begun = " A job has begun to write there, but saved nothing yet." if vault.claims() else ""
        raise NoCheckpoint(
            f"There are no checkpoints in {vault.storage.url}.{begun} Give the URL that the run saves to."
        )
    return vault


def find_checkpoint(vault: Vault, step: int | None, claim: int | None = None) -> tuple[str, Manifest]:
    """The checkpoint of a step, or the newest good one. One on the trunk is taken before one that is off it;
    of several that are off it, `claim` says which."""
    if step is not None:
        name = find_name(vault, step, claim)
        return name, vault.read_manifest(name)
    _refuse_claim_alone(claim)
    for newest in vault.newest():
        return newest
    raise _nothing_to_go_on_from(vault)


def find_name(vault: Vault, step: int | None, claim: int | None = None) -> str:
    """The same, whether it can be read or not: without a step it is the newest on the trunk."""
    if step is None:
        _refuse_claim_alone(claim)
        for newest in vault.trunk():
            return newest
        raise _nothing_to_go_on_from(vault)
    there = {name: found for name in vault.manifests() if (found := checkpoint_of(name))}
    named = [name for name, f in there.items() if f.step == step and claim in (None, f.claim)]
    if not named:
        raise UsageError(
            f"there is no checkpoint of step {step}{f' and claim {claim}' if claim else ''} in "
            f"{vault.storage.url}; there are {_steps(sorted({f.step for f in there.values()}))}"
        )
    on_trunk = [name for name in vault.trunk() if name in named]
    if not on_trunk and len(named) > 1:
        claims = ", ".join(str(there[name].claim) for name in named)
        raise UsageError(f"there are several checkpoints of step {step}; say --claim with one of {claims}")
    return on_trunk[0] if on_trunk else named[0]


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def age_text(saved_at: str) -> str:
    """By two machines' clocks, so only ever for people."""
    try:
        age_s = (datetime.now(UTC) - datetime.fromisoformat(saved_at)).total_seconds()
    except (ValueError, TypeError):
        return "?"
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= size_s:
            return f"{age_s / size_s:.0f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


def _refuse_claim_alone(claim: int | None) -> None:
    if claim is not None:
        raise UsageError("--claim says which one of a step's checkpoints is meant: say --step as well")


def _nothing_to_go_on_from(vault: Vault) -> NoCheckpoint:
    return NoCheckpoint(
        f"None of the checkpoints in {vault.storage.url} can be gone on from: outlast checkpoints ls "
        "shows them."
    )


def _steps(steps: list[int]) -> str:
    if len(steps) <= _NAMED_AT_MOST:
        return ", ".join(map(str, steps))
    half = _NAMED_AT_MOST // 2
    return f"{', '.join(map(str, steps[:half]))}, …, {', '.join(map(str, steps[-half:]))}"
