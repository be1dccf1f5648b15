"""Passes replicas' lines on to a terminal or a launcher without ever waiting for it.

A terminal can stand still for an hour (Ctrl-S, a full pipe, a suspended launcher), and the agent must go on
beating. So what cannot be written at once is kept up to a bound, then left out and counted; the log files
have all of it in any case.
"""

import asyncio
import contextlib
import os
import stat

BACKLOG_BYTES = 1 << 20


class Mouthpiece:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Only our own pipe may be switched to non-blocking; a terminal is shared with the user's shell.
        self._patient = not stat.S_ISFIFO(os.fstat(fd).st_mode)
        if not self._patient:
            os.set_blocking(fd, False)
        self._backlog = bytearray()
        self._left_out = 0

    def say(self, line: str) -> None:
        encoded = line.encode(errors="replace") + b"\n"
        if len(self._backlog) + len(encoded) > BACKLOG_BYTES:
            self._left_out += 1
            return
        if self._left_out:
            self._backlog += f"… {self._left_out} lines are left out here; the logs have them\n".encode()
            self._left_out = 0
        waiting = bool(self._backlog)
        self._backlog += encoded
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._backlog:
                del self._backlog[: os.write(self._fd, self._backlog)]
        except BlockingIOError:
            loop.add_writer(self._fd, self._flush)
            return
        except OSError:
            # Nobody listens any more. That is no reason to stop.
            self._backlog.clear()
        if not self._patient:
            with contextlib.suppress(OSError):
                loop.remove_writer(self._fd)
