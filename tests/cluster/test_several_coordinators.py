"""What is agreed on is in etcd, and several coordinators decide: whoever of them dies, training goes on, and
ends with the same bits."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_run import TrainingRun

from servers import etcd as etcd_server
from servers.etcd import Etcd
from servers.fixtures import need


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Etcd]:
    need(etcd_server.missing())
    server = Etcd(tmp_path / "etcd", 3)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


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


def test_the_leader_is_killed_and_then_that_of_etcd(cluster: Etcd) -> None:
    options = ("--store", cluster.address("tests"), "--coordinators", "3")
    with TrainingRun(3, options=options) as run:
        run.wait_for_all()
        first = leader(run, cluster)
        os.kill(run.coordinator_pid(first), signal.SIGKILL)
        run.kill(1)
        run.wait_for_life(1, 2)
        run.wait_for_steps(0, 1, 2, more=2)
        assert leader(run, cluster) >= 0
        cluster.kill(cluster.leader())
        run.kill(2)
        run.wait_for_life(2, 2)
        run.wait_for_all()
        run.finish()


def test_without_any_coordinator_steps_go_on(cluster: Etcd) -> None:
    options = ("--store", cluster.address("tests"), "--coordinators", "2")
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
        assert "evicted" not in run.said(), run.said()


def test_a_store_that_nobody_can_reach_is_named_before_anything_begins(tmp_path: Path) -> None:
    with TrainingRun(2, options=("--store", "etcd://127.0.0.1:1/tests")) as run:
        assert run.wait() == 8
        assert "etcd at 127.0.0.1:1 does not answer" in run.said("stderr")
        assert not run.directory.path.exists()
