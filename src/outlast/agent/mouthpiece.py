"""Passes replicas' lines on to the launcher without ever waiting for it.

A terminal can stand still for an hour (Ctrl-S, a full pipe, a suspended launcher), and the agent must go on
beating. So what cannot be written at once is kept up to a bound, then left out and counted; the log files
have all of it in any case.
"""

import asyncio
import contextlib
import os
import stat

BACKLOG_BYTES = 1 << 20
DRAIN_WITHIN_S = 1.0


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
        # With lines left out already, none is kept until there is ample room: one note for many lines.
        room = BACKLOG_BYTES // 2 if self._left_out else BACKLOG_BYTES
        if len(self._backlog) + len(encoded) > room:
            self._left_out += 1
            return
        waiting = bool(self._backlog)
        if self._left_out:
            self._note_left_out()
        self._backlog += encoded
        if not waiting:
            self._flush()

    def _note_left_out(self) -> None:
        self._backlog += f"… {self._left_out} lines are left out here; the logs have them\n".encode()
        self._left_out = 0

    async def drain(self) -> None:
        """At the end there is a little time for what is still kept."""
        if self._left_out:
            waiting = bool(self._backlog)
            self._note_left_out()
            if not waiting:
                self._flush()
        for _ in range(int(DRAIN_WITHIN_S / 0.01)):
            if not self._backlog:
                break
            await asyncio.sleep(0.01)

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
