"""Nobody is believed blindly: wrong numbers do not reach the model, and whoever computes them has to go."""

import random
import re

import pytest
from training_run import TrainingRun

from outlast.train.audit import merge_ledgers

MANTISSA_BITS = 23


@pytest.mark.parametrize(
    "rule",
    [None, *(pytest.param(rule, marks=pytest.mark.soak) for rule in ("trimmed_mean", "nnm_trimmed_mean"))],
)
def test_a_replica_that_computes_nan_is_evicted_and_leaves_no_trace(rule: str | None) -> None:
    with TrainingRun(3, "--sick", "8:1:1", steps=250, shards=5, rule=rule) as run:
        run.wait_for_life(1, 2)
        run.wait_for_all()
        status = run.wait_for("the charge", lambda status: bool(status.charges))
        [charge] = status.charges
        assert (charge.replica, charge.step) == (1, 8)
        assert "computed shard" in charge.reason and "again, with another result" in charge.reason
        run.finish()
        assert re.search(r"replica 1 of \S+, step 8: replica \d computed", run.said("stderr")), run.said(
            "stderr"
        )


def test_of_two_replicas_the_sick_one_is_found() -> None:
    with TrainingRun(2, "--sick", "8:0:2", steps=250, shards=4) as run:
        run.wait_for_life(0, 2)
        run.finish()


def test_where_all_are_sick_at_once_they_compute_it_again() -> None:
    """Nobody can be evicted, for nobody else has the state; and what they have computed helps nobody."""
    with TrainingRun(2, "--sick", "8:0:2", "8:1:2", steps=60, shards=4) as run:
        status = run.wait_for("the charges", lambda status: bool(status.charges))
        assert [charge.replica for charge in status.charges] == [0, 1]
        assert "nobody else holds the state" in status.view.cause
        run.finish()


def test_where_data_is_at_fault_nobody_is_evicted_and_who_holds_what_does_not_matter() -> None:
    bad = ("--bad-sample", "17")
    with TrainingRun(3, steps=60, shards=5, pace_s=0, data=bad) as run:
        run.finish()
        assert "evicted" not in run.said("stderr")
        assert "data or model is at fault" in run.said("stderr")
        assert "SCREENED Screened(left_out=" in run.said("stdout")
        assert merge_ledgers(sorted(run.ledgers.glob("*.ledger"))).left_out_shards > 0


def test_a_flipped_bit_in_a_sum_is_found_by_an_audit() -> None:
    with TrainingRun(3, "--lies", "8:1", "--audit", "1", steps=100, shards=3) as run:
        run.wait_for_life(1, 2)
        status = run.wait_for("the charge", lambda status: bool(status.charges))
        assert [(charge.replica, charge.step) for charge in status.charges] == [(1, 8)]
        run.finish()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_every_flipped_bit_in_a_sum_is_found_by_an_audit(seed: int) -> None:
    rng = random.Random(seed)
    replicas = rng.choice([2, 3, 4])
    step, liar, bit = rng.randrange(1, 60), rng.randrange(replicas), rng.randrange(MANTISSA_BITS)
    options = ("--lies", f"{step}:{liar}:{bit}", "--audit", "1")
    with TrainingRun(replicas, *options, steps=100, shards=replicas) as run:
        run.wait_for_life(liar, 2)
        status = run.wait_for("the charge", lambda status: bool(status.charges))
        assert [(charge.replica, charge.step) for charge in status.charges] == [(liar, step)]
        run.finish()


def test_kills_in_the_middle_of_a_hearing_leave_no_trace() -> None:
    """Replica 2 is the witness against replica 1, and dies before it says so: the next one speaks."""
    with TrainingRun(3, "--sick", "8:1:1", "--crash", "testify@8:2", steps=250, shards=3) as run:
        run.wait_for_life(2, 2)
        run.wait_for_life(1, 2)
        run.finish()


def test_who_is_sick_for_good_is_barred_and_the_job_goes_on_without_it() -> None:
    with TrainingRun(3, "--sick", "8:1:1000000", steps=400, shards=3) as run:
        status = run.wait_for("the third charge", lambda status: len(status.charges) == 3)
        assert {charge.replica for charge in status.charges} == {1}
        run.wait_until("its end", lambda: 1 not in run.replica_pids())
        run.finish()
        assert "is not let in again" in run.said("stderr")
