"""The launcher's own children: coordinators and agents, each started again when it is killed.

A child that was killed is replaced at once, because any process may die at any time. A child that ends by
itself with an error, before it was ever of use or again and again, has something to say: it is not replaced,
its message is the launcher's, and so is its exit code. One that had been of use for a while starts afresh: an
agent or a coordinator that no longer trusts itself ends, so that the next one begins from what is on disk.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence

from outlast.errors import StoreFull
from outlast.kinship import stopped

RESTARTS = 20
RESTART_WINDOW_S = 60.0
USEFUL_AFTER_S = 5.0
"""Who ends with an error sooner than this would most likely do so again."""
SPACE_AGAIN_S = 1.0
STOPPED_FOR_S = 5.0
LOOK_EVERY_S = 1.0


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
        replaceable: bool = False,
        on_line: Callable[[str, str], None],
    ) -> None:
        """`final` are the exit codes with which the role itself is over, however long it was filled; one that
        is `replaceable` at no cost is replaced even when it is only stopped."""
        self._replaceable = replaceable
        self.name = name
        self._final = frozenset(final)
        self._command = [sys.executable, "-m", module, *arguments, "--parent", str(os.getpid())]
        self._pass_fds = tuple(pass_fds)
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque(maxlen=RESTARTS)
        self._last_line = ""
        self._stopping: int | None = None
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
            self._was_useful |= loop.time() - began >= USEFUL_AFTER_S
            hopeless = status > 0 and loop.time() - began < USEFUL_AFTER_S
            if status in self._final or hopeless or self._stopping is not None or self._too_often():
                return status
            self.restarts += 1

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

    async def _once(self) -> int:
        # A session of its own keeps Ctrl-C in the terminal a matter of the launcher alone.
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=self._pass_fds,
            start_new_session=True,
            limit=1 << 20,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._stopping is not None:
            # It was asked to end while it was being started.
            self._process.send_signal(self._stopping)
        readers = [
            asyncio.ensure_future(self._read(self._process.stdout, "stdout")),
            asyncio.ensure_future(self._read(self._process.stderr, "stderr")),
        ]
        watching = asyncio.ensure_future(self._replace_if_stopped(self._process))
        status = await self._process.wait()
        watching.cancel()
        # The pipes may be held open by what the child left behind; its own last lines are there already.
        await asyncio.wait(readers, timeout=0.5)
        for reader in readers:
            reader.cancel()
        return status

    async def _replace_if_stopped(self, process: asyncio.subprocess.Process) -> None:
        """Somebody has stopped it (SIGSTOP) and does not wake it: it is as good as dead."""
        looks = 0
        while self._replaceable:
            await asyncio.sleep(LOOK_EVERY_S)
            looks = looks + 1 if stopped(process.pid) else 0
            if looks * LOOK_EVERY_S >= STOPPED_FOR_S:
                process.kill()
                return

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
