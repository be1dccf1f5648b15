"""`outlast run`: coordinators, agents, and somebody who looks after them until the job is over.

The launcher owns each coordinator's listening socket and lends it to one coordinator process after another:
the address stays the same, nobody else can take the port, and whoever dials while there is no coordinator
simply waits in line. It decides nothing about the job. If it is killed, the kernel ends everything it
started; if it is asked to stop, it passes that on and waits.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from outlast.errors import (
    AddressInUse,
    ConfigError,
    JobFailed,
    OutlastError,
    StoreDamaged,
    StoreFull,
)
from outlast.kinship import ExitStatus, bury, nursery_name
from outlast.observe.files import open_events
from outlast.observe.queue import Events
from outlast.protocol import events
from outlast.protocol.messages import Ended, Status, ViewNews
from outlast.protocol.timing import Timing
from outlast.protocol.views import Outcome, View
from outlast.run import ended
from outlast.run.children import Child
from outlast.run.display import Display
from outlast.run.farewell import farewell
from outlast.run.home import fresh_name
from outlast.run.observer import watch
from outlast.run.options import Options
from outlast.run.preparing import listening, prepare, refuse_twice, spec_of
from outlast.run.remains import remains
from outlast.run.repeats import Repeats
from outlast.run.story import Story
from outlast.run.untold import untold_exits
from outlast.run.view_log import ViewLog
from outlast.run.words import counted
from outlast.wire.address import listen
from outlast.wire.rundir import RunDirectory

ASK_EVERY_S = 0.25
INTERRUPTED = 130
TERMINATED = 143
HEAR_WITHIN_S = 10.0
"""How long the news that the agents have may take to reach us, if the coordinator must start again first."""
HOLD_S = 0.5
"""How long the lines of a traceback are held back for the rest of it to come."""
ASK_STORE_EVERY_S = 4.0
END_WITHIN_S = 5.0
"""How long the coordinator and what is left of the agents have to end before they are killed."""

# A coordinator never ends by itself but with these, which starting it again does not mend.
_COORDINATOR_ENDS = tuple(kind.exit_code for kind in (ConfigError, AddressInUse, StoreFull, StoreDamaged))
# An agent ends when the job does, or when it is told to leave.
_AGENT_LEFT = 13
_AGENT_ENDS = (0, JobFailed.exit_code, _AGENT_LEFT)


async def _unknown(_store: str) -> Outcome | None:
    return None


class Launcher:
    def __init__(
        self,
        options: Options,
        display: Display,
        outcome_of: Callable[[str], Awaitable[Outcome | None]] = _unknown,
    ) -> None:
        """`outcome_of` asks the store at this address itself how the job ended."""
        self._options = options
        self._display = display
        self._outcome_of = outcome_of
        self._heard_at = time.monotonic()
        self._outcome: Outcome | None = None
        self._interrupts = 0
        self._exit_code: int | None = None
        self._children: list[Child] = []
        self._agents: list[Child] = []
        self._name = options.name or fresh_name(options.argv[1 if options.argv[0] == "-m" else 0])
        self._began = time.monotonic()
        self._story = Story(self._name, replicas=options.replicas, preload=options.preload)
        self._repeats = Repeats(display.line)
        self._releasing: asyncio.TimerHandle | None = None
        self._views: ViewLog | None = None
        self._newest_view = 0
        self._ended = asyncio.Event()
        self._events: Events | None = None

    async def run(self) -> int:
        """Run the job to its end; the exit code says how it ended."""
        machine, spec = self._options.machine, spec_of(self._options, self._name)
        spec.validate()
        if machine is not None:
            refuse_twice(machine, self._options.base)
        with contextlib.ExitStack() as stack:
            sockets = {
                index: stack.enter_context(
                    listen(address, allow_remote=machine is not None and machine.ticket.insecure)
                )
                for index, address in listening(self._options).items()
            }
            directory = prepare(self._options, spec, list(sockets.values()))
            if machine is not None and self._options.ticket is not None:
                machine.ticket.write(self._options.ticket)
            with directory.held(), open_events(directory, "launcher") as self._events:
                self._emit(
                    events.Begun(
                        run=spec.name,
                        replicas=spec.replicas,
                        shards=spec.shards,
                        min_replicas=spec.min_replicas,
                        shadows=spec.shadows,
                    )
                )
                return await self._supervise(directory, sockets)

    async def _supervise(self, directory: RunDirectory, sockets: dict[int, socket.socket]) -> int:
        loop = asyncio.get_running_loop()
        machine = self._options.machine
        coordinators = [self._coordinator(directory, index, sock) for index, sock in sockets.items()]
        agents = [self._agent(directory, index) for index in range(self._options.agents)]
        self._children, self._agents = [*coordinators, *agents], agents
        # Before the first word: whoever reads it may answer with a signal.
        loop.add_signal_handler(signal.SIGINT, self._interrupt, INTERRUPTED)
        loop.add_signal_handler(signal.SIGTERM, self._interrupt, TERMINATED)
        self._views = ViewLog(directory.views_log)
        self._display.open()
        replicas = counted(self._options.replicas, "replica")
        self._display.say(f"{directory.name}: {replicas}, logs in {directory.path}")
        self._display.show(self._story.scene)
        deciding: list[asyncio.Future[int]] = [asyncio.ensure_future(one.run()) for one in coordinators]
        working: list[asyncio.Future[int]] = [asyncio.ensure_future(agent.run()) for agent in agents]
        observing = asyncio.ensure_future(self._observe(directory))
        asking: asyncio.Future[None] = loop.create_future()
        if machine is not None:
            asking = asyncio.ensure_future(self._hear_from_store(directory))
        try:
            while not all(agent.done() for agent in working) and not asking.done():
                # Those of a job on several machines may go on elsewhere.
                if machine is None and all(one.done() for one in deciding):
                    await self._without_coordinators(deciding[0].result(), working)
                    break
                pending: list[asyncio.Future[Any]] = [one for one in [*deciding, *working] if not one.done()]
                await asyncio.wait([*pending, asking], return_when=asyncio.FIRST_COMPLETED)
            statuses = [agent.result() for agent in working if agent.done()]
            left = all(code == _AGENT_LEFT for code in statuses)
            if self._exit_code is None and not left and all(code in _AGENT_ENDS for code in statuses):
                # The agents know that the job is over; give the news a moment to reach us as well.
                await asyncio.wait([asyncio.ensure_future(self._ended.wait())], timeout=HEAR_WITHIN_S)
        finally:
            observing.cancel()
            asking.cancel()
            for child in self._children:
                child.signal(signal.SIGKILL if child in agents else signal.SIGTERM)
            await asyncio.wait([*deciding, *working], timeout=END_WITHIN_S)
            self._stop_at_once()
            for agent in agents:
                bury(nursery_name(str(directory.path), agent.name))
            self._views.close()
            self._repeats.flush()
            for agent, ending in zip(agents, working, strict=True):
                if ending.done() and not ending.exception() and ending.result() not in _AGENT_ENDS:
                    cause = ExitStatus.of(ending.result()).describe()
                    self._emit(events.Died(who=agent.name, cause=cause))
        return self._conclude(directory, coordinators, agents, statuses)

    def _tell_restart(self, who: str, status: int) -> None:
        cause = ExitStatus.of(status).describe()
        self._emit(events.Died(who=who, cause=cause))
        self._emit(events.Restarted(who=who, cause=cause))

    def _emit(self, event: events.AnyEvent) -> None:
        """What happened here: written down, and shown."""
        if self._events is not None:
            self._events.emit(event)
        self._show(event)

    def _show(self, event: events.AnyEvent) -> None:
        self._say(self._story.hear(event, time.monotonic()))

    def _coordinator(self, directory: RunDirectory, index: int, sock: socket.socket) -> Child:
        fd = sock.fileno()
        name = f"coordinator-{index}" if index else "coordinator"
        arguments = ["--run", str(directory.path), "--run-id", directory.identity]
        return Child(
            name,
            "outlast.coordinator",
            [*arguments, "--index", str(index), "--listen-fd", str(fd)],
            pass_fds=[fd],
            final=_COORDINATOR_ENDS,
            on_restart=lambda status: self._tell_restart(name, status),
            on_line=self._line,
        )

    def _agent(self, directory: RunDirectory, index: int) -> Child:
        machine = self._options.machine
        name = f"agent-{index}" if machine is None else machine.name
        arguments = ["--run", str(directory.path), "--run-id", directory.identity]
        arguments += ["--name", name, "--grace", str(self._options.grace_s)]
        if machine is None:
            mine = range(index, self._options.replicas + self._options.shadows, self._options.agents)
            arguments += ["--replicas", ",".join(map(str, mine))]
        return Child(
            name,
            "outlast.agent",
            arguments,
            final=_AGENT_ENDS,
            stopped_for_s=Timing(detect_within_s=self._options.detect_within_s).stopped_for_good_s,
            last_will=lambda pid: untold_exits(directory.agent(name), pid),
            on_restart=lambda status: self._tell_restart(name, status),
            on_line=self._line,
        )

    async def _observe(self, directory: RunDirectory) -> None:
        async for message in watch(directory, "launcher", ASK_EVERY_S):
            self._heard_at = time.monotonic()
            match message:
                case ViewNews():
                    self._hear_view(message.view)
                case Status():
                    # The news of it may have been lost with a coordinator.
                    self._hear_view(message.view)
                    self._say(self._story.heard_status(message, time.monotonic()))
                    if message.outcome is None:
                        self._display.show(self._story.scene)
                    # A coordinator that was started after the end does not announce it again.
                    self._hear_outcome(message.outcome)
                case Ended():
                    self._hear_outcome(message.outcome)

    async def _hear_from_store(self, directory: RunDirectory) -> None:
        """Returns when the store says that the job is over, where no coordinator is left to say so: those on
        other machines end with the job, and this one may have been cut off just then."""
        run, said = directory.read(), False
        while True:
            await asyncio.sleep(ASK_STORE_EVERY_S)
            if time.monotonic() - self._heard_at < ASK_STORE_EVERY_S:
                said = False
                continue
            with contextlib.suppress(OSError, OutlastError):
                if (
                    self._outcome_of is not None
                    and (outcome := await self._outcome_of(run.store)) is not None
                ):
                    self._hear_outcome(outcome)
                    return
            if not said and self._options.machine is not None:
                said = True
                self._display.say(_unanswered(self._options.machine.name, run.addresses))

    def _hear_view(self, view: View) -> None:
        if view.number > self._newest_view:
            self._newest_view = view.number
            happened = events.View.of(view)
            if self._views is not None:
                self._views.write(happened)
            self._show(happened)

    def _say(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._display.say(sentence)

    def _line(self, stream: str, text: str) -> None:
        """What a child has said or passed on."""
        self._repeats.line(stream, text)
        if self._repeats.holding and self._releasing is None:
            self._releasing = asyncio.get_running_loop().call_later(HOLD_S, self._release)

    def _release(self) -> None:
        self._releasing = None
        self._repeats.flush()

    def _hear_outcome(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._outcome = outcome
            self._story.close()
            self._ended.set()
            for agent in self._agents:
                agent.retire()

    def _interrupt(self, exit_code: int) -> None:
        """The first time: have everybody leave in order. The second time: at once."""
        self._interrupts += 1
        if self._outcome is None:
            # Work that is done stays done, whoever is impatient.
            self._exit_code = exit_code
        self._story.close()
        if self._interrupts == 1:
            self._display.say("stopping; once more to stop at once")
            patience_s = self._options.grace_s + END_WITHIN_S
            asyncio.get_running_loop().call_later(patience_s, self._stop_at_once)
            for agent in self._agents:
                agent.signal(signal.SIGTERM)
        else:
            self._stop_at_once()

    def _stop_at_once(self) -> None:
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def _without_coordinators(self, status: int, working: list["asyncio.Future[int]"]) -> None:
        """All coordinators are gone for good: there is nobody left who could agree on anything."""
        if self._exit_code is None:
            self._exit_code = status if status > 0 else JobFailed.exit_code
        for agent in self._agents:
            agent.signal(signal.SIGTERM)
        await asyncio.wait(working, timeout=self._options.grace_s)

    def _conclude(
        self, directory: RunDirectory, coordinators: list[Child], agents: list[Child], statuses: list[int]
    ) -> int:
        outcome, code = self._outcome, self._exit_code
        if outcome is not None and code is None:
            if outcome.finished:
                return self._end(directory, "finished", 0)
            self._show_last_words(outcome.last_words)
            return self._end(directory, "failed", JobFailed.exit_code, outcome.reason, outcome.replica)
        if code in (INTERRUPTED, TERMINATED):
            return self._end(directory, "stopped", code)
        error = self._what_is_wrong(coordinators, agents, statuses)
        return self._end(directory, "failed", error.exit_code, str(error))

    def _what_is_wrong(
        self, coordinators: list[Child], agents: list[Child], statuses: list[int]
    ) -> OutlastError:
        if self._exit_code is not None:
            return _Reported(self._exit_code, f"the coordinator cannot go on: {coordinators[0].last_line()}")
        for agent, status in zip(agents, statuses, strict=True):
            if status not in (0, _AGENT_LEFT):
                # One that was killed too often has a signal for a status, which is no exit code.
                code = status if status > 0 else JobFailed.exit_code
                return _Reported(code, f"{agent.name} cannot go on: {agent.last_line()}")
        return JobFailed("all agents have left before the work was done")

    def _show_last_words(self, words: str) -> None:
        """Unless they can be seen a few lines above."""
        if words.strip() and not self._repeats.in_sight(words):
            for line in words.splitlines():
                self._display.line("stderr", f"    {line}")

    def _end(
        self,
        directory: RunDirectory,
        state: Literal["finished", "failed", "stopped"],
        exit_code: int,
        reason: str = "",
        replica: int = -1,
    ) -> int:
        """Write down how it ended, and say so."""
        left = remains(directory)
        story = self._story
        faults = tuple(
            ended.FaultNote(
                what=fault.why,
                step=fault.step,
                replica=fault.replica,
                lasted_s=fault.back_at - fault.at if fault.back_at is not None else None,
            )
            for fault in story.faults
        )
        ending = ended.Ending(
            state=state,
            exit_code=exit_code,
            reason=reason,
            replica=replica if replica >= 0 else None,
            ended_at=time.time(),
            took_s=time.monotonic() - self._began,
            step=left.step,
            total=left.total,
            resumed_from=story.resumed_from,
            faults=faults,
            faults_cost_s=story.lost_s,
            saved_step=left.saved_step,
            saved_to=left.place,
        )
        self._emit(events.Ended(state=state, reason=reason, replica=replica, exit_code=exit_code))
        ended.write(directory, ending)
        machine = self._options.machine
        if machine is not None and state == "stopped":
            self._say([f"{machine.name} has left; {directory.name} goes on where others take part in it"])
        else:
            self._say(farewell(directory.name, ending))
        return exit_code


def _unanswered(machine: str, addresses: Sequence[str]) -> str:
    return (
        f"no coordinator answers {machine}, at {', '.join(addresses)}: replicas that run go on, and it asks "
        "again; if that stays so, look whether the job runs, and whether this machine reaches them"
    )


class _Reported(OutlastError):
    """A child has said what is wrong; its words and its exit code are passed on."""

    def __init__(self, exit_code: int, words: str) -> None:
        super().__init__(words)
        self.exit_code = exit_code
