"""Under which claim a run saves: part of the training state, so that whoever is given the state knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.state.vault.manifest import Claim


class HeldClaim:
    """An extra of the training state. Whoever founds a lineage sets it; the others are given it."""

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.elsewhere = False
        """Whether what it goes on from may not be whole in the first place, since it was read from another
        one."""

    @property
    def known(self) -> bool:
        return self.claim is not None

    def state_dict(self) -> dict[str, Any]:
        claim = None if self.claim is None else msgspec.to_builtins(self.claim)
        return {"claim": claim, "elsewhere": self.elsewhere}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.claim = None if state["claim"] is None else msgspec.convert(state["claim"], Claim)
        self.elsewhere = bool(state.get("elsewhere"))
