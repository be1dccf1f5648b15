"""A job on several machines, each a network namespace: etcd, a coordinator and an agent on the first three,
an agent alone on the others. Checked in the end is what is checked of a job on one machine."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from training_run import SCRIPT, hash_alone

from outlast.errors import OutlastError
from outlast.kinship import children_of
from outlast.observe.promises import check
from outlast.protocol.messages import Status
from outlast.testing.cluster import job_status, read_page
from outlast.train.audit import merge_ledgers
from outlast.wire.progress import Reading
from outlast.wire.rundir import RunDirectory
from patience import PATIENCE_S
from servers.children import Child
from servers.etcd import PROGRAM
from servers.machines import Machine, Network

CORE = 3
"""So many machines keep what is agreed on, and may lead."""
LOOK_EVERY_S = 0.05


class MachinesRun:
    def __init__(
        self,
        network: Network,
        folder: Path,
        *script_options: str,
        replicas: int | None = None,
        per_machine: int = 1,
        steps: int = 400,
        pace_s: float = 0.06,
        options: tuple[str, ...] = (),
    ) -> None:
        self.network = network
        self.machines = network.machines
        self.folder = folder
        self.replicas = replicas or len(self.machines) * per_machine
        self._per_machine = per_machine
        self._steps = steps
        self._options = options
        self._enough = folder / "enough"
        self.ledgers = folder / "ledgers"
        self._script = [SCRIPT, "--steps", str(steps), "--shards", str(self.replicas), *script_options]
        self._script += ["--pace", str(pace_s), "--enough", str(self._enough), "--ledger", str(self.ledgers)]
        self.launchers: dict[Machine, Child] = {}
        self.members: dict[Machine, Child] = {}

    def __enter__(self) -> Self:
        for machine in self.core:
            self.start_member(machine)
        self.wait_until("etcd has a majority", lambda: self.etcd_leader() is not None)
        for machine in self.machines:
            self.start(machine)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.network.close()
        if error is None:
            broken = check(*(self.directory(machine).path for machine in self.machines))
            assert not broken, "\n".join(["the run has broken promises:", *broken, self.said()])

    @property
    def core(self) -> list[Machine]:
        return self.machines[:CORE]

    @property
    def ticket(self) -> Path:
        return self.folder / "job.ticket"

    def home(self, machine: Machine) -> Path:
        return self.folder / machine.name

    def directory(self, machine: Machine) -> RunDirectory:
        return RunDirectory(self.home(machine) / "runs" / "job")

    def start_member(self, machine: Machine) -> None:
        """Its member of etcd."""
        members = ",".join(f"{one.name}={one.address}" for one in self.core)
        command = ["etcd", "start", "--name", machine.name, "--members", members, "--insecure"]
        self.members[machine] = self.outlast(machine, command, self.folder / f"etcd-{machine.name}.log")

    def kill_member(self, machine: Machine) -> None:
        """With `kill -9`. The command that stays with it starts it again."""
        (pid,) = children_of(self.members[machine].pid)
        os.kill(pid, signal.SIGKILL)

    def outlast(self, machine: Machine, command: list[str], log: Path, home: Path | None = None) -> Child:
        """A command of Outlast on this machine."""
        return machine.start(
            [sys.executable, "-m", "outlast", *command],
            log,
            env={"OUTLAST_HOME": str(home or self.home(machine)), "OUTLAST_ETCD": str(PROGRAM)},
        )

    def start(self, machine: Machine) -> None:
        """Its part in the job; the first one begins it."""
        if self.ticket.exists():
            command = ["agent", "--join", str(self.ticket)]
        else:
            endpoints = ",".join(f"{one.address}:2379" for one in self.core)
            command = ["run", "-n", str(self.replicas), "--per-machine", str(self._per_machine)]
            command += ["--name", "job", "--ticket", str(self.ticket), "--insecure", *self._options]
            command += ["--store", f"etcd://{endpoints}/tests"]
            command += ["--coordinators", ",".join(one.address for one in self.core)]
        command += ["--machine", machine.name]
        if not self.ticket.exists():
            command += self._script
        self.launchers[machine] = self.outlast(machine, command, self.log(machine))
        self.wait_until("the ticket", self.ticket.exists)

    def log(self, machine: Machine) -> Path:
        return self.folder / f"{machine.name}.log"

    def said(self) -> str:
        logs = [self.log(machine) for machine in self.machines]
        return "".join(f"--- {log.stem}\n{log.read_text(errors='replace')}" for log in logs if log.exists())

    def wait_until(self, what: str, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {within_s} s\n{self.said()}"
            time.sleep(LOOK_EVERY_S)

    def status(self, machine: Machine) -> Status | None:
        """What the leader says, asked from this machine."""
        try:
            with machine.inside():
                return asyncio.run(job_status(self.directory(machine)))
        except (OSError, OutlastError, TimeoutError):
            return None

    def wait_for(
        self, what: str, condition: Callable[[Status], bool], asked: Machine | None = None
    ) -> Status:
        found: list[Status] = []

        def holds() -> bool:
            for machine in [asked] if asked is not None else self.machines:
                status = self.status(machine) if machine.is_on else None
                if status is not None:
                    found[:] = [status]
                    return condition(status)
            return False

        self.wait_until(what, holds)
        return found[0]

    def wait_for_members(self, *replicas: int, asked: Machine | None = None) -> Status:
        return self.wait_for(
            f"members {replicas}",
            lambda status: {member.replica for member in status.view.members} == set(replicas),
            asked,
        )

    def wait_for_all(self, asked: Machine | None = None) -> Status:
        status = self.wait_for_members(*range(self.replicas), asked=asked)
        self.wait_for_steps()
        return status

    def pages(self, machines: Sequence[Machine] | None = None) -> list[Reading]:
        """What the replicas on these machines say of themselves, or on all of them."""
        homes = [self.directory(machine).path for machine in machines or self.machines]
        return [read_page(page) for home in homes for page in home.glob("agents/*/replica-*.page")]

    def newest_step(self, machines: Sequence[Machine] | None = None) -> int:
        return max((page.step for page in self.pages(machines)), default=0)

    def newest_view(self) -> int:
        """That somebody works in."""
        return max((page.view for page in self.pages()), default=0)

    def wait_for_steps(self, more: int = 5) -> None:
        """Training goes on."""
        wanted = self.newest_step() + more
        self.wait_until(f"step {wanted}", lambda: self.newest_step() >= wanted)

    def leader(self) -> Machine:
        """The machine whose coordinator leads."""
        found: list[Machine] = []

        def leads() -> bool:
            told = [value.decode() for value in self.etcd_values("/leader")]
            found[:] = [one for one in self.core for address in told if address.startswith(f"{one.address}:")]
            return bool(found)

        self.wait_until("a coordinator leads", leads)
        return found[0]

    def etcd_leader(self) -> Machine | None:
        for machine in self.core:
            status = self.asked(machine, "/v3/maintenance/status")
            if status and status.get("leader") == status["header"]["member_id"]:
                return machine
        return None

    def etcd_values(self, ending: str) -> list[bytes]:
        """What is kept under the keys that end so."""
        everything = {"key": "AA==", "range_end": "AA=="}
        for machine in self.core:
            answer = self.asked(machine, "/v3/kv/range", everything)
            if answer:
                pairs = [(b64decode(kv["key"]), b64decode(kv["value"])) for kv in answer.get("kvs", [])]
                return [value for key, value in pairs if key.decode().endswith(ending)]
        return []

    def asked(self, machine: Machine, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        if not machine.is_on:
            return {}
        with machine.inside(), contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(machine.address, 2379, timeout=2.0)
            try:
                connection.request("POST", path, json.dumps(body or {}))
                found: dict[str, Any] = json.loads(connection.getresponse().read())
                return found
            finally:
                connection.close()
        return {}

    def child_pid(self, machine: Machine, module: str) -> int:
        """The coordinator or agent of a machine."""
        found: list[int] = []

        def runs() -> bool:
            for pid in machine.pids():
                if f" -m {module} " in _command_line(pid):
                    found[:] = [pid]
            return bool(found)

        self.wait_until(f"{module} on {machine}", runs)
        return found[0]

    def finish(self) -> None:
        """Let the job end on all machines that are there, and see that nothing shows of what happened."""
        self._enough.touch()
        for machine in self.machines:
            if machine.is_on:
                code = self.launchers[machine].end()
                assert code == 0, f"{machine} ended with {code}\n{self.said()}"
        self.check_result()

    def check_result(self) -> None:
        hashes = set(re.findall(r"HASH (\w+)", self.said()))
        assert hashes == {hash_alone(self._steps, self.replicas)}, self.said()
        audit = merge_ledgers(sorted(self.ledgers.glob("*.ledger")))
        assert audit.ok and audit.steps == self._steps, audit.describe() + self.said()
        for machine in self.machines:
            if machine.is_on:
                words = [_command_line(pid) for pid in machine.pids()]
                left = [one for one in words if "outlast" in one and "etcd" not in one]
                assert not left, f"left on {machine}: {left}"


def _command_line(pid: int) -> str:
    # It may end between two looks.
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
