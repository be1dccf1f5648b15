"""A whole job on this machine, under a test's control: real processes, real signals.

    with LocalCluster(4, ["-m", "outlast.testing.standin", "--steps", "500"]) as cluster:
        cluster.wait_for_members({0, 1, 2, 3})
        cluster.kill(2)
        cluster.wait_for_life(2, 2)

Everything lives in a directory of its own and ends with the block, however it is left: leaving it kills the
launcher with -9, and it is an error if anything that the job started is then still there, or if what its
processes wrote of themselves breaks a promise. Waits are on conditions, with a deadline that says what was
missing.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from outlast.errors import OutlastError
from outlast.kinship import children_of
from outlast.observe.promises import check
from outlast.protocol.messages import Status
from outlast.run.observer import watch
from outlast.wire.progress import ProgressReader, Reading
from outlast.wire.rundir import RunDirectory

LOOK_EVERY_S = 0.02
DEADLINE_S = 300.0
"""Far away, for what never comes: on a machine that is busy with other work all takes its time."""


class LocalCluster:
    """`outlast run` as a child process; `arguments` are the program and its own arguments.

    With `show`, its output goes to the terminal instead of being kept for `said`.
    """

    def __init__(
        self,
        replicas: int,
        arguments: Sequence[str],
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        home: Path | None = None,
        show: bool = False,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="outlast-") if home is None else None
        self.home = home if home is not None else Path(self._temporary.name if self._temporary else "")
        self._command = [sys.executable, "-m", "outlast", "run", "-n", str(replicas), "--name", "job"]
        self._command += [*options, *arguments]
        self._environment = {**os.environ, **(environment or {}), "OUTLAST_HOME": str(self.home)}
        self._outputs = {"stdout": self.home / "stdout", "stderr": self.home / "stderr"}
        self._show = show
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.home / "runs" / "job")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the cluster has not been started"
        return self._process.pid

    def __enter__(self) -> Self:
        with self._outputs["stdout"].open("ab") as stdout, self._outputs["stderr"].open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=None if self._show else stdout,
                stderr=None if self._show else stderr,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        try:
            self.wait_until("nothing of the job runs any more", lambda: not self.processes())
            broken = check(self.directory.path) if error is None else []
            assert not broken, "\n".join(["the run has broken promises:", *broken])
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._temporary is not None:
                self._temporary.cleanup()

    def said(self, stream: str | None = None) -> str:
        """Everything that has been printed so far, on "stdout", on "stderr", or on both in this order."""
        paths = [path for name, path in self._outputs.items() if stream in (None, name)]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def views(self) -> str:
        """Every view that was agreed on, one line each."""
        try:
            return self.directory.views_log.read_text(errors="replace")
        except OSError:
            return ""

    def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        """Wait for something that need not have to do with the coordinator."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s} s\n{self._scene()}")
            time.sleep(LOOK_EVERY_S)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit code of `outlast run`, once it has ended."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job does not end within {timeout_s} s:\n{self.said()}") from None

    def signal_launcher(self, number: int) -> None:
        """Send a signal to the launcher."""
        assert self._process is not None
        self._process.send_signal(number)

    def status(self) -> Status | None:
        """What the coordinator says, or None while there is none that answers."""
        try:
            return asyncio.run(job_status(self.directory))
        except (OSError, OutlastError, TimeoutError):
            return None

    def wait_for(
        self, what: str, condition: Callable[[Status], bool], timeout_s: float = DEADLINE_S
    ) -> Status:
        deadline = time.monotonic() + timeout_s
        status = None
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and condition(status):
                return status
            assert self._process is not None
            if self._process.poll() is not None:
                break
            time.sleep(LOOK_EVERY_S)
        raise AssertionError(f"{what}: not within {timeout_s} s; the last status was {status}\n{self.said()}")

    def wait_for_steps(self, *replicas: int, more: int = 5) -> None:
        """Wait until training goes on: each of these replicas makes some more steps."""
        before = self.steps()
        wanted = {replica: before.get(replica, 0) + more for replica in replicas}
        self.wait_until(
            f"steps {wanted}",
            lambda: all(self.steps().get(replica, 0) >= step for replica, step in wanted.items()),
        )

    def wait_for_members(self, members: set[int], timeout_s: float = DEADLINE_S) -> Status:
        return self.wait_for(
            f"members {sorted(members)}",
            lambda status: {member.replica for member in status.view.members} == members,
            timeout_s,
        )

    def wait_for_life(self, replica: int, incarnation: int) -> Status:
        """That life, or a later one, of a replica is a member."""
        return self.wait_for(
            f"life {incarnation} of replica {replica}",
            lambda status: any(
                member.replica == replica and member.incarnation >= incarnation
                for member in status.view.members
            ),
        )

    def steps(self) -> dict[int, int]:
        """Where each replica is, as its progress page says: no coordinator is needed for that."""
        pages = self.directory.path.glob("agents/*/replica-*.page")
        return {int(page.stem.removeprefix("replica-")): read_page(page).step for page in pages}

    def replica_pids(self) -> dict[int, int]:
        """The processes of all learners and members, once their agents have told of them."""
        status = self.wait_for(
            "a process of every present replica",
            lambda status: (
                {pulse.replica for pulse in status.pulses if pulse.pid}
                >= {seat.replica for seat in status.seats if seat.present}
            ),
        )
        return {pulse.replica: pulse.pid for pulse in status.pulses}

    def replica_pid(self, replica: int) -> int:
        """The process of a replica that runs."""
        status = self.wait_for(
            f"a process of replica {replica}",
            lambda status: any(pulse.replica == replica and pulse.pid for pulse in status.pulses),
        )
        return next(pulse.pid for pulse in status.pulses if pulse.replica == replica)

    def kill(self, replica: int, number: int = signal.SIGKILL) -> int:
        """Send a signal to a replica's process, whose pid is returned."""
        pid = self.replica_pid(replica)
        os.kill(pid, number)
        return pid

    def coordinator_pid(self, index: int = 0) -> int:
        return self._child(f"outlast.coordinator\0--run\0{self.directory.path}\0", f"\0--index\0{index}\0")

    def agent_pid(self, index: int = 0) -> int:
        return self._child(f"--name\0agent-{index}")

    def processes(self) -> list[int]:
        """Every living process that the launcher is or started, however far it has run from its parent."""
        # They are known by what they have inherited; a zombie has nothing left, and nor has a process that is
        # just being started.
        mark = f"OUTLAST_HOME={self.home}".encode()
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        found = {pid for pid in pids if mark in _bytes(f"/proc/{pid}/environ").split(b"\0")}
        if self._process is not None and self._process.poll() is None:
            found.add(self.pid)
        return sorted(found)

    def _scene(self) -> str:
        """What there is to see when something did not happen."""
        running = [f"{pid}: {_command_line(pid)}" for pid in self.processes()]
        return "\n".join([*running, self.said()]).replace("\0", " ")

    def _child(self, *marks: str) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for pid in children_of(self.pid):
                if all(mark in _command_line(pid) for mark in marks):
                    return pid
            time.sleep(LOOK_EVERY_S)
        raise AssertionError(f"no process with {marks} in its command line:\n{self.said()}")


async def job_status(directory: RunDirectory) -> Status | None:
    async with asyncio.timeout(2.0), aclosing(watch(directory, "test", 2.0)) as messages:
        async for message in messages:
            if isinstance(message, Status):
                return message
    return None


def _command_line(pid: int) -> str:
    return _bytes(f"/proc/{pid}/cmdline").decode(errors="replace")


def _bytes(path: str) -> bytes:
    # A process may end between two looks at it.
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def read_page(page: Path) -> Reading:
    """What a replica says of itself."""
    reader = ProgressReader(page)
    try:
        return reader.read()
    finally:
        reader.close()
