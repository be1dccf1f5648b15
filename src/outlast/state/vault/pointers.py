"""Checkpoints by name: "best" is the newest committed checkpoint that a pointer with this name is for.

A pointer is a small object, `names/best/00000007-000000001200.json`, and its key says all of it. It is put
before the manifest that it is for. Without one it means nothing, so the put of the manifest is also what
makes the name move on: nobody ever sees a name that points nowhere. A pointer to a checkpoint that is there
already has its meaning at once.

The newest is the first along the trunk. If there is none on it, because a run went back behind all of them,
it is the newest of the others: a name is not lost until a newer checkpoint has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from outlast.protocol.trunk import Checkpoint
from outlast.state.vault.names import ENDED, NAMES, manifest_name, pointer_of
from outlast.state.vault.vault import Vault


def pointers(vault: Vault) -> list[tuple[str, Checkpoint, str]]:
    """All that there are: name, what it is for, key."""
    found = ((pointer_of(stored.key), stored.key) for stored in vault.storage.list(NAMES))
    return [(*pointer, key) for pointer, key in found if pointer is not None]


def targets(
    vault: Vault, manifests: Iterable[str] | None = None, trunk: Iterable[str] | None = None
) -> dict[str, str]:
    """The manifest that each name points to. The manifests that are looked at have been listed before the
    pointers are: so of each of them it is known which names it has."""
    there = set(vault.manifests() if manifests is None else manifests)
    order = {name: place for place, name in enumerate(vault.trunk() if trunk is None else trunk)}
    candidates: dict[str, list[Checkpoint]] = defaultdict(list)
    for name, checkpoint, _ in pointers(vault):
        if manifest_name(*checkpoint) in there:
            candidates[name].append(checkpoint)

    def rank(checkpoint: Checkpoint) -> tuple[int, int, int]:
        return -order.get(manifest_name(*checkpoint), len(order)), *checkpoint

    return {name: manifest_name(*max(found, key=rank)) for name, found in sorted(candidates.items())}


def own_names(names: Iterable[str]) -> list[str]:
    """Those that a script has given."""
    return [name for name in names if name != ENDED]


def names_of(vault: Vault) -> dict[str, list[str]]:
    """The names that point to each manifest."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, manifest in targets(vault).items():
        found[manifest].append(name)
    return dict(found)
