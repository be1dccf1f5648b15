"""Parts that are stopped (SIGSTOP) and never woken, and parts that die together."""

import os
import signal
from pathlib import Path

from outlast.kinship import children_of, stat
from outlast.testing.cluster import LocalCluster

STAND_IN = ["-m", "outlast.testing.standin", "--step-s", "0.02", "--steps"]
FOR_EVER = [*STAND_IN, "1000000"]

WITH_A_CHILD_OF_ITS_OWN = """
import subprocess, time
print(subprocess.Popen(["setsid", "sleep", "1000"]).pid, flush=True)
time.sleep(1000)
"""


def forkserver_pid(cluster: LocalCluster) -> int:
    """The agent's child that is no replica: replicas have sessions and names of their own."""
    replicas = set(cluster.replica_pids().values())
    (pid,) = [pid for pid in children_of(cluster.agent_pid()) if pid not in replicas]
    return pid


def test_a_coordinator_that_is_stopped_is_replaced() -> None:
    with LocalCluster(2, [*STAND_IN, "150"]) as cluster:
        cluster.wait_for_members({0, 1})
        os.kill(cluster.coordinator_pid(), signal.SIGSTOP)
        assert cluster.wait() == 0


def test_a_forkserver_that_is_stopped_is_replaced_when_it_is_needed() -> None:
    with LocalCluster(2, FOR_EVER) as cluster:
        cluster.wait_for_members({0, 1})
        os.kill(forkserver_pid(cluster), signal.SIGSTOP)
        cluster.kill(1)
        cluster.wait_for_life(1, 2)


def test_a_stopped_agent_does_not_hold_up_the_end() -> None:
    with LocalCluster(2, FOR_EVER, options=["--grace", "0.5"]) as cluster:
        cluster.wait_for_members({0, 1})
        os.kill(cluster.agent_pid(), signal.SIGSTOP)
        cluster.signal_launcher(signal.SIGTERM)
        assert cluster.wait() == 143
        cluster.wait_until("nothing is left", lambda: not cluster.processes())


def test_what_an_agent_and_its_forkserver_leave_behind_together_is_buried(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITH_A_CHILD_OF_ITS_OWN)
    with LocalCluster(1, [str(script)]) as cluster:
        cluster.wait_until("its child", lambda: bool(cluster.said("stdout").strip()))
        orphan = int(cluster.said("stdout").split()[-1])
        agent = cluster.agent_pid()
        both = [agent, *(pid for pid in children_of(agent) if _is_forkserver(pid))]
        for pid in both:
            os.kill(pid, signal.SIGKILL)
        cluster.wait_until("the orphan is gone", lambda: stat(orphan) is None)
        cluster.wait_until("another one", lambda: cluster.said("stdout").count("[0]") == 2)


def _is_forkserver(pid: int) -> bool:
    found = stat(pid)
    return found is not None and not found.name.startswith("replica-")


def test_an_environment_need_not_be_text(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.environb[b'ODD'])")
    with LocalCluster(1, [str(script)], environment={"ODD": os.fsdecode(b"\xff\xfe")}) as cluster:
        assert cluster.wait() == 4, "it trains nothing"
        assert r"b'\xff\xfe'" in cluster.said("stdout")


def test_when_all_agents_are_told_to_leave_the_job_ends_without_a_wait() -> None:
    with LocalCluster(2, FOR_EVER, options=["--agents", "2"]) as cluster:
        cluster.wait_for_members({0, 1})
        for index in range(2):
            os.kill(cluster.agent_pid(index), signal.SIGTERM)
        assert cluster.wait() == 4
        assert "all agents have left" in cluster.said("stderr")
