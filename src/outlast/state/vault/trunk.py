"""Which checkpoints a new start may go on from: those along the trunk, newest first.

Claims make the history of a vault a tree: each goes on from a checkpoint of an earlier claim, or from none.
The trunk is the path from the newest claim back to the root: the claim's own checkpoints, then the one that
it began with and what came before that under its claim, and so on. Everything else is a branch that
somebody went back behind, or that a writer who was cut off has left.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from outlast.state.vault.names import MAX_STEP, Checkpoint

Base = Checkpoint | Literal["unknown"] | None
"""What a claim goes on from; None if it began from nothing."""


def walk_trunk(
    claims: Iterable[int], checkpoints: Iterable[Checkpoint], base_of: Callable[[int], Base]
) -> Iterator[Checkpoint]:
    """The trunk, newest first. `base_of` is asked only as far back as the caller reads.

    Where the base of a claim is unknown, since the claim is damaged, the claim before it is taken: claims are
    made in one order, and most of them go on from the newest checkpoint.
    """
    steps: dict[int, list[int]] = defaultdict(list)
    for checkpoint in checkpoints:
        steps[checkpoint.claim].append(checkpoint.step)
    numbers = sorted({*claims, *steps})
    claim, last_step = numbers[-1] if numbers else 0, MAX_STEP
    while claim:
        for step in sorted(steps.get(claim, ()), reverse=True):
            if step <= last_step:
                yield Checkpoint(claim, step)
        base = base_of(claim)
        if base is None:
            return
        if base == "unknown":
            claim, last_step = max((number for number in numbers if number < claim), default=0), MAX_STEP
        else:
            assert base.claim < claim, "a claim goes on from an earlier one"
            claim, last_step = base
