"""A shard that kills whoever computes it.

When a replica fails in the middle of a shard, the shard goes to another one, as it should: machines fail. But
a sample that makes the program fail will make it fail there, too, and then on the next, until nobody is left;
and after that again, from the last checkpoint. So the failures that a process brought upon itself are kept
with the step and the shard that it was computing. The second replica to fail on the same one is the proof
that neither machine is to blame, and the job ends by naming the shard instead of losing everybody to it.

What was done to a process from outside (a kill, a lost machine) is no failure of its shard and never counts.
"""

from collections.abc import Iterable

from outlast.protocol.views import Outcome, ShardFailure

REMEMBERED = 64
"""Failures kept, the newest ones; the two that matter come within seconds of each other."""


def remembered(known: tuple[ShardFailure, ...], fresh: Iterable[ShardFailure]) -> tuple[ShardFailure, ...]:
    """All failures, one for each process: what is told of it first is kept."""
    counted = {(failure.replica, failure.process) for failure in known}
    new = [failure for failure in fresh if (failure.replica, failure.process) not in counted]
    return (*known, *new)[-REMEMBERED:] if new else known


def verdict(failures: tuple[ShardFailure, ...], last_words: dict[int, str]) -> Outcome | None:
    """The end of the job, if a shard has failed on two replicas; `last_words` are by replica."""
    first: dict[tuple[int, int], ShardFailure] = {}
    for failure in failures:
        earlier = first.setdefault((failure.step, failure.shard), failure)
        if earlier.replica != failure.replica:
            return Outcome(
                finished=False,
                reason=f"shard {failure.shard} of step {failure.step} failed on replica {earlier.replica} "
                f"and on replica {failure.replica}: {failure.reason}",
                replica=failure.replica,
                last_words=last_words.get(failure.replica, ""),
            )
    return None
