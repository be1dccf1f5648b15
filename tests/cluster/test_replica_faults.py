"""Replicas that die, stop and hang; the others never do."""

import os
import signal
from pathlib import Path
from typing import Any

from outlast.protocol.messages import Status
from outlast.protocol.views import Standing

Job = Any


def standing(status: Status, replica: int) -> Standing:
    return next(seat.standing for seat in status.seats if seat.replica == replica)


def resident_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


def test_a_killed_replica_is_replaced_and_the_others_go_on(start_job: Job) -> None:
    with start_job(3) as job:
        before = job.wait_for_all().view.number
        pids = job.replica_pids()
        step = job.steps()[0]
        for victim, life in ((1, 2), (1, 3), (0, 2)):
            job.kill(victim)
            job.wait_for_life(victim, life)
            job.wait_for_steps(0, 1, 2)
        now = job.replica_pids()
        assert now[2] == pids[2], "a survivor keeps its process"
        assert now[1] != pids[1]
        assert now[0] != pids[0]
        assert job.steps()[2] > step, "no step is done again"
        # Without it, with it as a learner, with it as a member: three views for each death.
        assert job.status().view.number == before + 9
        for pid in (job.coordinator_pid(), job.agent_pid()):
            assert resident_mb(pid) < 60
            assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
        assert job.finish() == 0
        assert job.processes() == []
        assert "was killed by SIGKILL" in job.said("stderr")


def test_a_stopped_or_hanging_replica_is_evicted_and_comes_back(start_job: Job) -> None:
    with start_job(4, "--detect-within", "0.5") as job:
        job.wait_for_all()
        pids = job.replica_pids()
        job.wait_for("a pace of every replica", lambda status: all(p.pace_s > 0 for p in status.pulses))

        # Nobody wakes this one.
        os.kill(pids[1], signal.SIGSTOP)
        job.wait_for("1 is evicted", lambda status: standing(status, 1) is Standing.EVICTED)

        os.kill(pids[2], signal.SIGSTOP)
        job.wait_for("2 is evicted", lambda status: standing(status, 2) is Standing.EVICTED)
        os.kill(pids[2], signal.SIGCONT)
        job.wait_for_life(2, 2)
        assert job.replica_pid(2) == pids[2], "the same process, in a new life"
        assert "fenced: " in job.log(2)

        os.kill(pids[3], signal.SIGUSR1)
        job.wait_for_life(3, 2)
        assert "replica 3 hangs at step" in job.said("stderr")
        assert job.replica_pid(3) != pids[3]

        job.wait_for_life(1, 2)
        assert job.replica_pid(1) != pids[1]
        assert job.replica_pid(0) == pids[0]
        job.wait_for_steps(0, 1, 2, 3)
        assert job.finish() == 0
        assert job.processes() == []
