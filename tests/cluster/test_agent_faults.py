"""Agents that are killed or told to leave: their replicas go with them, and nobody else's."""

import os
import signal
from typing import Any

from outlast import kinship
from outlast.protocol.views import Standing

Job = Any


def family(agent: int) -> list[int]:
    """The agent's forkserver and its replicas."""
    children = kinship.children_of(agent)
    assert len(children) == 3
    return children


def test_an_agents_replicas_share_its_fate(start_job: Job) -> None:
    with start_job(4, "--agents", "2") as job:
        job.wait_for_all()
        pids = job.replica_pids()
        first = job.agent_pid(1)
        lost = family(first)
        assert {pids[1], pids[3]} < set(lost)

        os.kill(first, signal.SIGKILL)
        job.wait_until("its replicas and its forkserver die", lambda: not any(map(kinship.alive, lost)))
        job.wait_for_life(1, 2)
        job.wait_for_life(3, 2)
        job.wait_for_steps(0, 1, 2, 3)
        now = job.replica_pids()
        assert (now[0], now[2]) == (pids[0], pids[2]), "the other agent's replicas never noticed"
        second = job.agent_pid(1)
        assert second != first

        # Preemption: they leave in order, and are not started again.
        lost = [second, *family(second)]
        os.kill(second, signal.SIGTERM)
        job.wait_until("all of it is gone", lambda: not any(map(kinship.alive, lost)))
        job.wait_for_steps(0, 2)
        status = job.wait_for_members({0, 2})
        assert {seat.replica: seat.standing for seat in status.seats} == {
            0: Standing.MEMBER,
            1: Standing.GONE,
            2: Standing.MEMBER,
            3: Standing.GONE,
        }
        told = job.said("stderr")
        assert "replica 1 leaves" in told
        assert "replica 3 leaves" in told
        assert "was killed" not in told
        assert "exited" not in told
        assert "done at step" in job.log(1)
        assert job.replica_pids() == {0: pids[0], 2: pids[2]}
        assert job.finish() == 0
        assert job.processes() == []


def test_a_dead_forkserver_is_nobodys_loss(start_job: Job) -> None:
    with start_job(2) as job:
        job.wait_for_all()
        pids = job.replica_pids()
        agent = job.agent_pid()
        [forkserver] = set(kinship.children_of(agent)) - set(pids.values())
        os.kill(forkserver, signal.SIGKILL)
        job.kill(1)
        job.wait_for_life(1, 2)
        assert job.replica_pid(0) == pids[0]
        assert job.agent_pid() == agent
        assert job.finish() == 0
