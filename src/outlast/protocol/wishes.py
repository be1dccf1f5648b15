"""What the parts of a step say of checkpoints, and what its record says then, the same for all."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.protocol.kinds import PartNote
from outlast.protocol.naming import Kept, choose
from outlast.protocol.step_words import Verdict

YES = 1
NOT_NOW = 2
"""What a part says of saving the state after its step; 0 is for one who does not care."""


def decided(parts: Mapping[int, PartNote], verdict: Verdict) -> tuple[bool, Kept | None]:
    """Whether the state after this step is saved, and which one that is kept for a name is written now. Where
    states are compared, only such are saved."""
    compared = sum(part.check is not None for part in parts.values()) > 1
    wishes = {part.save for part in parts.values()}
    keeps = {replica: part.keeps for replica, part in parts.items() if part.keeps}
    wanted = YES in wishes and NOT_NOW not in wishes and not keeps
    kept = choose(keeps, [part.check for part in parts.values()]) if NOT_NOW not in wishes else None
    return wanted and (verdict.chosen or not compared), kept
