"""How long a job on three machines stands still when a machine is lost, or who decides on one of them.

Each machine is a network namespace with an agent, a coordinator, a member of etcd and a replica (or two). A
machine that is lost vanishes without a word: its link first, then its processes. Default settings.

- `coordinator_failover_s_median`: from `kill -9` of the coordinator that leads until another one answers as
  the leader. The lease of the one that was killed has to run out first.
- `etcd_failover_s_median`: a replica is killed, and at once the member of etcd that leads: from then until
  the survivors have adopted the view without the replica, which takes a majority that has a leader.
- `machine_lost_s_p90`: a whole machine, with the leading coordinator on it, until the others make the next
  step. Nobody can decide before the lease has run out, and a new leader waits until it has heard everybody.
- `machine_lost_plain_s_p90`: the same for a machine on which nobody leads: detection alone.

It needs namespaces, so it runs as root, or where users may have their own.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.result import Result
from bench.stats import median, p90, spread

TESTS = str(Path(__file__).parents[1] / "tests")
BOUNDS = {
    "coordinator_failover_s_median": 3.0,
    "etcd_failover_s_median": 1.0,
    "machine_lost_s_p90": 6.0,
    "machine_lost_plain_s_p90": 1.5,
}
LOOK_EVERY_S = 0.005
WITHIN_S = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=10, help="how often each is tried (10)")


def run(options: argparse.Namespace) -> Result:
    times = 1 if options.tiny else options.times
    tried: dict[str, Callable[[Any], float]] = {
        "coordinator_failover_s": _lose_coordinator,
        "etcd_failover_s": _lose_etcd_leader,
        "machine_lost_s": _lose_leading_machine,
        "machine_lost_plain_s": _lose_plain_machine,
    }
    found: dict[str, list[float]] = {name: [] for name in tried}
    for name, fault in tried.items():
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="outlast-machines-") as folder, _job(Path(folder)) as job:
            for _ in range(times):
                job.wait_for_all()
                # Nothing is to depend on when in a step or a lease it happens.
                time.sleep(random.uniform(1.0, 2.0))
                found[name].append(fault(job))
                _mend(job)
    return Result(
        name="machines",
        figures={
            "coordinator_failover_s_median": median(found["coordinator_failover_s"]),
            "etcd_failover_s_median": median(found["etcd_failover_s"]),
            "machine_lost_s_p90": p90(found["machine_lost_s"]),
            "machine_lost_plain_s_p90": p90(found["machine_lost_plain_s"]),
        },
        bounds=BOUNDS,
        details={name: spread(values) for name, values in found.items()},
    )


def _job(folder: Path) -> Any:
    sys.path[:0] = [TESTS, str(Path(TESTS) / "cluster")]
    from machines_run import MachinesRun  # type: ignore[import-not-found, unused-ignore]

    from servers import namespaces  # type: ignore[import-not-found, unused-ignore]
    from servers.machines import Network  # type: ignore[import-not-found, unused-ignore]

    if (missing := namespaces.missing()) is not None:
        raise SystemExit(f"bench: {missing}")
    return MachinesRun(Network(3), folder, steps=1_000_000, pace_s=0.005)


def _lose_coordinator(job: Any) -> float:
    leader = job.leader()
    began = time.monotonic()
    os.kill(job.child_pid(leader, "outlast.coordinator"), signal.SIGKILL)
    # The key of the old leader is there until its lease has run out.
    return _until(began, lambda: _leads_anew(job, leader))


def _leads_anew(job: Any, before: Any) -> bool:
    status = job.status(next(machine for machine in job.core if machine is not before))
    return status is not None


def _lose_etcd_leader(job: Any) -> float:
    status = job.wait_for("all of them", lambda status: len(status.view.members) == job.replicas)
    leader = job.etcd_leader()
    # One that does not share its fate, so that the two are apart.
    replica = next(number for number, place in status.places.items() if place.agent != leader.name)
    pid = next(pulse.pid for pulse in status.pulses if pulse.replica == replica)
    view = status.view.number
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    job.kill_member(leader)
    return _until(began, lambda: job.newest_view() > view)


def _lose_leading_machine(job: Any) -> float:
    return _lose(job, job.leader())


def _lose_plain_machine(job: Any) -> float:
    leaders = (job.leader(), job.etcd_leader())
    return _lose(job, next(machine for machine in job.core if machine not in leaders))


def _lose(job: Any, machine: Any) -> float:
    others = [one for one in job.machines if one is not machine]
    began = time.monotonic()
    machine.kill()
    # What was under way when it vanished may still be completed.
    stood = job.newest_step(others)
    last = began
    while time.monotonic() - last < 0.3:
        now = job.newest_step(others)
        if now > stood:
            stood, last = now, time.monotonic()
        time.sleep(LOOK_EVERY_S)
    return _until(began, lambda: job.newest_step(others) > stood)


def _until(began: float, condition: Callable[[], bool]) -> float:
    while not condition():
        if time.monotonic() - began > WITHIN_S:
            raise AssertionError(f"not within {WITHIN_S} s")
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began


def _mend(job: Any) -> None:
    """Everything is there again."""
    for machine in job.core:
        if not machine.is_on:
            machine.boot()
            job.start_member(machine)
            job.start(machine)
