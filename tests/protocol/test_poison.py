"""A shard that fails on two replicas ends the job; anything less does not."""

from rosters import dead, empty, first_process, formed

from outlast.protocol.poison import REMEMBERED, remembered, verdict
from outlast.protocol.roster import Change, plan
from outlast.protocol.views import Membership, ShardFailure


def failure(
    replica: int, *, step: int = 17, shard: int = 3, process: int | None = None, reason: str = "ValueError"
) -> ShardFailure:
    process = first_process(replica) if process is None else process
    return ShardFailure(step=step, shard=shard, replica=replica, process=process, reason=reason)


def failed(membership: Membership, *failures: ShardFailure, last_words: str = "") -> Membership:
    """The agents tell of these failures."""
    return plan(
        membership,
        Change(
            removals={r: removal for f in failures for r, removal in dead(f.replica).items()},
            failures={f.replica: f for f in failures},
            last_words={f.replica: last_words for f in failures},
        ),
    )


def test_one_failure_is_the_replicas_own() -> None:
    after = failed(formed(3), failure(1))
    assert after.outcome is None
    assert after.failures == (failure(1),)


def test_the_same_shard_of_the_same_step_on_two_replicas_ends_the_job() -> None:
    after = failed(failed(formed(3), failure(1)), failure(2, reason="KeyError: 5"), last_words="Traceback…")
    assert after.outcome is not None
    assert not after.outcome.finished
    assert after.outcome.reason == "shard 3 of step 17 failed on replica 1 and on replica 2: KeyError: 5"
    assert (after.outcome.replica, after.outcome.last_words) == (2, "Traceback…")


def test_what_all_find_out_from_the_records_is_said_in_their_words_alone() -> None:
    reason = "TrainingDiverged: step 11: the model has diverged"
    one, other = (failure(replica, step=11, shard=-1, reason=reason) for replica in (0, 1))
    after = failed(formed(2), one, other)
    assert after.outcome is not None
    assert (after.outcome.reason, after.outcome.last_words) == ("step 11: the model has diverged", "")


def test_two_failures_that_are_learned_of_together_count_as_well() -> None:
    assert failed(formed(3), failure(0), failure(2)).outcome is not None


def test_other_shards_and_other_steps_are_other_matters() -> None:
    failures = (failure(0), failure(1, shard=4), failure(2, step=18))
    assert verdict(failures, {}) is None


def test_a_step_that_fails_alike_on_two_replicas_ends_the_job_when_nobody_is_left() -> None:
    one, other = failure(0, shard=0, reason="NameError: x"), failure(1, shard=1, reason="NameError: y")
    assert failed(formed(3), one, other).outcome is None
    after = failed(formed(2), one, other)
    assert after.outcome is not None
    assert after.outcome.reason == "step 17 failed on replica 0 and on replica 1: NameError: y"
    assert verdict((one, failure(1, shard=1, reason="OSError: disk")), {}, nobody_left=True) is None
    assert verdict((failure(0, shard=-1), failure(1, shard=-1)), {}, nobody_left=True) is not None
    assert verdict((failure(0, shard=-1), failure(1, shard=-1)), {}) is None


def test_a_shard_that_fails_again_and_again_on_one_replica_is_left_to_the_restarts() -> None:
    failures = remembered((), [failure(1, process=process) for process in range(1, 5)])
    assert len(failures) == 4
    assert verdict(failures, {}) is None
    assert failed(empty(1), failure(0)).outcome is None


def test_a_process_counts_once_and_what_was_told_first_is_kept() -> None:
    once = failed(formed(3), failure(1, reason="its own words"))
    twice = failed(once, failure(1, reason="exited with status 1"))
    assert [f.reason for f in twice.failures] == ["its own words"]


def test_processes_of_different_agents_may_have_the_same_number() -> None:
    failures = remembered((failure(1, process=7),), [failure(2, process=7)])
    assert len(failures) == 2


def test_only_the_newest_failures_are_kept() -> None:
    many = [failure(0, step=step, process=step) for step in range(REMEMBERED + 5)]
    kept = remembered(tuple(many[:-1])[-REMEMBERED:], many[-1:])
    assert [f.step for f in kept] == list(range(5, REMEMBERED + 5))
