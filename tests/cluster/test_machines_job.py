"""A job on several machines outlasts each of them, whatever the network does, and ends with the bits of one
machine. At no time do two views act, and a side that is cut off commits nothing."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from machines_run import MachinesRun

from outlast.protocol.messages import Status
from servers.machines import Machine, Network

NewNetwork = Callable[[int], Network]


def plain(run: MachinesRun) -> Machine:
    """A machine that keeps what is agreed on, and does not lead."""
    leader, of_etcd = run.leader(), run.etcd_leader()
    return next(machine for machine in run.core if machine not in (leader, of_etcd))


def test_replicas_of_a_lost_machine_go_on_elsewhere(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(4), tmp_path, replicas=4, per_machine=2) as run:
        status = run.wait_for_all()
        lost = next(machine for machine in reversed(run.machines) if machine.name in _agents(status))
        lost.kill()
        run.wait_for("places on machines that are there", lambda status: lost.name not in _agents(status))
        run.wait_for_all()
        run.finish()


def test_the_machine_with_the_leader_is_lost_and_comes_back(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(3), tmp_path) as run:
        run.wait_for_all()
        leader = run.leader()
        leader.kill()
        run.wait_for_steps()
        leader.boot()
        run.start_member(leader)
        run.start(leader)
        run.wait_for_all()
        run.finish()


def test_a_machine_that_was_cut_off_comes_back(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(3), tmp_path) as run:
        run.wait_for_all()
        alone = plain(run)
        others = [machine for machine in run.core if machine is not alone]
        run.network.cut_off(alone)
        run.wait_for("a view without it", lambda status: len(status.view.members) == 2, others[0])
        run.wait_for_steps()
        run.network.heal()
        run.wait_for_all()
        run.finish()


def test_the_old_leader_is_cut_off_with_a_member(network: NewNetwork, tmp_path: Path) -> None:
    """The larger side goes on; the other one commits neither views nor steps."""
    with MachinesRun(network(4), tmp_path) as run:
        run.wait_for_all()
        leader = run.leader()
        minority = [leader, run.machines[3]]
        majority = [machine for machine in run.core if machine is not leader]
        run.network.cut_off(*minority)
        status = run.wait_for(
            "a view of the majority", lambda status: len(status.view.members) == 2, majority[0]
        )
        cut_off = [place.agent for place in status.places.values()].count(leader.name)
        assert cut_off == 1
        run.wait_for_steps()
        run.network.heal()
        run.wait_for_all()
        run.finish()


def test_a_machine_that_is_told_to_leave_hands_its_replicas_over(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(3), tmp_path, replicas=2) as run:
        status = run.wait_for_all()
        leaving = next(one for one in run.machines if one.name in _agents(status) and one is not run.leader())
        os.kill(run.launchers[leaving].pid, signal.SIGTERM)
        assert run.launchers[leaving].end() == 143
        run.wait_for("places elsewhere", lambda status: leaving.name not in _agents(status))
        run.wait_for_all()
        run.start(leaving)
        run.finish()


@pytest.mark.parametrize("times", [pytest.param(2), pytest.param(20, marks=pytest.mark.soak)])
def test_leaders_are_killed_again_and_again(network: NewNetwork, tmp_path: Path, times: int) -> None:
    """No step is lost, and no view is lost, reused or skipped: the promises see to that."""
    with MachinesRun(network(3), tmp_path, steps=400 if times < 5 else 4000) as run:
        run.wait_for_all()
        for _ in range(times):
            os.kill(run.child_pid(run.leader(), "outlast.coordinator"), signal.SIGKILL)
            run.wait_for_steps(2)
            of_etcd = run.etcd_leader()
            assert of_etcd is not None
            run.kill_member(of_etcd)
            run.wait_for_steps(2)
            run.wait_until("etcd has a majority again", lambda: run.etcd_leader() is not None)
        run.wait_for_all()
        run.finish()


def _agents(status: Status) -> set[str]:
    return {place.agent for place in status.places.values()}


# All of the network's faults; a few of them are above.


@pytest.mark.soak
def test_one_hears_the_others_but_is_not_heard(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(3), tmp_path) as run:
        run.wait_for_all()
        alone = plain(run)
        for other in run.core:
            if other is not alone:
                run.network.cut_one_way(alone, other)
        others = [machine for machine in run.core if machine is not alone]
        run.wait_for("a view without it", lambda status: len(status.view.members) == 2, others[0])
        run.wait_for_steps()
        run.network.heal()
        run.wait_for_all()
        run.finish()


@pytest.mark.soak
def test_two_replicas_do_not_reach_each_other_while_all_else_does(
    network: NewNetwork, tmp_path: Path
) -> None:
    with MachinesRun(network(4), tmp_path) as run:
        run.wait_for_all()
        leader, of_etcd = run.leader(), run.etcd_leader()
        other = next(one for one in run.core if one not in (leader, of_etcd))
        run.network.cut(other, run.machines[3])
        run.wait_for("a view without one of them", lambda status: len(status.view.members) == 3, leader)
        run.wait_for_steps()
        run.network.heal()
        run.wait_for_all()
        run.finish()


@pytest.mark.soak
def test_packets_are_lost_all_the_time(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(3), tmp_path, options=("--detect-within", "3")) as run:
        run.wait_for_all()
        run.network.lose(0.05)
        run.wait_for_steps(50)
        run.network.heal()
        run.wait_for_all()
        run.finish()


@pytest.mark.soak
def test_the_way_to_one_machine_is_slow(network: NewNetwork, tmp_path: Path) -> None:
    net = network(3)
    for other in net.machines[:2]:
        net.slow(net.machines[2], other, delay_s=0.03)
    with MachinesRun(net, tmp_path, steps=200) as run:
        run.wait_for_all()
        run.wait_for_steps(20)
        run.finish()


@pytest.mark.soak
def test_there_is_no_coordinator_for_a_minute(network: NewNetwork, tmp_path: Path) -> None:
    with MachinesRun(network(3), tmp_path, steps=4000) as run:
        run.wait_for_all()
        for machine in run.core:
            # It would start another one at once.
            os.kill(run.launchers[machine].pid, signal.SIGSTOP)
            os.kill(run.child_pid(machine, "outlast.coordinator"), signal.SIGKILL)
        run.wait_for_steps(500)
        for machine in run.core:
            os.kill(run.launchers[machine].pid, signal.SIGCONT)
        run.wait_for_all()
        run.finish()
        assert not re.search("nothing is heard|hangs|cut off", run.said()), run.said()


@pytest.mark.soak
def test_the_machine_with_the_only_state_is_lost_for_good(network: NewNetwork, tmp_path: Path) -> None:
    """It is waited for, and then given up: the others begin from the newest checkpoint."""
    vault = ("--checkpoints", str(tmp_path / "vault"), "--every", "10")
    options = ("--detect-within", "0.5")
    with MachinesRun(network(3), tmp_path, *vault, replicas=2, per_machine=2, options=options) as run:
        status = run.wait_for_all()
        (only,) = [machine for machine in run.machines if machine.name in _agents(status)]
        run.wait_until("a checkpoint", lambda: any((tmp_path / "vault").rglob("*")))
        run.wait_for_steps(40)
        only.kill()
        run.wait_for("places elsewhere", lambda status: only.name not in _agents(status))
        run.wait_for_all()
        only.boot()
        run.start_member(only)
        run.start(only)
        run.finish()
