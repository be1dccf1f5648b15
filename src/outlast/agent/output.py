"""What a replica says, line by line, without ever making the agent wait.

Each replica writes to two pipes. The agent reads them as they fill, cuts them into lines, appends these to
the replica's log file, hands them to a sink (the terminal, the event log), and keeps the last few: when a
replica fails, its *last words* are what the user needs to see first.

Programs print things that are not lines: gigabytes without a newline, binary junk, half a line and then
nothing for an hour. So a line is cut at `LINE_MAX_BYTES`, bytes that are not UTF-8 are replaced where they
are shown, and half a line is handed on after `PARTIAL_LINE_S`. The log file keeps the bytes as they were.

The end of a pipe is *not* the end of a replica: a grandchild may hold the pipe open long after. The replica's
exit is the end; what the pipes hold by then is read, up to a bound, and the pipes are closed.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from outlast.wire.private import make_below

LINE_MAX_BYTES = 64 << 10
PARTIAL_LINE_S = 0.25
DRAIN_MAX_BYTES = 4 << 20
LAST_WORDS_LINES = 40
LAST_WORDS_LINE_MAX = 2000

_READ_BYTES = 64 << 10

Stream = Literal["stdout", "stderr"]
Sink = Callable[[int, Stream, str], None]


class Output:
    """The two pipes of one life of a replica. Use: `open()`, hand the write ends on, `finish()` at its exit.

    The sink is called in the event loop with (replica, stream, line); it must be quick and must not raise.
    """

    def __init__(self, replica: int, *, log: Path | None = None, sink: Sink | None = None) -> None:
        self.replica = replica
        self._log_path = log
        self._sink = sink
        self._log_fd: int | None = None
        self._pipes: list[_Pipe] = []
        self.log_error: OSError | None = None
        """Set when the log file could not be written, for example on a full disk; reading goes on."""

    def open(self) -> tuple[int, int]:
        """Make the pipes and start to read; the write ends for stdout and stderr, which the caller closes."""
        assert not self._pipes, "an Output serves one process"
        if self._log_path is not None:
            make_below(self._log_path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._log_fd = os.open(self._log_path, flags, 0o644)
        loop = asyncio.get_running_loop()
        write_ends = []
        for stream in ("stdout", "stderr"):
            read_end, write_end = os.pipe()
            os.set_blocking(read_end, False)
            self._pipes.append(_Pipe(loop, stream, read_end, self._emit))
            write_ends.append(write_end)
        return write_ends[0], write_ends[1]

    def finish(self) -> None:
        """Read what is still there, and close. Safe to call twice."""
        for pipe in self._pipes:
            pipe.finish()
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None

    def last_words(self, stream: Stream | None = None) -> str:
        """The last lines of one stream; of stderr if it said anything, else of stdout, when none is named."""
        for pipe in reversed(self._pipes):
            if pipe.tail and stream in (None, pipe.stream):
                return "\n".join(pipe.tail)
        return ""

    def _emit(self, pipe: _Pipe, lines: list[bytes]) -> None:
        if self._log_fd is not None:
            try:
                _write_all(self._log_fd, b"".join(line + b"\n" for line in lines))
            except OSError as error:
                self.log_error = error
        for raw in lines:
            line = _as_shown(raw)
            pipe.tail.append(line[:LAST_WORDS_LINE_MAX])
            if self._sink is not None:
                self._sink(self.replica, pipe.stream, line)


class _Pipe:
    """One pipe, cut into lines."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: Stream,
        fd: int,
        emit: Callable[[_Pipe, list[bytes]], None],
    ) -> None:
        self.stream: Stream = stream
        self.tail: deque[str] = deque(maxlen=LAST_WORDS_LINES)
        self._loop = loop
        self._fd: int | None = fd
        self._emit = emit
        self._partial = b""
        self._timer: asyncio.TimerHandle | None = None
        loop.add_reader(fd, self._on_readable)

    def _on_readable(self) -> None:
        # One read for each turn of the loop, so that a replica that floods its pipe starves nobody.
        if self._read() == 0:
            self._flush()
            self._close()

    def _read(self) -> int | None:
        """How many bytes came: 0 at the end of the pipe, None when there is nothing now."""
        assert self._fd is not None
        try:
            chunk = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return None
        if chunk:
            self._cut(chunk)
        return len(chunk)

    def _cut(self, chunk: bytes) -> None:
        *lines, partial = (self._partial + chunk).split(b"\n")
        short = [piece for line in lines for piece in _pieces(line)]
        while len(partial) > LINE_MAX_BYTES:
            short.append(partial[:LINE_MAX_BYTES])
            partial = partial[LINE_MAX_BYTES:]
        self._partial = partial
        if self._timer is not None and (short or not partial):
            self._timer.cancel()
            self._timer = None
        if partial and self._timer is None:
            self._timer = self._loop.call_later(PARTIAL_LINE_S, self._flush)
        if short:
            self._emit(self, short)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._partial:
            partial, self._partial = self._partial, b""
            self._emit(self, [partial])

    def finish(self) -> None:
        drained = 0
        while self._fd is not None and drained < DRAIN_MAX_BYTES:
            count = self._read()
            if not count:
                break
            drained += count
        self._flush()
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


def _pieces(line: bytes) -> list[bytes]:
    # An empty line is a line too.
    return [line[at : at + LINE_MAX_BYTES] for at in range(0, len(line), LINE_MAX_BYTES)] or [line]


def _as_shown(raw: bytes) -> str:
    """The line as a terminal would leave it: a progress bar goes back with `\\r` and writes over itself."""
    return raw.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
