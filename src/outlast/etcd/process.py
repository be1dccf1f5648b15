"""One life of a member: a process that cannot outlive us, and that ends in order when it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import final

from outlast.etcd.command import clean_environment
from outlast.etcd.folder import Folder

ENDS_WITHIN_S = 10.0


@final
class Life:
    def __init__(self, process: asyncio.subprocess.Process, words_from: int) -> None:
        self._process = process
        # Signals by the process's number, as asyncio sends them, might read its status in place of whoever
        # waits for it.
        try:
            self._pidfd: int | None = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._pidfd = None
        self.words_from = words_from
        """Where in the log this life begins."""

    @classmethod
    async def begin(cls, command: Sequence[str], folder: Folder, environment: Mapping[str, str]) -> Life:
        log = folder.open_log()
        words_from = folder.log_size()
        try:
            # A session of its own keeps Ctrl-C in the terminal a matter of the command alone.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "outlast.etcd.leash",
                str(os.getpid()),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(environment),
                start_new_session=True,
            )
        finally:
            os.close(log)
        return cls(process, words_from)

    async def ended(self) -> int:
        """Its status; a signal is negative."""
        return await self._process.wait()

    async def end(self) -> None:
        """In order: a member that leads hands that on, which takes a moment. After a while, in any case."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), ENDS_WITHIN_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        finally:
            pidfd, self._pidfd = self._pidfd, None
            if pidfd is not None:
                os.close(pidfd)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
                # One that somebody has stopped hears nothing else.
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
