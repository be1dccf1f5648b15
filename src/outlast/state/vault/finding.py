"""Finding one checkpoint among those under a URL: by its step, by its name, or the newest good one."""

from __future__ import annotations

from outlast.errors import NoCheckpoint, ObjectMissing, UsageError
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import checkpoint_of
from outlast.state.vault.pointers import own_names, targets
from outlast.state.vault.vault import Vault

LOOKS_MOST = 3
_NAMED_AT_MOST = 12

Which = int | str | None
"""A step, a name, or None for the newest good one."""


def which_of(text: str | int | None) -> Which:
    """What a person has written: digits are a step, `newest` is the newest, everything else is a name."""
    if text is None or text == "newest":
        return None
    return int(text) if isinstance(text, int) or text.isdigit() else text


def find_checkpoint(vault: Vault, which: Which, claim: int | None = None) -> tuple[str, Manifest]:
    """The checkpoint of a step or a name, or the newest good one. One on the trunk is taken before one that
    is off it; of several that are off it, `claim` says which."""
    for _ in range(LOOKS_MOST if which is not None else 0):
        name = find_name(vault, which, claim)
        try:
            return name, vault.read_manifest(name)
        except ObjectMissing:
            # The name has moved on meanwhile, and the run has made room.
            if isinstance(which, int):
                raise
    _refuse_claim_alone(claim)
    for newest in vault.newest():
        return newest
    raise _nothing_to_go_on_from(vault)


def find_name(vault: Vault, which: Which, claim: int | None = None) -> str:
    """The same, whether it can be read or not: without a step it is the newest on the trunk."""
    if isinstance(which, str):
        return _find_named(vault, which)
    step = which
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


def _find_named(vault: Vault, name: str) -> str:
    found = targets(vault)
    if name in found:
        return found[name]
    there = ", ".join(own_names(found)) or "none"
    raise UsageError(
        f"there is no checkpoint {name!r} in {vault.storage.url}; the names there are: {there}. (A name is "
        "given by job.save; for a step, give its number.)"
    )


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
