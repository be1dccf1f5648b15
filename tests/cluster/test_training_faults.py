"""Training through more than plain deaths: stopped, preempted, short of replicas or of a coordinator."""

import os
import signal

import pytest
from training_run import TrainingRun

from outlast import kinship


def test_a_replica_that_was_stopped_is_evicted_and_comes_back() -> None:
    # A wide window: an evicted process has a multiple of it to come back by itself before it is replaced.
    with TrainingRun(3, options=("--detect-within", "2")) as run:
        run.wait_for_all()
        pid = run.kill(1, signal.SIGSTOP)
        run.wait_for_members({0, 2})
        os.kill(pid, signal.SIGCONT)
        run.wait_for_life(1, 2)
        run.wait_for_steps(0, 1, 2)
        assert run.replica_pid(1) == pid, "it is the same process, in a new life"
        run.finish()
        assert run.said("stdout").count("HASH") == 3


def test_who_was_evicted_while_it_gave_its_state_is_heard_in_its_next_life() -> None:
    """It sends the rest when it is back, which is for nobody; what it says after that is for all."""
    with TrainingRun(3, "--stop-giving", "1", steps=200, options=("--detect-within", "2")) as run:
        run.wait_for_all()
        pid = run.replica_pid(1)
        run.kill(0)
        run.wait_for_members({2})
        assert "STOPPED while it gives the state to replica 0" in run.said("stdout")
        os.kill(pid, signal.SIGCONT)
        run.wait_for_life(0, 2)
        run.wait_for_life(1, 2)
        run.wait_for_steps(0, 1, 2)
        assert run.replica_pid(1) == pid, "it is the same process, in a new life"
        run.finish()
        assert "waited for each other" not in run.said("stderr")


def test_the_coordinator_dies_during_a_recovery() -> None:
    with TrainingRun(3) as run:
        run.wait_for_all()
        coordinator = run.coordinator_pid()
        run.kill(1)
        os.kill(coordinator, signal.SIGKILL)
        run.wait_for_life(1, 2)
        assert run.coordinator_pid() != coordinator
        # And once more, while another one learns.
        run.kill(0)
        run.wait_for("0 is back", lambda status: any(m.replica == 0 for m in status.view.learners))
        os.kill(run.coordinator_pid(), signal.SIGKILL)
        run.wait_for_life(0, 2)
        run.finish()


def test_an_agent_dies_with_its_replicas_and_another_is_told_to_leave() -> None:
    with TrainingRun(4, options=("--agents", "2")) as run:
        run.wait_for_all()
        before = run.replica_pids()
        os.kill(run.agent_pid(1), signal.SIGKILL)
        run.wait_for_life(1, 2)
        run.wait_for_life(3, 2)
        run.wait_for_steps(0, 1, 2, 3)
        now = run.replica_pids()
        assert (now[0], now[2]) == (before[0], before[2])
        # Preemption: they finish their step, leave in order, and are not started again.
        agent = run.agent_pid(0)
        leaving = [agent, now[0], now[2]]
        os.kill(agent, signal.SIGTERM)
        run.wait_until("they are gone", lambda: not any(map(kinship.alive, leaving)))
        run.wait_for_members({1, 3})
        run.finish()
        told = run.said("stderr")
        assert "replica 0 leaves" in told and "replica 2 leaves" in told
        assert told.count("was killed") <= 4, "twice for each replica of the agent that was killed"
        assert "Traceback" not in told
        assert run.said("stdout").count("HASH") == 2


def test_a_word_that_is_lost_is_said_again_in_another_view() -> None:
    """That cannot happen, as far as we know. The run goes on all the same."""
    with TrainingRun(3, "--lose", "30:1", steps=60, options=("--detect-within", "0.5")) as run:
        run.wait_for_step(40)
        run.finish()
        assert "LOST the part of step 30" in run.said("stdout")
        assert "have waited for each other" in run.said("stderr")
        assert run.said("stderr").count("lacking parts of [1]") >= 1
        assert run.said("stdout").count("HASH") == 3


def test_below_the_least_number_of_replicas_the_job_waits() -> None:
    with TrainingRun(3, options=("--min-replicas", "2")) as run:
        run.wait_for_all()
        pids = run.replica_pids()
        for replica in (0, 1):
            os.kill(pids[replica], signal.SIGKILL)
        run.wait_for("a pause", lambda status: status.view.paused)
        before = run.steps()[2]
        held = [before]
        while (status := run.status()) is not None and status.view.paused:
            held.append(run.steps()[2])
        assert max(held[:-1], default=before) <= before + 1, "at most the step that it was in is completed"
        run.wait_for_life(0, 2)
        run.wait_for_life(1, 2)
        run.wait_for_steps(0, 1, 2)
        assert run.replica_pid(2) == pids[2]
        run.finish()


def test_with_workers_nothing_is_lost_and_nobody_is_left_behind() -> None:
    with TrainingRun(2, "--workers", "2") as run:
        run.wait_for_all()
        first = run.replica_pid(0)
        workers = kinship.children_of(first)
        assert len(workers) >= 2
        run.kill(0)
        run.wait_until("its workers are gone", lambda: not any(map(kinship.alive, workers)))
        run.wait_for_life(0, 2)
        run.wait_for_steps(0, 1)
        run.kill(1)
        run.wait_for_life(1, 2)
        run.finish()


@pytest.mark.soak
def test_who_joins_among_steps_of_several_seconds_gets_in() -> None:
    """Members come to the view with it at the end of their step; its first connections are closed by then."""
    with TrainingRun(2, pace_s=6.5, steps=60) as run:
        run.wait_for_all()
        run.kill(1)
        status = run.wait_for_life(1, 2)
        came = run.steps()[1]
        run.wait_until("it takes part", lambda: run.steps()[1] > came + 1)
        member = status.view.member(1)
        assert member is not None and member.incarnation == 2, "its first new life is the one that joins"
        run.finish()
