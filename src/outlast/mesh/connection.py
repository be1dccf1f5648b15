"""One connection to one life of a peer: a queue of frames to send, and the frames that come in.

Sending never waits. A frame is queued as the pieces that make it up, its header and views of the caller's
memory, and the kernel gathers them from there; nothing is copied. Who hands them to the kernel is a matter
of speed:

- a small frame on an idle connection is written by the thread that sends it, at once. Somebody waits for it
  at the other end, and waking another thread takes longer than writing it;
- everything else is written by the I/O thread when the socket has room, so that the training thread goes on
  computing while the kernel copies.

At any time at most one thread is *the writer*. It writes without holding the lock, so that others may queue
meanwhile, and order is the order of the queue. Whoever closes the connection while another thread is writing
leaves the descriptor to that thread, lest its number be reused under it.
"""

import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from outlast import locks
from outlast.errors import ProtocolError
from outlast.mesh.frames import SEAL_BYTES, seal
from outlast.mesh.incoming import Incoming
from outlast.mesh.poller import READABLE, WRITABLE, Handler, Poller
from outlast.protocol.lines import Line

AT_ONCE_BYTES = 1 << 16
"""Up to this much is written by the sending thread itself."""

TURN_BYTES = 4 << 20
"""What one connection may read, and write, before it is the next one's turn."""

_PIECES_PER_CALL = 64


class Connection:
    """`send`, `stop` and the counters are for any thread, all else for the one at the helm of the mesh."""

    def __init__(self, sock: socket.socket, line: Line, incoming: Incoming, poller: Poller) -> None:
        self.line = line
        """Between which lives; frames of others do not belong here."""
        self.peer = line.peer
        self.queued_bytes = 0
        self._sock = sock
        self._incoming = incoming
        self._poller = poller
        self._lock = locks.lock("connection")
        self._queue: deque[memoryview | bytes] = deque()
        self._kept: deque[tuple[int, object]] = deque()
        """For each frame that has not left, after how many bytes it has, and what must live until then."""
        self._sent = 0
        """How many frames were ever queued."""
        self._written = 0
        """How many bytes have ever left."""
        self._writing = False
        self._waits_for_room = False
        self._open = True
        self._ending = False
        self._why = ""

    @property
    def name(self) -> str:
        return f"replica {self.peer.replica} (life {self.peer.incarnation})"

    @property
    def queued_frames(self) -> int:
        return len(self._kept)

    def watch(self, handler: Handler) -> None:
        """Before anybody can send. What the peer has sent already is still in the kernel."""
        self._poller.watch(self._sock, READABLE, handler)

    def send(
        self,
        header: bytes,
        payload: Sequence[memoryview],
        keep: object,
        *,
        more: bool,
        limit_bytes: int | None,
    ) -> bool:
        """Queue a frame, and with `more` wait for the next one before writing. False if the connection is
        over, or is over now because the queue would have grown beyond the limit."""
        size = len(header) + sum(map(len, payload)) + SEAL_BYTES
        write = False
        try:
            with self._lock:
                if not self._open or self._ending or self._why:
                    return False
                if limit_bytes is not None and self.queued_bytes + size > limit_bytes:
                    self._break(f"it does not keep up: {self.queued_bytes} bytes wait to be sent to it")
                    return False
                self._sent += 1
                self.queued_bytes += size
                self._queue += (header, *payload, seal(self._sent))
                self._kept.append((self._written + self.queued_bytes, keep))
                if more or self._writing or self._waits_for_room:
                    return True
                if self.queued_bytes > AT_ONCE_BYTES:
                    self._wait_for_room(True)
                    return True
                write = self._writing = True
            self._write(AT_ONCE_BYTES)
        except BaseException:
            # Ctrl-C may come between writing and noting what was written. Nobody could tell where the next
            # frame begins, so there must be none.
            self._break("a send was interrupted")
            if write:
                with self._lock:
                    self._cease_writing()
            raise
        return True

    def serve(self, events: int) -> None:
        """The socket has room or data, or is broken. Raises ConnectionError or ProtocolError at its end."""
        if events & WRITABLE:
            with self._lock:
                mine = self._open and not self._writing
                self._writing = self._writing or mine
            if mine:
                self._write(TURN_BYTES)
        if events & ~WRITABLE:
            try:
                if self._ending:
                    self._incoming.discard(self._sock)
                else:
                    self._incoming.pull(self._sock, TURN_BYTES)
            except (ConnectionError, ProtocolError) as error:
                # What broke it first says more than what is found afterwards.
                raise type(error)(self._why or str(error)) from error

    def stop(self) -> None:
        """From any thread: nothing more is delivered or sent, although the socket is closed only later."""
        self._incoming.stopped = True
        with self._lock:
            self._why = self._why or "it was dropped"

    def close(self) -> None:
        """Throw away what is queued. Any number of times."""
        self._incoming.stopped = True
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._forget_queue()
            self._poller.forget(self._sock)
            if not self._writing:
                self._sock.close()

    def end(self) -> None:
        """Send what is queued, tell the peer that it was all, and ignore what comes in. The peer closes its
        side when it has read everything; to close ours before that could take back what was sent."""
        self._incoming.stopped = True
        with self._lock:
            self._ending = True
            if self._queue:
                self._wait_for_room(True)
            elif not self._writing:
                self._finish_sending()

    def abandon(self) -> None:
        """In a forked child, where the lock's owner may not exist, and the socket is the parent's."""
        self._lock = locks.lock("connection")
        self._open = False

    def _write(self, budget_bytes: int) -> None:
        """Write what is queued, about `budget_bytes` at most. Only for the thread that set `_writing`."""
        written = 0
        full = False
        while True:
            with self._lock:
                self._note_written(written)
                budget_bytes -= written
                batch: list[Any] = list(islice(self._queue, _PIECES_PER_CALL))
                if full or not batch or budget_bytes <= 0 or not self._open or self._why:
                    self._cease_writing()
                    return
            try:
                written = self._sock.sendmsg(batch)
            except (BlockingIOError, InterruptedError):
                written, full = 0, True
            except OSError as error:
                self._break(f"the peer is gone ({error.strerror})")
                written = 0
            else:
                # A short write means that the socket is full, and the next one would write nothing.
                full = written < sum(map(len, batch))

    def _cease_writing(self) -> None:
        self._writing = False
        if not self._open:
            self._sock.close()
            return
        self._wait_for_room(bool(self._queue) and not self._why)
        if self._ending and not self._queue:
            self._finish_sending()

    def _note_written(self, written: int) -> None:
        if not self._open:
            return
        self.queued_bytes -= written
        self._written += written
        if not self.queued_bytes:
            # As it mostly is: all has left, and there is no need to count how much of it.
            self._queue.clear()
            self._kept.clear()
            return
        while written:
            data = self._queue.popleft()
            if written < len(data):
                self._queue.appendleft(memoryview(data)[written:])
                break
            written -= len(data)
        while self._kept and self._kept[0][0] <= self._written:
            self._kept.popleft()

    def _wait_for_room(self, wait: bool) -> None:
        if wait != self._waits_for_room:
            self._waits_for_room = wait
            self._poller.change(self._sock, READABLE | (WRITABLE if wait else 0))

    def _break(self, why: str) -> None:
        """Make the I/O thread find the end of the connection, from whichever thread this is. The lock is not
        needed: a shut-down socket reports its end again and again until it is closed."""
        self._why = self._why or why
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _finish_sending(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _forget_queue(self) -> None:
        self._queue.clear()
        self._kept.clear()
        self.queued_bytes = 0
