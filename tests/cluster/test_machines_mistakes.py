"""Machines that cannot take part in a job are told why, with their name; the job itself goes on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
from machines_run import MachinesRun

from outlast.wire.ticket import read_ticket
from servers.machines import Machine, Network


class Attempts:
    """`outlast agent --join`, by machines that should not be let in."""

    def __init__(self, run: MachinesRun, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._made = 0

    def join(
        self, machine: Machine, *options: str, ticket: Path | None = None, home: Path | None = None
    ) -> str:
        """What it says; it has to end with the code of a mistake, and leave nothing behind."""
        self._made += 1
        log = self._folder / f"attempt-{self._made}.log"
        command = ["agent", "--join", str(ticket or self._run.ticket), *options]
        child = self._run.outlast(machine, command, log, home or self._folder / f"home-{self._made}")
        assert child.end() in (2, 3), log.read_text()
        return log.read_text()


def test_who_cannot_take_part_is_told_so(network: Callable[[int], Network], tmp_path: Path) -> None:
    with MachinesRun(network(4), tmp_path, replicas=3) as run:
        run.wait_for_all()
        first, fourth = run.machines[0], run.machines[3]
        os.kill(run.launchers[fourth].pid, signal.SIGTERM)
        assert run.launchers[fourth].end() == 143
        assert "machine4 has left; job goes on" in run.log(fourth).read_text()
        attempts = Attempts(run, tmp_path)

        said = attempts.join(fourth, "--machine", "machine1")
        assert "another machine of the name machine1 takes part" in said and "--machine" in said

        foreign = tmp_path / "foreign.ticket"
        msgspec.structs.replace(read_ticket(run.ticket), token="ab" * 32).write(foreign)
        said = attempts.join(fourth, "--machine", "machine4", ticket=foreign)
        assert "of an earlier start of this one: copy the newest" in said

        other = tmp_path / "training_job.py"
        other.write_text("print('something else')\n")
        said = attempts.join(fourth, "--machine", "machine4", "--script", str(other))
        assert f"machine4 has another {other}" in said

        said = attempts.join(first, "--machine", "machine1", home=run.home(first))
        assert "machine1 takes part in job already" in said

        run.wait_for_steps()
        run.start(fourth)
        run.finish()
