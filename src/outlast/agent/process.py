"""The agent's replicas as processes: start them, see them end at once, leave nothing of them behind.

A `Nursery` starts replicas through a forkserver (see there) and is their parent. That an exit is seen *at
once* is what makes a failure cheap, so nothing here polls for it: each replica has a pidfd, which becomes
readable in the moment of its death.

The order of what happens then matters. While the dead replica is a zombie, its number cannot be given to
anyone else; so first all that is left of its process group is killed, then the forkserver is told to forget
it, and only then its status is taken off the kernel's hands. Anything that left the group but lost its
parent has become our child by adoption, and is recognised by its session or its mark: it is let live as long
as the replica that it belongs to (a metrics daemon, say), and killed after. Children that the agent started
by other means are never touched.

The forkserver itself may die: running replicas do not notice, and it is started again at once, so that the
next replica finds it warm. If it dies again and again, `start` says so instead of trying for ever. One that
is stopped for good is as good as dead, and is replaced like one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType

from outlast import kinship
from outlast.agent.forkserver_control import ForkserverControl, ForkserverLost, close_all
from outlast.agent.output import Output
from outlast.agent.spawning import Forget, Guard, Ready, Spawn, Spawned, sealed, unborn_name
from outlast.errors import JobFailed, UsageError
from outlast.kinship import ExitStatus, kill_group
from outlast.protocol.timing import Timing

READY_WITHIN_S = 120.0
FORKSERVER_ATTEMPTS = 5
SWEEP_EVERY_S = 1.0
SWEEP_AGAIN_S = 0.05
SWEEP_WITHIN_S = 5.0


class ReplicaProcess:
    """One life of a replica. `exited` holds its status as soon as it is dead and its output was read."""

    def __init__(self, replica: int, process: str, pid: int, output: Output, cold: str) -> None:
        self.replica = replica
        self.process = process
        self.pid = pid
        self.output = output
        self.cold = cold
        """Why it could not be forked from the preloaded process, or nothing."""
        self.asked = False
        """True once we asked it to end, so that its death by a signal is no surprise."""
        self.exited: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self.pidfd = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        """Send a signal to the replica alone; nothing happens if it is dead."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Kill the replica and its process group, now."""
        if not self.exited.done():
            self.asked = True
            kill_group(self.pid)

    async def terminate(self, grace_s: float) -> ExitStatus:
        """Ask it to end with SIGTERM, and kill it with its group if it has not after `grace_s`."""
        self.asked = True
        self.signal(signal.SIGTERM)
        # The future is shielded, since others wait for it too, and asyncio.wait never cancels it.
        done, _ = await asyncio.wait([self.exited], timeout=grace_s)
        if not done:
            self.kill()
        return await asyncio.shield(self.exited)


class Nursery:
    """Starts replicas and is their parent; use one at a time in a process, as `async with Nursery(…)`.

    `environment` is what the forkserver itself starts with: it should be the job's, since a replica whose
    PYTHONPATH, OMP_NUM_THREADS and the like differ from it cannot be forked and starts cold. `name` is the
    mark that all its processes carry: eight letters, the same for every life of an agent.
    """

    def __init__(
        self,
        *,
        preload: Sequence[str] = ("torch",),
        environment: Mapping[str, str] | None = None,
        name: str = "",
        stopped_for_s: float = Timing().stopped_for_good_s,
    ) -> None:
        self._preload = tuple(preload)
        self._id = name or secrets.token_hex(4)
        base = os.environ if environment is None else environment
        self._environment = {**base, kinship.KIN: f"{self._id}/"}
        self._control: ForkserverControl | None = None
        self._opening = asyncio.Lock()
        self._rewarming: asyncio.Task[None] | None = None
        self._rewarmed = 0
        self._running: dict[int, ReplicaProcess] = {}
        self._starting: set[str] = set()
        # Sessions of replicas that are gone, as long as something of them may still be around.
        self._past_sessions: deque[int] = deque(maxlen=256)
        self._kin: set[int] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._stopped_for_s = stopped_for_s
        self._closed = False
        self.cold = ""
        """Why replicas import for themselves although a preload was asked for, or nothing."""

    async def __aenter__(self) -> Nursery:
        kinship.become_subreaper()
        # An earlier life of this agent may have died together with its forkserver, leaving nobody to tidy up.
        kinship.bury(self._id)
        self._start_forkserver()
        self._sweep_every()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def running(self) -> list[ReplicaProcess]:
        return list(self._running.values())

    @property
    def forkserver_pid(self) -> int | None:
        return self._control.pid if self._control is not None else None

    async def warm(self) -> Ready:
        """Wait until the forkserver has done its imports; it may take several tries."""
        reason = ""
        for _ in range(FORKSERVER_ATTEMPTS):
            try:
                return (await self._ready_control()).ready.result()
            except ForkserverLost as lost:
                reason = str(lost)
        raise self._gave_up(reason)

    async def start(
        self,
        *,
        replica: int,
        process: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: str | os.PathLike[str],
        output: Output,
        nice: int = 0,
    ) -> ReplicaProcess:
        """Start `script.py args…` or `-m module args…`; `process` is a token that no other life has."""
        if not argv or (argv[0] == "-m" and len(argv) < 2):
            raise UsageError(f"nothing to run in {list(argv)}: give a script, or -m and a module")
        marked = {**environment, kinship.KIN: f"{self._id}/{process}"}
        request = Spawn(replica, process, list(argv), sealed(marked), os.path.abspath(cwd), nice)
        write_ends = output.open()
        self._starting.add(process)
        try:
            spawned = await self._spawn(request, write_ends)
            started = ReplicaProcess(replica, process, spawned.pid, output, spawned.cold)
            self._running[started.pid] = started
        except BaseException:
            output.finish()
            raise
        finally:
            close_all(list(write_ends))
            self._starting.discard(process)
        self._rewarmed = 0
        asyncio.get_running_loop().add_reader(started.pidfd, self._on_exit, started)
        return started

    async def close(self, grace_s: float = 0.0) -> None:
        """End all replicas (after `grace_s` by force) and the forkserver; afterwards nothing is left."""
        self._closed = True
        await asyncio.gather(*(running.terminate(grace_s) for running in self.running))
        if self._rewarming is not None:
            self._rewarming.cancel()
            await asyncio.wait([self._rewarming])
        if self._control is not None:
            await self._control.close()
        for _ in range(int(SWEEP_WITHIN_S / SWEEP_AGAIN_S)):
            if not self._sweep():
                break
            await asyncio.sleep(SWEEP_AGAIN_S)
        if self._sweeping is not None:
            self._sweeping.cancel()
        kinship.become_subreaper(False)

    async def _spawn(self, request: Spawn, write_ends: Sequence[int]) -> Spawned:
        reason = ""
        for _ in range(FORKSERVER_ATTEMPTS):
            try:
                control = await self._ready_control()
                answer = await control.spawn(request, write_ends)
            except ForkserverLost as lost:
                reason = str(lost)
                continue
            if isinstance(answer, Spawned):
                return answer
            if answer.pid is not None:
                self._unclaimed(answer.pid)
            raise JobFailed(f"replica {request.replica} could not be started: {answer.reason}")
        raise self._gave_up(reason)

    def _gave_up(self, reason: str) -> JobFailed:
        return JobFailed(
            f"the process that replicas are forked from failed {FORKSERVER_ATTEMPTS} times in a row "
            f"(last: {reason}); its own messages are on the agent's standard error"
        )

    def _start_forkserver(self) -> ForkserverControl:
        self._control = ForkserverControl(
            self._preload, self._environment, self._on_lost, self._unclaimed, self._stopped_for_s
        )
        return self._control

    async def _ready_control(self) -> ForkserverControl:
        async with self._opening:
            control = self._control
            if control is None or control.lost.done():
                control = self._start_forkserver()
            if not control.ready.done():
                await asyncio.wait([control.ready], timeout=READY_WITHIN_S)
                if not control.ready.done():
                    control.discard()
                if control.ready.exception() is None:
                    self.cold = control.ready.result().cold or self.cold
                    control.tell(Guard([running.pid for running in self.running]))
                elif self._preload and not control.was_stopped:
                    # Perhaps an import crashes or hangs; without imports there is nothing that can.
                    self.cold = f"{control.lost.result()} while importing {', '.join(self._preload)}"
                    self._preload = ()
            if control.lost.done():
                raise ForkserverLost(control.lost.result())
            return control

    def _on_lost(self, control: ForkserverControl) -> None:
        was_ready = control.ready.done() and control.ready.exception() is None
        if self._closed or not was_ready or self._rewarmed >= FORKSERVER_ATTEMPTS:
            return
        self._rewarmed += 1
        self._rewarming = asyncio.get_running_loop().create_task(self._rewarm())

    async def _rewarm(self) -> None:
        with contextlib.suppress(ForkserverLost):
            await self._ready_control()

    def _on_exit(self, dead: ReplicaProcess) -> None:
        status = kinship.exit_status(dead.pidfd, reap=False)
        if status is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(dead.pidfd)
        kill_group(dead.pid)
        if self._control is not None:
            self._control.tell(Forget(dead.pid))
        kinship.exit_status(dead.pidfd, reap=True)
        os.close(dead.pidfd)
        del self._running[dead.pid]
        self._past_sessions.append(dead.pid)
        dead.output.finish()
        dead.exited.set_result(status)
        if self._sweep():
            loop.call_later(SWEEP_AGAIN_S, self._sweep)

    def _unclaimed(self, pid: int) -> None:
        """A replica that nobody wants any more: the next sweeps reap it."""
        kill_group(pid)
        self._kin.add(pid)
        asyncio.get_running_loop().call_later(SWEEP_AGAIN_S, self._sweep)
        if self._control is not None:
            self._control.tell(Forget(pid))

    def _sweep_every(self) -> None:
        self._sweep()
        if self._control is not None and not self._closed:
            self._control.look()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_EVERY_S, self._sweep_every)

    def _sweep(self) -> int:
        """Reap adopted children that are dead, kill those whose replica is; how many must still die."""
        dying = 0
        alive = self._starting | {running.process for running in self.running}
        for pid in kinship.children_of(os.getpid()):
            found = None if pid in self._running or pid == self.forkserver_pid else kinship.stat(pid)
            if found is None:
                continue
            if found.zombie:
                if self._is_kin_zombie(pid, found):
                    self._kin.discard(pid)
                    kinship.reap(pid)
                continue
            owner = self._owner(pid, found)
            if owner is None:
                continue
            self._kin.add(pid)
            # Of a child that is somebody's among ours we cannot tell whose; it lives while any of them does.
            if owner not in alive and (owner or not alive):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                dying += 1
        return dying

    def _owner(self, pid: int, found: kinship.Stat) -> str | None:
        """The replica's life that an adopted child belongs to, "" if any of ours, None if it is not ours."""
        if (replica := self._running.get(found.session)) is not None:
            return replica.process
        if found.session in self._past_sessions and found.session != pid:
            return f"session {found.session}"
        nursery, _, process = (kinship.kin_mark(pid) or "").partition("/")
        return process if nursery == self._id else None

    def _is_kin_zombie(self, pid: int, found: kinship.Stat) -> bool:
        # A zombie shows no mark. But a child that the agent started itself is in the agent's session or
        # leads one, so one that is in somebody else's was adopted.
        adopted = found.session not in (pid, os.getsid(0))
        return adopted or pid in self._kin or found.name == unborn_name(self._id)
