"""Agents and forkservers that are stopped (SIGSTOP) and never woken: they are as good as dead.

The shorter the detection window, the sooner a stopped agent is given up, so these jobs have a short one.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from outlast import kinship

Job = Any

SOON = ("--detect-within", "0.3")
WITHIN_S = 15.0


def forkserver_pid(job: Job, agent: int) -> int:
    """The agent's child that is no replica: replicas have sessions and names of their own."""
    [pid] = set(kinship.children_of(agent)) - set(job.replica_pids().values())
    return pid


def lives(job: Job, replica: int) -> set[int]:
    """Its processes that were ever in a view, as they wrote down themselves."""
    trace: Path = job.directory.path / "traces" / f"replica-{replica}.trace"
    return {json.loads(line)["pid"] for line in trace.read_text().splitlines()}


@pytest.mark.parametrize(
    ("agents", "killed"),
    [
        ("1", False),
        ("2", True),
        pytest.param("1", True, marks=pytest.mark.soak),
        pytest.param("2", False, marks=pytest.mark.soak),
    ],
)
def test_training_that_is_done_ends_although_an_agent_is_stopped(
    start_job: Job, agents: str, killed: bool
) -> None:
    with start_job(3, "--agents", agents, *SOON) as job:
        job.wait_for_all()
        pids = job.replica_pids()
        os.kill(job.agent_pid(), signal.SIGSTOP)
        if killed:
            os.kill(pids.pop(2), signal.SIGKILL)
            job.wait_for_members({0, 1})
        assert job.finish() == 0
        assert {replica: lives(job, replica) for replica in pids} == {r: {pid} for r, pid in pids.items()}
        for replica in pids:
            assert f"[{replica}] it was enough" in job.said("stdout"), "nor are their last lines lost"
            assert "it was enough" in job.log(replica)
        assert job.processes() == []


def test_an_agent_that_is_stopped_in_the_middle_is_replaced(start_job: Job) -> None:
    with start_job(2, "--agents", "2", *SOON) as job:
        job.wait_for_all()
        pids, agent = job.replica_pids(), job.agent_pid(1)
        os.kill(agent, signal.SIGSTOP)
        job.wait_until("it is gone", lambda: not kinship.alive(agent), WITHIN_S)
        job.wait_for_life(1, 2)
        assert job.replica_pid(0) == pids[0]
        job.wait_for_steps(0, 1)
        assert job.finish() == 0


def test_a_forkserver_that_is_stopped_is_replaced_before_it_is_needed(start_job: Job) -> None:
    with start_job(2, *SOON) as job:
        job.wait_for_all()
        pids, agent = job.replica_pids(), job.agent_pid()
        forkserver = forkserver_pid(job, agent)
        os.kill(forkserver, signal.SIGSTOP)
        job.wait_until("it is gone", lambda: not kinship.alive(forkserver), WITHIN_S)
        job.wait_until("there is another", lambda: len(kinship.children_of(agent)) == 3)
        assert job.replica_pids() == pids
        assert job.finish() == 0


def test_an_agent_whose_forkserver_is_stopped_can_be_killed(start_job: Job) -> None:
    with start_job(2) as job:
        job.wait_for_all()
        agent = job.agent_pid()
        forkserver = forkserver_pid(job, agent)
        os.kill(forkserver, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        job.wait_until("the forkserver is gone too", lambda: not kinship.alive(forkserver), WITHIN_S)
        job.wait_for_life(0, 2)
        job.wait_for_life(1, 2)
        assert job.finish() == 0


def test_a_killed_launcher_leaves_nothing_however_much_is_stopped(start_job: Job) -> None:
    with start_job(3, "--agents", "2") as job:
        job.wait_for_all()
        first, second = job.agent_pid(0), job.agent_pid(1)
        pids = job.replica_pids()
        for pid in (forkserver_pid(job, first), second, job.coordinator_pid(), pids[2]):
            os.kill(pid, signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError):
            job.signal_launcher(signal.SIGKILL)
        job.wait_until("nothing is left", lambda: not job.processes())


@pytest.mark.soak
def test_when_all_are_stopped_and_woken_nobody_is_killed(start_job: Job) -> None:
    """The launcher is woken first, and has not seen how long it all lasted."""
    with start_job(2, *SOON) as job:
        job.wait_for_all()
        everybody = [job.pid, job.coordinator_pid(), job.agent_pid()]
        pids = job.replica_pids()
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        woken_at = time.monotonic() + 4.0
        job.wait_until(
            "that is longer than a stopped agent is waited for", lambda: time.monotonic() > woken_at
        )
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        job.wait_for_steps(0, 1)
        assert job.replica_pids() == pids
        assert job.agent_pid() == everybody[2]
        assert job.finish() == 0
