"""`outlast run`: a coordinator, agents, and somebody who looks after them until the job is over.

The launcher owns the coordinator's listening socket and lends it to one coordinator process after another:
the address stays the same, nobody else can take the port, and whoever dials while there is no coordinator
simply waits in line. It decides nothing about the job. If it is killed, the kernel ends everything it
started; if it is asked to stop, it passes that on and waits.
"""

import asyncio
import errno
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

from outlast.errors import (
    AddressInUse,
    ConfigError,
    JobFailed,
    OutlastError,
    ScriptFailed,
    StoreDamaged,
    StoreError,
    StoreFull,
    UsageError,
)
from outlast.kinship import bury, nursery_name
from outlast.protocol.messages import Ended, Status, ViewNews
from outlast.protocol.views import JobSpec, Outcome
from outlast.run.children import Child
from outlast.run.display import Display, counted, waiting
from outlast.run.home import fresh_name, started_at
from outlast.run.observer import watch
from outlast.wire.address import format_address, listen
from outlast.wire.rundir import RunDirectory, RunFile

ASK_EVERY_S = 0.25
INTERRUPTED = 130
TERMINATED = 143
HEAR_WITHIN_S = 10.0
"""How long the news that the agents have may take to reach us, if the coordinator must start again first."""
END_WITHIN_S = 5.0
"""How long the coordinator and what is left of the agents have to end before they are killed."""

# A coordinator never ends by itself but with these, which starting it again does not mend.
_COORDINATOR_ENDS = tuple(kind.exit_code for kind in (ConfigError, AddressInUse, StoreFull, StoreDamaged))
# An agent ends when the job does, or when it is told to leave.
_AGENT_LEFT = 13
_AGENT_ENDS = (0, JobFailed.exit_code, _AGENT_LEFT)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run, and how."""

    argv: tuple[str, ...]
    replicas: int
    base: Path
    """The home of all runs."""
    name: str | None = None
    shards: int | None = None
    min_replicas: int = 1
    shadows: int = 0
    agents: int = 1
    """Agents on this machine; more than one stands for several machines in tests and drills."""
    address: str = "127.0.0.1:0"
    detect_within_s: float = 1.0
    threads: int = 1
    preload: tuple[str, ...] = ()
    grace_s: float = 10.0
    working_directory: str = field(default_factory=os.getcwd)


class Launcher:
    def __init__(self, options: Options, display: Display) -> None:
        self._options = options
        self._display = display
        self._outcome: Outcome | None = None
        self._interrupts = 0
        self._exit_code: int | None = None
        self._children: list[Child] = []
        self._newest_view = 0
        self._waiting = ""
        self._ended = asyncio.Event()

    async def run(self) -> int:
        """Run the job to its end; the exit code says how it ended."""
        options = self._options
        spec = JobSpec(
            name=options.name or fresh_name(options.argv[1 if options.argv[0] == "-m" else 0]),
            replicas=options.replicas,
            shards=options.shards or options.replicas,
            min_replicas=options.min_replicas,
            shadows=options.shadows,
        )
        spec.validate()
        with listen(options.address) as sock:
            directory = self._prepare(spec, sock)
            return await self._supervise(directory, sock)

    def _prepare(self, spec: JobSpec, sock: socket.socket) -> RunDirectory:
        options = self._options
        run = RunFile(
            spec=spec,
            address=format_address(sock.getsockname()),
            argv=options.argv,
            working_directory=options.working_directory,
            preload=options.preload,
            threads=options.threads,
            detect_within_s=options.detect_within_s,
            launcher_pid=os.getpid(),
            launcher_started=started_at(os.getpid()),
        )
        run.timing()  # Refuses what cannot work before anything is written.
        directory = RunDirectory(options.base / "runs" / spec.name)
        try:
            directory.create(run)
        except FileExistsError:
            raise UsageError(
                f"there is a run {spec.name!r} already, in {directory.path}: choose another --name"
            ) from None
        except (OSError, ConfigError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError):
                raise
            full = cause.errno in _NO_SPACE
            advice = "free some space" if full else "set OUTLAST_HOME to a directory that can be"
            raise (StoreFull if full else StoreError)(
                f"the run directory {directory.path} cannot be written ({cause.strerror}): {advice}"
            ) from None
        return directory

    async def _supervise(self, directory: RunDirectory, sock: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        fd = sock.fileno()
        coordinator = Child(
            "coordinator",
            "outlast.coordinator",
            ["--run", str(directory.path), "--listen-fd", str(fd)],
            pass_fds=[fd],
            final=_COORDINATOR_ENDS,
            replaceable=True,
            on_line=self._display.line,
        )
        agents = [self._agent(directory, index) for index in range(self._options.agents)]
        self._children = [coordinator, *agents]
        replicas = counted(self._options.replicas, "replica")
        self._display.say(f"{directory.name}: {replicas}, logs in {directory.path}")
        loop.add_signal_handler(signal.SIGINT, self._interrupt, INTERRUPTED)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt, TERMINATED)
        deciding: asyncio.Future[int] = asyncio.ensure_future(coordinator.run())
        working: list[asyncio.Future[int]] = [asyncio.ensure_future(agent.run()) for agent in agents]
        observing = asyncio.ensure_future(self._observe(directory))
        try:
            while not deciding.done() and not all(agent.done() for agent in working):
                pending = [future for future in [deciding, *working] if not future.done()]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if deciding.done():
                await self._without_coordinator(deciding.result(), working, agents)
            statuses = [agent.result() for agent in working if agent.done()]
            left = all(code == _AGENT_LEFT for code in statuses)
            if self._exit_code is None and not left and all(code in _AGENT_ENDS for code in statuses):
                # The agents know that the job is over; give the news a moment to reach us as well.
                await asyncio.wait([asyncio.ensure_future(self._ended.wait())], timeout=HEAR_WITHIN_S)
        finally:
            observing.cancel()
            for child in self._children:
                child.signal(signal.SIGTERM if child is coordinator else signal.SIGKILL)
            await asyncio.wait([deciding, *working], timeout=END_WITHIN_S)
            self._stop_at_once()
            for agent in agents:
                bury(nursery_name(str(directory.path), agent.name))
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)
        return self._conclude(coordinator, agents, statuses)

    def _agent(self, directory: RunDirectory, index: int) -> Child:
        mine = range(index, self._options.replicas + self._options.shadows, self._options.agents)
        arguments = ["--run", str(directory.path), "--name", f"agent-{index}"]
        arguments += ["--replicas", ",".join(map(str, mine)), "--grace", str(self._options.grace_s)]
        return Child(
            f"agent-{index}", "outlast.agent", arguments, final=_AGENT_ENDS, on_line=self._display.line
        )

    async def _observe(self, directory: RunDirectory) -> None:
        async for message in watch(directory, "launcher", ASK_EVERY_S):
            match message:
                case ViewNews() if message.view.number > self._newest_view:
                    self._newest_view = message.view.number
                    self._display.view(message.view)
                case Status():
                    self._display.status(message)
                    self._say_waiting(waiting(message))
                    # A coordinator that was started after the end does not announce it again.
                    self._hear_outcome(message.outcome)
                case Ended():
                    self._hear_outcome(message.outcome)

    def _say_waiting(self, words: str) -> None:
        """Once, and not again before it was over or has changed."""
        if words and words != self._waiting:
            self._display.say(words)
        self._waiting = words

    def _hear_outcome(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._outcome = outcome
            self._ended.set()

    def _interrupt(self, exit_code: int) -> None:
        """The first time: have everybody leave in order. The second time: at once."""
        self._interrupts += 1
        self._exit_code = exit_code
        if self._interrupts == 1:
            self._display.say("stopping; once more to stop at once")
            patience_s = self._options.grace_s + END_WITHIN_S
            asyncio.get_running_loop().call_later(patience_s, self._stop_at_once)
            for agent in self._children[1:]:
                agent.signal(signal.SIGTERM)
        else:
            self._stop_at_once()

    def _stop_at_once(self) -> None:
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def _without_coordinator(
        self, status: int, working: list["asyncio.Future[int]"], agents: list[Child]
    ) -> None:
        """The coordinator is gone for good: there is nobody left who could agree on anything."""
        if self._exit_code is None:
            self._exit_code = status if status > 0 else JobFailed.exit_code
        for agent in agents:
            agent.signal(signal.SIGTERM)
        await asyncio.wait(working, timeout=self._options.grace_s)

    def _conclude(self, coordinator: Child, agents: list[Child], statuses: list[int]) -> int:
        if self._outcome is not None and self._exit_code is None:
            if self._outcome.finished:
                self._display.say("finished")
                return 0
            raise ScriptFailed(self._outcome.reason, self._outcome.last_words)
        if self._exit_code in (INTERRUPTED, TERMINATED):
            self._display.say("stopped")
            return self._exit_code
        if self._exit_code is not None:
            raise _Reported(self._exit_code, f"the coordinator cannot go on: {coordinator.last_line()}")
        for agent, status in zip(agents, statuses, strict=True):
            if status not in (0, _AGENT_LEFT):
                # One that was killed too often has a signal for a status, which is no exit code.
                code = status if status > 0 else JobFailed.exit_code
                raise _Reported(code, f"{agent.name} cannot go on: {agent.last_line()}")
        raise JobFailed("all agents have left before the work was done")


class _Reported(OutlastError):
    """A child has said what is wrong; its words and its exit code are passed on."""

    def __init__(self, exit_code: int, words: str) -> None:
        super().__init__(words)
        self.exit_code = exit_code
