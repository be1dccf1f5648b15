"""Which checkpoints a new start may go on from: those along the trunk, newest first.

Claims make the history of a vault a tree: each goes on from a checkpoint of an earlier claim, or from none.
The trunk is the path from the newest claim back to the root: the claim's own checkpoints, then the one that
it began with and what came before that under its claim, and so on. Everything else is a branch that
somebody went back behind, or that a writer who was cut off has left.

A claim by itself only keeps earlier writers out. It is on the trunk from the first checkpoint on that was
committed under it: until then nothing hangs on what it goes on from, and that may be out of date. Between
its maker's look for a base and its put, the holder of the claim before may have committed once more, and the
maker may have died before it looked again.

Two kinds of claims count at once: that of one who goes back on purpose (`outlast rewind`), and within a run
the one that the coordinator has on record as the last to begin under (`views.Foundation`), since its maker
has looked again. So what a writer that was cut off commits late, when somebody has begun after it, is off the
trunk for its run, though that one may die before it saves anything. Another run knows nothing of that record:
for it such a checkpoint is on the trunk, as long as nothing is saved that contradicts it.

Claims are made in one order, and so are the views of a run. A claim that a replica makes for a view which is
over, because it was stopped just before the put, may come after those of the run's later views. It
supersedes nobody: see `comes_too_late`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

MAX_STEP = 10**12 - 1


class Checkpoint(NamedTuple):
    """What the name of a manifest says: under which claim it was made, and after which step."""

    claim: int
    step: int


class Origin(NamedTuple):
    """Who made a claim: the run, and the view in which its maker was to begin a lineage."""

    run: str
    view: int


Base = Checkpoint | Literal["unknown"] | None
"""What a claim goes on from; None if it began from nothing."""


def walk_trunk(
    claims: Iterable[int],
    checkpoints: Iterable[Checkpoint],
    base_of: Callable[[int], Base],
    goes_back: Callable[[int], bool] = lambda _: False,
    founded: int = 0,
) -> Iterator[Checkpoint]:
    """The trunk, newest first. `base_of` is asked only as far back as the caller reads, and `goes_back` (was
    it made on purpose, to go on from there?) only of claims that may be passed over. `founded` is the claim
    that the reader's run was last allowed to begin under; 0 if it has not begun yet.

    Where the base of a claim is unknown, since the claim is damaged, the claim before it is taken: claims are
    made in one order, and most of them go on from the newest checkpoint.
    """
    steps: dict[int, list[int]] = defaultdict(list)
    for checkpoint in checkpoints:
        steps[checkpoint.claim].append(checkpoint.step)
    numbers = sorted({*claims, *steps})
    claim, last_step = numbers[-1] if numbers else 0, MAX_STEP
    # A later claim goes on from it: then it counts, though its checkpoints may have been pruned.
    gone_on_from = False
    while claim:
        base: Base = "unknown"
        if gone_on_from or claim in steps or claim == founded or goes_back(claim):
            for step in sorted(steps.get(claim, ()), reverse=True):
                if step <= last_step:
                    yield Checkpoint(claim, step)
            base = base_of(claim)
        if base is None:
            return
        gone_on_from = base != "unknown"
        if base == "unknown":
            claim, last_step = max((number for number in numbers if number < claim), default=0), MAX_STEP
        else:
            assert base.claim < claim, "a claim goes on from an earlier one"
            claim, last_step = base


def before_claim(
    number: int,
    claims: Iterable[int],
    checkpoints: Iterable[Checkpoint],
    base_of: Callable[[int], Base],
    goes_back: Callable[[int], bool] = lambda _: False,
    founded: int = 0,
) -> Iterator[Checkpoint]:
    """The trunk as it is for whoever made this claim, without its own checkpoints and later claims'.

    Between looking for a base and making the claim, the holder of the one before may have committed another
    checkpoint. After the claim it can not any more, so one more look tells whether the base was the newest;
    if not, claim again."""
    return walk_trunk(
        [claim for claim in claims if claim < number],
        [checkpoint for checkpoint in checkpoints if checkpoint.claim < number],
        base_of,
        goes_back,
        founded,
    )


def comes_too_late(claim: Origin, earlier: Origin) -> bool:
    """Whether a claim was made for a view that was over when the one with the lower number was made."""
    return claim.run == earlier.run and claim.view < earlier.view
