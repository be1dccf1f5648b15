"""A server as a child process that cannot outlive us."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from patience import PATIENCE_S

# The wish to die with the parent outlives exec, so it need not be the server's own.
_RUN = (
    "import os, sys\n"
    "from outlast.kinship import die_with_parent\n"
    "die_with_parent(int(sys.argv[1]))\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


class ServerFailed(Exception):
    pass


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. Held all at once while they are chosen, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Child:
    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        through: Sequence[str] = (),
    ) -> None:
        """`through` is a command that becomes the one that it is given, such as `nsenter`."""
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*through, sys.executable, "-c", _RUN, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        """Fails with the end of the log when the server dies or takes too long."""
        deadline = time.monotonic() + within_s
        while not ready():
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.log} ended with {self._process.returncode}:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.log} is not ready after {within_s} s:\n{self._last_words()}")
            time.sleep(0.05)

    def end(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its own end."""
        return self._process.wait(within_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
