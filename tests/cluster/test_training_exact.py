"""Bit for bit: whatever dies, and wherever, the trained state is that of a run in which nothing did."""

import contextlib
import os
import random
import signal

import pytest
from training_run import TrainingRun

from outlast.crashpoints import POINTS

# One replica lives through it all, until the test kills it, too: the state must not die out.
CRASHES = {
    2: "scatter@8:0 joining@any:0.2 gather@any:0.3 backward@any:1.2 optimizer@any:1.3",
    4: "forward@8:0 scatter@8:1 serving@any:2 joining@any:0.2 reduced@any:0.3 gather@any:1.2 "
    "optimizer@any:2.2 backward@any:3.2",
}


def lives(plan: str, replica: int) -> int:
    """How many lives of a replica a plan ends."""
    return sum(word.partition(":")[2].partition(".")[0] == str(replica) for word in plan.split())


@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_a_kill_at_every_point_leaves_no_trace(replicas: int) -> None:
    plan = CRASHES[replicas]
    last = replicas - 1
    with TrainingRun(replicas, "--crash", plan) as run:
        for replica in range(last):
            run.wait_for_life(replica, 1 + lives(plan, replica))
        # Only now the last one: in its next lives the plan has points for it, too.
        run.kill(last)
        run.wait_for_life(last, 2 + lives(plan, last))
        run.finish()
        deaths = run.said("stderr").count("] replica")
        assert deaths == 1 + len(plan.split()), run.said("stderr")


@pytest.mark.soak
@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
@pytest.mark.parametrize("point", POINTS)
def test_kills_at_one_point_in_any_number_of_replicas(replicas: int, point: str) -> None:
    first = f"{point}@7" if point not in ("joining", "serving") else "forward@7"
    plan = " ".join(
        f"{first}:{replica} {point if point != 'serving' else 'joining'}@any:{replica}.2"
        for replica in range(replicas - 1)
    )
    if point == "serving" and replicas > 2:
        plan = f"forward@7:0 serving@any:1 {' '.join(f'forward@9:{r}' for r in range(2, replicas - 1))}"
    elif point == "serving":
        plan = "forward@7:0 serving@any:0.2"
    with TrainingRun(replicas, "--crash", plan, steps=200) as run:
        for replica in range(replicas - 1):
            wanted = 1 + lives(plan, replica) - (plan.endswith("serving@any:0.2"))
            run.wait_for_life(replica, wanted)
        run.kill(replicas - 1)
        run.wait_for_life(replicas - 1, 2)
        run.finish()


def test_random_kills_leave_no_trace() -> None:
    kill_at_random(1, replicas=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_random_kills_leave_no_trace(seed: int) -> None:
    kill_at_random(seed, replicas=2 + seed % 4)


def kill_at_random(seed: int, replicas: int) -> None:
    """Kill members and learners, one or several at once, at any moment; but always leave one member."""
    rng = random.Random(seed)
    killed: set[int] = set()
    with TrainingRun(replicas) as run:
        run.wait_for_all()
        for _ in range(6):
            run.wait_for_step(max(run.steps().values()) + rng.randrange(1, 12))
            status = run.wait_for("a status", lambda _: True)
            pids = {pulse.replica: pulse.pid for pulse in status.pulses if pulse.pid not in killed | {0}}
            members = [member.replica for member in status.view.members if member.replica in pids]
            spared = rng.choice(members)
            some = [replica for replica in pids if replica != spared]
            for replica in rng.sample(some, min(len(some), rng.randrange(1, replicas))):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[replica], signal.SIGKILL)
                killed.add(pids[replica])
        run.wait_for_members(set(range(replicas)))
        run.wait_for_steps(*range(replicas), more=2)
        run.finish()


def test_any_number_of_replicas_trains_the_same(soak: bool) -> None:
    """Without faults, with shards unevenly spread; `finish` compares with a single process."""
    for replicas in (1, 2, 3, 5) if soak else (1, 3):
        with TrainingRun(replicas, steps=100, shards=4, pace_s=0) as run:
            run.finish()
            assert run.said("stdout").count("HASH") == replicas


def test_when_all_have_died_the_job_begins_again() -> None:
    """Until there are checkpoints, that is all that can be done; it is the same training."""
    with TrainingRun(2) as run:
        run.wait_for_all()
        for pid in run.replica_pids().values():
            os.kill(pid, signal.SIGKILL)
        run.wait_for_life(0, 2)
        run.wait_for_life(1, 2)
        run.finish()
        assert run.said("stdout").count("joined at 0") == 4
