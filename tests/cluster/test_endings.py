"""How jobs end: asked to, killed, or by themselves. Whatever happens, nothing is left running."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.testing.cluster import LocalCluster
from patience import PATIENCE_S

Job = Any
Script = Any

RUNAWAYS = """
    import os, subprocess, sys, time
    if not os.path.exists(sys.argv[1]):
        print("nothing to do")
        sys.exit()
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
    print("all have run away")
    time.sleep(1000)
"""


def test_a_killed_launcher_takes_everything_along(script: Script, tmp_path: Path) -> None:
    todo = tmp_path / "todo"
    todo.touch()
    command = [script(RUNAWAYS), str(todo)]
    with LocalCluster(2, command) as cluster:
        cluster.wait_until("runaways", lambda: cluster.said("stdout").count("all have run away") == 2)
        # The launcher, the coordinator, the agent, its forkserver, and two replicas with three runaways each.
        assert len(cluster.processes()) == 4 + 2 * 4
        cluster.signal_launcher(signal.SIGKILL)
        assert cluster.wait() == -signal.SIGKILL
        cluster.wait_until("nothing is left", lambda: not cluster.processes())
    todo.unlink()
    with LocalCluster(2, command) as cluster:
        assert cluster.wait() == 4, "there was nothing to do, so nobody has joined"
        assert cluster.processes() == []


def test_ctrl_c_has_everybody_leave_in_order(start_job: Job) -> None:
    with start_job(2) as job:
        job.wait_for_all()
        # As a terminal does it: to the whole process group.
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait() == 130
        assert job.processes() == []
        for replica in (0, 1):
            assert "done at step" in job.log(replica)
        assert "was killed" not in job.said()
        assert "Traceback" not in job.said()
        last = job.said("stderr").splitlines()[-1]
        assert re.fullmatch(
            r"outlast: stopped at step \d+; nothing was saved, since the script gives no checkpoints= to "
            r"outlast.join",
            last,
        )


def test_who_does_not_want_to_leave_is_made_to(script: Script) -> None:
    stubborn = script("""
        import signal, time
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("I stay")
        while True:
            time.sleep(1000)
    """)
    with LocalCluster(2, [stubborn], options=["--grace", "1000"]) as cluster:
        cluster.wait_until("they stay", lambda: cluster.said("stdout").count("I stay") == 2)
        cluster.signal_launcher(signal.SIGTERM)
        cluster.wait_until("a word on it", lambda: "once more to stop at once" in cluster.said("stderr"))
        assert len(cluster.processes()) > 1
        cluster.signal_launcher(signal.SIGTERM)
        assert cluster.wait() == 143
        cluster.wait_until("nothing is left", lambda: not cluster.processes())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_before_it_has_begun(script: Script, number: int, code: int) -> None:
    """The signal comes while the children are being started, and must not be lost on them."""
    with LocalCluster(1, [script("import time; time.sleep(1000)")], options=["--grace", "1"]) as cluster:
        cluster.wait_until("the first word", lambda: "1 replica" in cluster.said("stderr"))
        cluster.signal_launcher(number)
        assert cluster.wait() == code
        assert cluster.said("stderr").endswith("outlast: stopped before the first step\n")
        cluster.wait_until("nothing is left", lambda: not cluster.processes())


def test_a_script_that_cannot_be_imported(script: Script) -> None:
    with LocalCluster(2, [script("def train():\n    import no_such_module\n\ntrain()\n")]) as cluster:
        assert cluster.wait() == 4
        assert cluster.processes() == []
        told = cluster.said("stderr")
        assert told.count("Traceback") == 1, "it is shown once, though there are three or four"
        assert "No module named 'no_such_module' (the same traceback as above, 2 times by now)" in told
        assert "outlast/" not in told.partition("Traceback")[2].partition("ModuleNotFoundError")[0], (
            "only frames of the script are shown"
        )
        verdict, why, remedy = told.splitlines()[-3:]
        assert re.fullmatch(r"outlast: failed after .* s, before its first step", verdict)
        assert re.fullmatch(r"outlast: replica [01] exited with status 1, 2 times in a row", why)
        assert re.fullmatch(r"outlast: see `outlast logs job --replica [01]`", remedy)
        logged = "".join(cluster.directory.log(replica).read_text() for replica in (0, 1))
        assert logged.count("Traceback") >= 3, "the logs keep everything"


def test_a_crash_loop_ends_the_job(script: Script) -> None:
    joins_and_fails = script("""
        from outlast.train.link import Link
        from outlast.wire.handover import handover

        link = Link(handover())
        link.open()
        link.wait(lambda: link.view.number > 0)
        link.ready()
        link.wait(lambda: link.is_member)
        print("member in life", link.incarnation)
        raise RuntimeError("this will never work")
    """)
    with LocalCluster(1, [joins_and_fails]) as cluster:
        assert cluster.wait() == 4
        assert cluster.processes() == []
        assert cluster.said("stdout").splitlines() == [f"[0] member in life {n}" for n in range(1, 6)]
        told = cluster.said("stderr")
        assert "outlast: replica 0 exited with status 1, 5 times in a row\n" in told
        assert told.count("Traceback") == 1
        assert "RuntimeError: this will never work (the same traceback as above, 5 times by now)" in told


def test_a_full_disk_is_named(script: Script, tmp_path: Path) -> None:
    """Writing past RLIMIT_FSIZE fails as a full disk does. The store's log is the first file to reach it."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"
    limited += "from outlast.cli import main; sys.exit(main(sys.argv[1:]))"
    for limit_bytes in (10, 40):
        done = subprocess.run(
            [sys.executable, "-c", limited.format(limit_bytes), "run", script("print('hi')")],
            env={**os.environ, "OUTLAST_HOME": str(tmp_path / str(limit_bytes))},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 6, done
        assert "Traceback" not in done.stderr


def test_a_disk_that_is_full_for_a_while_ends_nothing(start_job: Job) -> None:
    """The same limit, for one process at a time and lifted again."""

    def limit(pid: int, size_bytes: int) -> None:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))

    with start_job(3) as job:
        job.wait_for_all()
        agent, coordinator = job.agent_pid(), job.coordinator_pid()
        limit(agent, 0)
        job.kill(1)
        job.wait_for_members({0, 2})
        job.wait_until("the reason", lambda: "replica 1 cannot be started yet" in job.said("stderr"))
        job.wait_for_steps(0, 2)
        limit(coordinator, 0)
        job.kill(2)
        job.wait_for("trouble", lambda status: "no space left" in status.trouble)
        limit(coordinator, resource.RLIM_INFINITY)
        job.wait_for_members({0})
        job.wait_for_steps(0)
        limit(agent, resource.RLIM_INFINITY)
        job.wait_for_life(1, 2)
        job.wait_for_life(2, 2)
        assert (job.agent_pid(), job.coordinator_pid()) == (agent, coordinator)
        assert job.status().trouble == ""
        assert job.finish() == 0


@pytest.mark.parametrize("what", ["agents/agent-0", "logs"])
def test_a_replica_that_cannot_be_started_again_ends_the_job(start_job: Job, what: str) -> None:
    """Something has taken the agent's directory, or that of the logs: the agent says so, and goes on."""
    with start_job(2) as job:
        job.wait_for_all()
        path = job.directory.path / what
        path.rename(path.with_name("lost"))
        path.touch()
        job.kill(1)
        assert job.wait() == 4
        told = job.said("stderr")
        assert "replica 1 could not be started" in told
        assert str(path) in told
        assert "Traceback" not in told
        assert job.processes() == []
