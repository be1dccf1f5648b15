"""The launcher's own children: coordinators and agents, each started again when it is killed.

A child that was killed is replaced at once, because any process may die at any time. A child that ends by
itself with an error, before it was ever of use or again and again, has something to say: it is not replaced,
its message is the launcher's, and so is its exit code. One that had been of use for a while starts afresh: an
agent or a coordinator that no longer trusts itself ends, so that the next one begins from what is on disk.
One that somebody has stopped, and does not wake, is killed and replaced. If it is known to have something to
tell, it is woken first, once, and may tell it: nobody else knows all of it. If it does not stay awake, the
next one is handed what is known.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence

from outlast.errors import StoreFull
from outlast.kinship import stopped
from outlast.protocol.stopped import StoppedWatch

RESTARTS = 20
RESTART_WINDOW_S = 60.0
USEFUL_AFTER_S = 5.0
"""Who ends with an error sooner than this would most likely do so again."""
SPACE_AGAIN_S = 1.0
STOPPED_FOR_S = 5.0
LOOK_EVERY_S = 1.0
LAST_LINES_WITHIN_S = 0.5
LINE_MAX_BYTES = 1 << 20


class _UntilExit(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells of the exit itself. To wait for the process as asyncio has it is to wait for the end of its pipes
    as well, which whatever it leaves behind may hold open for ever."""

    def __init__(self, exited: "asyncio.Future[None]", loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=LINE_MAX_BYTES, loop=loop)
        self._exited = exited

    def process_exited(self) -> None:
        super().process_exited()
        if not self._exited.done():
            self._exited.set_result(None)


class Child:
    """One role (the coordinator, or one agent), over all processes that fill it."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        final: Sequence[int] = (0,),
        stopped_for_s: float = STOPPED_FOR_S,
        last_will: Callable[[int], Sequence[str]] = lambda _pid: (),
        on_restart: Callable[[int], None] = lambda _status: None,
        on_line: Callable[[str, str], None],
    ) -> None:
        """`final` are the exit codes with which the role itself is over, however long it was filled. One that
        is stopped for `stopped_for_s` is killed; `last_will` says with which arguments beside its own the
        next one is started then, given the pid of the stopped one. If there are any, it is woken first.
        `on_restart` is told with which status one ended that is replaced."""
        self._stopped_for_s = stopped_for_s
        self._last_will = last_will
        self._on_restart = on_restart
        self._inheritance: Sequence[str] = ()
        self.name = name
        self._final = frozenset(final)
        self._command = [sys.executable, "-m", module, *arguments, "--parent", str(os.getpid())]
        self._pass_fds = tuple(pass_fds)
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque(maxlen=RESTARTS)
        self._last_line = ""
        self._stopping: int | None = None
        self._retired = False
        self._was_useful = False
        self._too_many_deaths = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self) -> int:
        """Keep the role filled; returns the status of the process that ended it."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            status = await self._once()
            if status == StoreFull.exit_code and self._was_useful and self._stopping is None:
                # Space may be made; until then steps go on and nothing is decided.
                await asyncio.sleep(SPACE_AGAIN_S)
                continue
            # One that was killed would not have ended by itself.
            self._was_useful |= status < 0 or loop.time() - began >= USEFUL_AFTER_S
            hopeless = status > 0 and loop.time() - began < USEFUL_AFTER_S
            over = self._retired or self._stopping is not None
            if status in self._final or hopeless or over or self._too_often():
                return status
            self.restarts += 1
            self._on_restart(status)

    def last_line(self) -> str:
        """The last that it said on standard error, which has been shown already."""
        if self._too_many_deaths:
            return f"it was killed {RESTARTS} times within {RESTART_WINDOW_S:.0f} s"
        return self._last_line.partition(": ")[2] or self._last_line or "it did not say why"

    def signal(self, number: int) -> None:
        """Send a signal that is meant to end the role: nobody fills it after that."""
        self._stopping = number
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def retire(self) -> None:
        """Whoever fills the role now is the last: there is nothing left to do for another one."""
        self._retired = True

    async def _once(self) -> int:
        loop = asyncio.get_running_loop()
        exited: asyncio.Future[None] = loop.create_future()
        # A session of its own keeps Ctrl-C in the terminal a matter of the launcher alone.
        transport, protocol = await loop.subprocess_exec(
            lambda: _UntilExit(exited, loop),
            *self._command,
            *self._inheritance,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=self._pass_fds,
            start_new_session=True,
        )
        self._inheritance = ()
        self._process = asyncio.subprocess.Process(transport, protocol, loop)
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._stopping is not None:
            # It was asked to end while it was being started.
            self._process.send_signal(self._stopping)
        readers = [
            asyncio.ensure_future(self._read(self._process.stdout, "stdout")),
            asyncio.ensure_future(self._read(self._process.stderr, "stderr")),
        ]
        watching = asyncio.ensure_future(self._give_up_if_stopped(self._process))
        await exited
        watching.cancel()
        # The pipes may be held open by what the child left behind; its own last lines are there already.
        await asyncio.wait(readers, timeout=LAST_LINES_WITHIN_S)
        for reader in readers:
            reader.cancel()
        transport.close()
        assert self._process.returncode is not None
        return self._process.returncode

    async def _give_up_if_stopped(self, process: asyncio.subprocess.Process) -> None:
        """Somebody has stopped it (SIGSTOP) and does not wake it: it is as good as dead."""
        watch, woken, loop = StoppedWatch(self._stopped_for_s), False, asyncio.get_running_loop()
        while True:
            is_stopped = stopped(process.pid)
            if watch.look(is_stopped, loop.time()):
                will = self._last_will(process.pid)
                if woken or not will:
                    self._inheritance = will
                    process.kill()
                    return
                woken, watch = True, StoppedWatch(patience_s=0.0)
                process.send_signal(signal.SIGCONT)
            elif woken and not is_stopped:
                watch = StoppedWatch(self._stopped_for_s)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _read(self, pipe: asyncio.StreamReader, stream: str) -> None:
        while True:
            try:
                line = await pipe.readline()
            except ValueError:
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            if stream == "stderr":
                self._last_line = text
            self._on_line(stream, text)

    def _too_often(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._deaths.append(now)
        self._too_many_deaths = len(self._deaths) == RESTARTS and now - self._deaths[0] < RESTART_WINDOW_S
        return self._too_many_deaths
