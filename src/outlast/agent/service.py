"""The agent as a process: children below, the coordinator above, the core in between.

The agent starts its replicas at once, whether or not a coordinator answers, and keeps them running while it
is gone; what happened meanwhile is told when it is back. Only the end of the job, or a signal, ends them.
"""

import asyncio
import contextlib
import errno
import logging
import os
import random
import secrets
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from outlast.agent.mouthpiece import Mouthpiece
from outlast.agent.oom import OutOfMemory
from outlast.agent.output import Output
from outlast.agent.process import Nursery, ReplicaProcess
from outlast.agent.telling import Telling
from outlast.agent.watch import ReplicaWatch, last_sample
from outlast.errors import ConfigError, JobFailed, OutlastError, PeerRejected
from outlast.kinship import ExitStatus, can_unnice, nursery_name
from outlast.protocol.events import AnyEvent
from outlast.protocol.finding import Finder
from outlast.protocol.messages import Enlist, Message
from outlast.protocol.restarts import Legacy, RestartPolicy
from outlast.protocol.supervision import (
    AgentAction,
    AgentCore,
    AskToLeave,
    Exit,
    JobEnded,
    KillReplica,
    NotTakenOn,
    Sample,
    StartReplica,
    TellCoordinator,
    TellPeople,
)
from outlast.protocol.views import Outcome
from outlast.wire.control import CONTROL
from outlast.wire.handover import Handover
from outlast.wire.private import make_below, write_file
from outlast.wire.rundir import RunDirectory
from outlast.wire.streams import Stream, connect

REJECTED_AGAIN_S = 2.0
"""Who was turned away is unlikely to be let in a moment later."""
REFUSALS_MOST = 2
"""One that was never taken on, and is refused so often, does not belong to the job."""
ROOM_AGAIN_S = 0.5
END_WITHIN_S = 1.0
"""What is left when the time for leaving is over gets SIGTERM, and SIGKILL after this."""
LAST_WORDS_WITHIN_S = 1.0
NICE_AGAIN = 10
"""How nice a replica is that starts beside others that train, until it takes part."""
LEGACY = "failures"
"""Where an agent writes down what it has counted, in its home."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

log = logging.getLogger(__name__)


class AgentService:
    """One agent of one job; `run` returns how the job ended, or None if this agent was told to leave."""

    def __init__(
        self,
        directory: RunDirectory,
        name: str,
        replicas: tuple[int, ...] = (),
        *,
        grace_s: float,
        ended: Mapping[int, ExitStatus] | None = None,
        emit: Callable[[AnyEvent], None] = lambda _: None,
    ) -> None:
        """Without `replicas`, the coordinator says which to run. `ended` are exits that an agent before this
        one has left untold. `emit` is told what happens, and must not block."""
        self._directory = directory
        self._run = directory.read()
        self._token = directory.token()
        self._timing = self._run.timing()
        self._home = directory.agent(name)
        self._ended = ended or {}
        self._grace_s = grace_s
        make_below(self._home)
        spec = self._run.spec
        enlist = None
        if spec.is_placed:
            start, home = secrets.token_hex(8), machine_mark(self._home)
            enlist = Enlist(agent=name, start=start, home=home, room=spec.per_machine)
        self._core = AgentCore(
            agent=name,
            boot=next_boot(self._home) if enlist is None else 0,
            replicas=replicas,
            timing=self._timing,
            policy=RestartPolicy(),
            legacy=read_legacy(self._home),
            enlist=enlist,
        )
        environment = self._environment()
        self._nursery = Nursery(
            preload=self._run.preload,
            environment=environment,
            name=nursery_name(str(directory.path), name),
            stopped_for_s=self._timing.stopped_for_good_s,
        )
        self._base_environment = environment
        self._watches: dict[int, ReplicaWatch] = {}
        self._processes: dict[int, ReplicaProcess] = {}
        self._stream: Stream[Message] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._speak = {"stdout": Mouthpiece(1), "stderr": Mouthpiece(2)}
        self._telling = Telling(emit)
        self._memory = OutOfMemory()
        self._cold = ""
        self._nice_again = NICE_AGAIN if can_unnice() else 0
        self._width = len(str(self._run.spec.processes - 1))

    async def run(self) -> Outcome | None:
        # Held, so that its identity, which replicas are told, stays its own.
        with self._directory.held():
            return await self._run_to_the_end()

    async def _run_to_the_end(self) -> Outcome | None:
        async with self._nursery:
            self._go(self._keep_connection())
            self._go(self._tick())
            untold = self._untold()
            for replica, (sample, _) in untold.items():
                self._telling.sampled(replica, sample)
            self._perform(self._core.start(self._now(), untold))
            try:
                await self._over.wait()
                await self._hear_last_words()
            finally:
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._nursery.close(END_WITHIN_S)
                for watch in self._watches.values():
                    watch.close()
                for mouthpiece in self._speak.values():
                    await mouthpiece.drain()
        if self._failure is not None:
            raise self._failure
        return self._core.outcome

    async def _hear_last_words(self) -> None:
        """A job that has failed ends all replicas by itself. Some of them are about to say why, and are not
        to be cut short."""
        exits = [process.exited for process in self._processes.values()]
        outcome = self._core.outcome
        if exits and outcome is not None and not outcome.finished:
            await asyncio.wait(exits, timeout=LAST_WORDS_WITHIN_S)

    def preempt(self) -> None:
        """The machine is about to go: leave in order, but within the grace period."""
        if self._core.leaving:
            return
        self._perform(self._core.preempted(self._now()))
        asyncio.get_running_loop().call_later(self._grace_s, self._over.set)
        self._end_when_settled()

    def _untold(self) -> dict[int, tuple[Sample, Exit]]:
        """The exits that were left to us, each with what its page said last."""
        return {
            replica: (last_sample(self._page(replica)), exit_of(status))
            for replica, status in self._ended.items()
        }

    def _page(self, replica: int) -> Path:
        return self._home / f"replica-{replica}.page"

    def _environment(self) -> dict[str, str]:
        threads = str(self._run.threads)
        return {
            **os.environ,
            # Results depend on the number of threads, so it is the run's, not the machine's.
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONUNBUFFERED": "1",
        }

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _go(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # It may have lost track of its replicas. They end with it, and the next agent starts them again.
            self._failure = task.exception()
            self._over.set()

    async def _tick(self) -> None:
        while True:
            now = self._now()
            samples = {replica: watch.sample() for replica, watch in self._watches.items()}
            self._core.sampled(samples, now)
            for replica, sample in samples.items():
                self._telling.sampled(replica, sample)
            self._perform(self._core.tick(now))
            await asyncio.sleep(self._timing.tick_every_s)

    async def _keep_connection(self) -> None:
        finder = Finder(self._run.addresses, self._timing, random.random)
        refusals = 0
        while True:
            try:
                async with await self._dial(finder) as stream:
                    finder.connected(self._now())
                    self._stream = stream
                    self._perform(self._core.beat(self._now()))
                    rest_s = await self._converse(stream, finder)
            except PeerRejected as error:
                log.error("agent %s has no coordinator: %s", self._core.agent, error)
                rest_s = max(REJECTED_AGAIN_S, finder.failed())
                refusals += 1
                if self._run.spec.is_placed and not self._core.boot and refusals >= REFUSALS_MOST:
                    raise ConfigError(
                        "no coordinator knows the token of this ticket, which is of another job, or of an "
                        "earlier start of this one: copy the newest"
                    ) from None
            except (OSError, OutlastError) as error:
                log.debug("agent %s has no coordinator: %s", self._core.agent, error)
                rest_s = finder.failed()
            finally:
                self._stream = None
            await asyncio.sleep(rest_s)

    async def _converse(self, stream: Stream[Message], finder: Finder) -> float:
        """Until another one is to be asked, after so much rest. TimeoutError is an OSError."""
        while True:
            async with asyncio.timeout(self._timing.unanswered_s):
                message = await anext(stream, None)
            if message is None:
                return finder.failed()
            rest_s = finder.heard(message, self._now())
            if rest_s is not None:
                return rest_s
            self._perform(self._core.received(message, self._now()))

    async def _dial(self, finder: Finder) -> Stream[Message]:
        return await connect(
            finder.where,
            job=self._run.spec.name,
            token=self._token,
            role="agent",
            name=self._core.agent,
            codec=CONTROL,
            deadline_s=finder.dial_within_s,
        )

    def _perform(self, actions: list[AgentAction]) -> None:
        self._telling.departed(self._core.departures, leaving=self._core.leaving)
        for action in actions:
            match action:
                case StartReplica():
                    self._go(self._live(action.replica, action.process, action.again))
                case KillReplica():
                    self._kill(action)
                case AskToLeave():
                    self._ask_to_leave(action)
                case TellCoordinator():
                    if self._stream is not None:
                        self._stream.send(action.message)
                case TellPeople():
                    self._narrate(action.replica, action.what)
                case JobEnded():
                    self._over.set()
                case NotTakenOn():
                    self._failure = ConfigError(action.reason)
                    self._over.set()
        self._end_when_settled()

    def _ask_to_leave(self, action: AskToLeave) -> None:
        watch, process = self._watches.get(action.replica), self._processes.get(action.replica)
        if watch is not None:
            watch.request_leave()
            if process is not None and watch.sample().incarnation == 0:
                # It never joined, so it does not look at its page: all it may understand is a signal.
                process.signal(signal.SIGTERM)

    def _end_when_settled(self) -> None:
        if self._core.leaving and self._core.settled:
            self._over.set()

    def _kill(self, action: KillReplica) -> None:
        process = self._processes.get(action.replica)
        if process is not None and int(process.process) == action.process:
            self._narrate(action.replica, action.reason)
            process.kill()

    async def _live(self, replica: int, process: int, again: bool) -> None:
        """One life of one replica, from its start to the report of its end."""
        page = self._page(replica)
        try:
            watch = await self._begin_watch(replica, page)
        except OSError as error:
            ending = Exit(how="could not be started", last_words=str(error))
            self._perform(self._core.exited(replica, process, ending, self._now()))
            return
        self._watches[replica] = watch
        output = Output(replica, log=self._directory.log(replica), sink=self._sink)
        handover = Handover(
            run=self._directory.path,
            run_id=self._directory.identity,
            replica=replica,
            process=process,
            agent=self._core.agent,
            page=page,
            grace_s=self._grace_s,
        )
        try:
            started = await self._nursery.start(
                replica=replica,
                process=str(process),
                argv=self._run.argv,
                environment={**self._base_environment, **handover.environment()},
                cwd=self._run.working_directory,
                output=output,
                nice=self._nice_again if again else 0,
            )
        except (OSError, JobFailed) as error:
            ending = Exit(how="could not be started", last_words=str(error))
        else:
            watch.born(started.pid)
            self._explain_cold_start(started.cold or self._nursery.cold)
            self._processes[replica] = started
            self._telling.started(replica, process, started.pid, again=again)
            status = await asyncio.shield(started.exited)
            ending = exit_of(status, asked=started.asked, last_words=output.last_words(), memory=self._memory)
            del self._processes[replica]
            if output.log_error is not None:
                self._narrate(replica, f"could not be logged in full: {output.log_error}")
            if not status.success and not started.asked:
                self._narrate(replica, ending.how)
        sample = watch.sample()
        self._core.sampled({replica: sample}, self._now())
        self._telling.sampled(replica, sample)
        del self._watches[replica]
        watch.close()
        self._perform(self._core.exited(replica, process, ending, self._now()))
        # On a full disk the next agent counts anew, and that is all.
        with contextlib.suppress(OSError):
            write_file(self._home / LEGACY, msgspec.json.encode(self._core.legacy))

    async def _begin_watch(self, replica: int, page: Path) -> ReplicaWatch:
        """A full disk is no fault of the replica's: wait for room instead of counting it as a failure."""
        said = False
        while True:
            try:
                return ReplicaWatch(page)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                if not said:
                    said = True
                    self._narrate(replica, f"cannot be started yet: {error.strerror} for {page}")
            await asyncio.sleep(ROOM_AGAIN_S)

    def _explain_cold_start(self, reason: str) -> None:
        """Once is enough: why replicas take longer to start than they could."""
        if reason and reason != self._cold:
            self._cold = reason
            self._speak["stderr"].say(f"agent: replicas import for themselves: {reason}")

    def _sink(self, replica: int, stream: str, line: str) -> None:
        self._speak[stream].say(f"[{replica:>{self._width}}] {line}")

    def _narrate(self, replica: int, what: str) -> None:
        self._speak["stderr"].say(f"[{replica:>{self._width}}] replica {replica} {what}")


def exit_of(
    status: ExitStatus, *, asked: bool = False, last_words: str = "", memory: OutOfMemory | None = None
) -> Exit:
    """What the end of a process means; `asked` if we killed it ourselves. `memory` may explain a kill."""
    killed = status.signal == signal.SIGKILL and not asked
    explained = killed and memory is not None and memory.explains_one()
    return Exit(
        how=status.describe(asked=asked, why="out of memory, says the kernel" if explained else ""),
        clean=status.success,
        killed=status.signal is not None,
        own_fault=status.own_fault and not asked,
        last_words=last_words,
    )


def machine_mark(home: Path) -> str:
    """What tells this machine from others that may have been given its name: drawn once, and kept."""
    path = home / "mark"
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    mark = secrets.token_hex(8)
    write_file(path, mark.encode(), durable=True)
    return mark


def next_boot(home: Path) -> int:
    """Count this start of the agent, durably, so that its processes are numbered after all earlier ones."""
    path = home / "boot"
    boot = int(path.read_text()) + 1 if path.exists() else 1
    write_file(path, str(boot).encode(), durable=True)
    return boot


def read_legacy(home: Path) -> Legacy:
    """What the agent before this one has counted; nothing, if there was none."""
    try:
        return msgspec.json.decode((home / LEGACY).read_bytes(), type=Legacy)
    except (OSError, msgspec.MsgspecError):
        return Legacy()
