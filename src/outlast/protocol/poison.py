"""A shard that kills whoever computes it.

When a replica fails in the middle of a shard, the shard goes to another one, as it should: machines fail. But
a sample that makes the program fail will make it fail there, too, and then on the next, until nobody is left;
and after that again, from the last checkpoint. So the failures that a process brought upon itself are kept
with the step and the shard that it was computing. The second replica to fail on the same one is the proof
that neither machine is to blame, and the job ends by naming the shard instead of losing everybody to it.

A mistake that is not in the data makes every replica fail, each in its own shard of the same step. Two that
fail alike could be a coincidence, a disk that both use; when nobody is left after that, it was the program.

What members find out from the records, which are the same for all, is no failure of theirs: then the job ends
with their words alone.

What was done to a process from outside (a kill, a lost machine) is no failure of its shard and never counts.
"""

from collections.abc import Iterable

from outlast.protocol.views import Outcome, ShardFailure

COMMON = ("TrainingDiverged",)
"""Errors that say something of the job, and nothing of who raises them."""

REMEMBERED = 64
"""Failures kept, the newest ones; the two that matter come within seconds of each other."""


def remembered(known: tuple[ShardFailure, ...], fresh: Iterable[ShardFailure]) -> tuple[ShardFailure, ...]:
    """All failures, one for each process: what is told of it first is kept."""
    counted = {(failure.replica, failure.process) for failure in known}
    new = [failure for failure in fresh if (failure.replica, failure.process) not in counted]
    return (*known, *new)[-REMEMBERED:] if new else known


def verdict(
    failures: tuple[ShardFailure, ...], last_words: dict[int, str], *, nobody_left: bool = False
) -> Outcome | None:
    """The end of the job, if a shard has failed on two replicas, or, with nobody left, a step has failed on
    two in the same way; `last_words` are by replica."""
    first: dict[tuple[int, int | str], ShardFailure] = {}
    for failure in failures:
        names: list[tuple[int, int | str]] = []
        if failure.shard >= 0:
            names.append((failure.step, failure.shard))
        if nobody_left:
            names.append((failure.step, failure.reason.partition(":")[0]))
        for name in names:
            earlier = first.setdefault(name, failure)
            if earlier.replica != failure.replica:
                return _ending(earlier, failure, last_words)
    return None


def _ending(one: ShardFailure, other: ShardFailure, last_words: dict[int, str]) -> Outcome:
    shard = f"shard {other.shard} of " if one.shard == other.shard >= 0 else ""
    kind, _, words = other.reason.partition(": ")
    if kind in COMMON:
        return Outcome(finished=False, reason=words)
    return Outcome(
        finished=False,
        reason=f"{shard}step {other.step} failed on replica {one.replica} and on replica {other.replica}: "
        f"{other.reason}",
        replica=other.replica,
        last_words=last_words.get(other.replica, ""),
    )
