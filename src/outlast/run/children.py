"""The launcher's own children: coordinators and agents, each started again when it is killed.

A child that was killed is replaced at once, because any process may die at any time. A child that ends by
itself with an error, before it was ever of use or again and again, has something to say: it is not replaced,
its message is the launcher's, and so is its exit code.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence

RESTARTS = 20
RESTART_WINDOW_S = 60.0
LAST_LINES = 30


class Child:
    """One role (the coordinator, or one agent), over all processes that fill it."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        on_line: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module, *arguments, "--parent", str(os.getpid())]
        self._pass_fds = tuple(pass_fds)
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._deaths: deque[float] = deque(maxlen=RESTARTS)
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._stopping = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self) -> int:
        """Keep the role filled; returns the status of the process that ended it."""
        while True:
            status = await self._once()
            if status >= 0 or self._stopping or self._too_often():
                return status
            self.restarts += 1

    def last_words(self) -> str:
        return "\n".join(self._last)

    def signal(self, number: int) -> None:
        self._stopping = True
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
        readers = [
            asyncio.ensure_future(self._read(self._process.stdout, "stdout")),
            asyncio.ensure_future(self._read(self._process.stderr, "stderr")),
        ]
        status = await self._process.wait()
        # The pipes may be held open by what the child left behind; its own last lines are there already.
        await asyncio.wait(readers, timeout=0.5)
        for reader in readers:
            reader.cancel()
        return status

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
                self._last.append(text)
            self._on_line(stream, text)

    def _too_often(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._deaths.append(now)
        return len(self._deaths) == RESTARTS and now - self._deaths[0] < RESTART_WINDOW_S
