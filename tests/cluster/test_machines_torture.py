"""Faults drawn from a seed, on a job of four machines: processes of every kind are killed, machines are lost
and started again, the network is cut, one way or both, and loses packets. All of it ends, and the job comes
to the bits of one machine.

    pytest tests/cluster/test_machines_torture.py -k "[17]" --soak      replays one schedule
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from machines_run import MachinesRun

from servers.machines import Machine, Network

FAULTS = 6
KINDS = ("outlast run", "outlast agent", "outlast.agent", "outlast.coordinator", "training_job", "etcd --n")
"""Processes, by words of their command lines."""
SEEDS = range(40)
IN_MAKE_TEST = (3,)


class Torture:
    def __init__(self, run: MachinesRun, seed: int) -> None:
        self._run = run
        self._chance = random.Random(seed)
        self.told: list[str] = []

    def strike(self) -> None:
        chance = self._chance
        fault = chance.choice(
            [self._kill, self._kill, self._kill, self._lose, self._cut_off, self._cut_one_way, self._cut_two]
        )
        self._tell(fault())
        time.sleep(chance.uniform(0.0, 3.0))

    def mend(self) -> None:
        """Everything is there again, and nothing is cut."""
        self._tell("all is mended")
        self._run.network.heal()
        for machine in self._run.machines:
            if not machine.is_on:
                machine.boot()
                if machine in self._run.core:
                    self._run.start_member(machine)
                self._run.start(machine)
            elif not self._run.launchers[machine].runs:
                self._run.start(machine)

    def _tell(self, what: str) -> None:
        self.told.append(f"{time.monotonic():.2f} {what}")

    def _machine(self) -> Machine | None:
        there = [machine for machine in self._run.machines if machine.is_on]
        return self._chance.choice(there) if there else None

    def _kill(self) -> str:
        machine = self._machine()
        if machine is None:
            return "nobody is left to kill"
        kinds = [
            "outlast agent",
            "outlast.agent",
            "outlast.coordinator",
            "etcd --name",
            "training_job",
            "outlast run",
        ]
        wanted = self._chance.choice(kinds)
        for pid in machine.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
                if wanted in words:
                    os.kill(pid, signal.SIGKILL)
                    return f"kill -9 of {wanted} on {machine}"
        return f"no {wanted} on {machine}"

    def _lose(self) -> str:
        lost = [machine for machine in self._run.machines if not machine.is_on]
        if lost:
            # Of three that keep what is agreed on, two have to stay.
            return "one machine is lost already"
        machine = self._chance.choice(self._run.machines)
        machine.kill()
        return f"{machine} is lost"

    def _cut_off(self) -> str:
        machine = self._chance.choice(self._run.machines)
        self._run.network.cut_off(machine)
        return f"{machine} is cut off"

    def _two(self) -> tuple[Machine, Machine]:
        one, other = self._chance.sample(self._run.machines, 2)
        return one, other

    def _cut_one_way(self) -> str:
        one, other = self._two()
        self._run.network.cut_one_way(one, other)
        return f"{other} does not hear {one}"

    def _cut_two(self) -> str:
        one, other = self._two()
        self._run.network.cut(one, other)
        return f"{one} and {other} do not hear each other"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seed", [seed if seed in IN_MAKE_TEST else pytest.param(seed, marks=pytest.mark.soak) for seed in SEEDS]
)
def test_whatever_happens_to_machines_the_bits_are_those_of_one(
    network: Callable[[int], Network], tmp_path: Path, seed: int
) -> None:
    checkpoints = ("--checkpoints", str(tmp_path / "vault"), "--every", "20")
    with MachinesRun(network(4), tmp_path, *checkpoints, replicas=4, per_machine=2, steps=600) as run:
        torture = Torture(run, seed)
        run.wait_for_all()
        try:
            for _ in range(3):
                for _ in range(FAULTS // 3):
                    torture.strike()
                torture.mend()
                run.wait_for_all()
            run.finish()
        except AssertionError as error:
            raise AssertionError("\n".join([*torture.told, str(error)])) from None
