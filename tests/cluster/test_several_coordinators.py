"""What is agreed on is in etcd, and several coordinators decide: whoever of them dies, training goes on, and
ends with the same bits."""

import os
import re
import signal

from training_run import TrainingRun

from servers.etcd import Etcd


def leader(run: TrainingRun, etcd: Etcd) -> int:
    """Which coordinator leads."""
    found: list[int] = []

    def leads() -> bool:
        told = [value.decode() for value in etcd.values("/leader")]
        found[:] = [run.directory.read().addresses.index(address) for address in told]
        return bool(found)

    run.wait_until("a coordinator leads", leads)
    return found[0]


def newest_view(run: TrainingRun) -> int:
    return int(run.views().splitlines()[-1].split()[1].rstrip(":"))


def test_the_leader_is_killed_and_then_that_of_etcd(own_etcd_cluster: Etcd) -> None:
    options = ("--store", own_etcd_cluster.address("tests"), "--coordinators", "3")
    with TrainingRun(3, options=options) as run:
        run.wait_for_all()
        first = leader(run, own_etcd_cluster)
        os.kill(run.coordinator_pid(first), signal.SIGKILL)
        run.kill(1)
        run.wait_for_life(1, 2)
        run.wait_for_steps(0, 1, 2, more=2)
        assert leader(run, own_etcd_cluster) >= 0
        own_etcd_cluster.kill(own_etcd_cluster.leader())
        run.kill(2)
        run.wait_for_life(2, 2)
        run.wait_for_all()
        run.finish()


def test_without_any_coordinator_steps_go_on(own_etcd_cluster: Etcd) -> None:
    options = ("--store", own_etcd_cluster.address("tests"), "--coordinators", "2")
    with TrainingRun(2, options=options) as run:
        run.wait_for_all()
        before = newest_view(run)
        pids = [run.coordinator_pid(index) for index in range(2)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        run.wait_for_step(max(run.steps().values()) + 60)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        run.kill(0)
        run.wait_for_life(0, 2)
        run.wait_for_all()
        run.finish()
        assert newest_view(run) > before
        # Whoever was silent all the time was the coordinators, and nobody is evicted for that.
        assert not re.search("nothing is heard|hangs|cut off", run.views()), run.views()


def test_a_store_that_nobody_can_reach_is_named_before_anything_begins() -> None:
    with TrainingRun(2, options=("--store", "etcd://127.0.0.1:1/tests")) as run:
        assert run.wait() == 8
        assert "etcd at 127.0.0.1:1 does not answer" in run.said("stderr")
        assert not run.directory.path.exists()
