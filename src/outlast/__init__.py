"""PyTorch training that outlasts its machines.

The public names, and nothing else. They are loaded when first used: an agent or a coordinator, which never
uses them, must not pay for loading torch.
"""

from __future__ import annotations

from importlib import import_module

from outlast.errors import OutlastError

TYPE_CHECKING = False
"""Checkers know what is meant; importing `typing` for it would take longer than all the rest here, and the
command wants to be there for Ctrl-C at once."""
if TYPE_CHECKING:
    from typing import Any

    from outlast import rules
    from outlast.state.digest import state_digest
    from outlast.state.vault.loading import Checkpoint, load
    from outlast.train.data import Data
    from outlast.train.job import Job, Step, join
    from outlast.train.seeding import seed

__all__ = [
    "Checkpoint",
    "Data",
    "Job",
    "OutlastError",
    "Step",
    "join",
    "load",
    "rules",
    "seed",
    "state_digest",
]

_HOMES = {
    "Checkpoint": "outlast.state.vault.loading",
    "Data": "outlast.train.data",
    "Job": "outlast.train.job",
    "Step": "outlast.train.job",
    "join": "outlast.train.job",
    "load": "outlast.state.vault.loading",
    "seed": "outlast.train.seeding",
    "state_digest": "outlast.state.digest",
}


def __getattr__(name: str) -> Any:
    if name == "rules":
        # Importing it makes it an attribute, so this is asked once.
        return import_module("outlast.rules")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
