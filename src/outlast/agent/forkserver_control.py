"""The agent's end of one forkserver process: starts it, talks to it, notices when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlast.agent.spawning import (
    MESSAGE_MAX_BYTES,
    Forget,
    Guard,
    Ready,
    Reply,
    Request,
    Spawn,
    Spawned,
    SpawnFailed,
    decode_reply,
    frame,
)
from outlast.kinship import stopped
from outlast.protocol.stopped import StoppedWatch
from outlast.wire.framing import FrameDecoder

CLOSE_WITHIN_S = 5.0
ANSWER_WITHIN_S = 60.0
"""Longer than the forkserver itself gives a fresh replica to get ready."""
LOOK_EVERY_S = 1.0


class ForkserverLost(Exception):
    """The forkserver died before it answered."""


class ForkserverControl:
    """The agent's end of one forkserver process."""

    def __init__(
        self,
        preload: Sequence[str],
        environment: Mapping[str, str],
        on_lost: Callable[[ForkserverControl], None],
        on_unclaimed: Callable[[int], None],
        stopped_for_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._on_unclaimed = on_unclaimed
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "outlast.agent.forkserver", str(fd)]
            command += ["--agent-pid", str(os.getpid()), "--preload", *preload]
            # A session of its own keeps it out of reach of Ctrl-C: it ends when the agent does.
            self._popen = subprocess.Popen(
                command,
                env=dict(environment),
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self._waiting: dict[str, asyncio.Future[Spawned | SpawnFailed]] = {}
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._incoming = FrameDecoder(MESSAGE_MAX_BYTES)
        self._watch = StoppedWatch(stopped_for_s)
        self.was_stopped = False
        """Whether it was given up because somebody had stopped it, which is no fault of what it imports."""
        self._loop.add_reader(self._socket, self._on_readable)

    def look(self) -> None:
        """Called now and then: one that stays stopped is replaced before somebody needs it."""
        if not self.lost.done() and self._watch.look(stopped(self.pid), self._loop.time()):
            self.was_stopped = True
            self.discard()

    async def spawn(self, request: Spawn, write_ends: Sequence[int]) -> Spawned | SpawnFailed:
        """Once this returns `Spawned`, the replica runs; if it raises, none does."""
        if self.lost.done():
            raise ForkserverLost(self.lost.result())
        answer: asyncio.Future[Spawned | SpawnFailed] = self._loop.create_future()
        self._waiting[request.process] = answer
        wait_end, go_end = os.pipe()
        try:
            # Duplicates, since the caller may be cancelled and close its own before they are sent.
            self._send(request, [os.dup(fd) for fd in (*write_ends, wait_end)])
            await self._answered(answer)
            reply = answer.result()
            if isinstance(reply, Spawned):
                os.write(go_end, b"g")
            return reply
        except asyncio.CancelledError:
            # Cancelled between the answer and its delivery: there is a replica that nobody waits for.
            if answer.done() and not answer.cancelled() and answer.result().pid is not None:
                self._on_unclaimed(answer.result().pid or 0)
            raise
        finally:
            del self._waiting[request.process]
            close_all([wait_end, go_end])

    async def _answered(self, answer: asyncio.Future[Spawned | SpawnFailed]) -> None:
        """Wait for an answer, but not for ever: a forkserver that is stopped or stuck is given up."""
        deadline = self._loop.time() + ANSWER_WITHIN_S
        while not answer.done():
            await asyncio.wait([answer], timeout=LOOK_EVERY_S)
            if not answer.done() and (stopped(self.pid) or self._loop.time() > deadline):
                self.discard()

    def tell(self, message: Guard | Forget) -> None:
        if not self.lost.done():
            self._send(message, [])

    def _send(self, message: Request, descriptors: list[int]) -> None:
        self._outgoing.append((frame(message), descriptors))
        if len(self._outgoing) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            try:
                sent = socket.send_fds(self._socket, [data], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                # It is dead, and the reader is about to see that.
                break
            close_all(descriptors)
            # The descriptors went with the first byte.
            self._outgoing[0] = (data[sent:], [])
            if sent == len(data):
                self._outgoing.popleft()
        self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        try:
            chunk = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.discard()
            return
        for body in self._incoming.feed(chunk):
            self._on_reply(decode_reply(body))

    def _on_reply(self, reply: Reply) -> None:
        if isinstance(reply, Ready):
            self.ready.set_result(reply)
            return
        answer = self._waiting.get(reply.process)
        if answer is not None and not answer.done():
            answer.set_result(reply)
        elif reply.pid is not None:
            self._on_unclaimed(reply.pid)

    def discard(self) -> None:
        """Kill it if it lives, reap it, and tell all who wait."""
        if self.lost.done():
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        # Killed before its socket closes: else it would take the agent for dead, and kill all replicas.
        self._popen.kill()
        status = self._popen.wait()
        self._socket.close()
        for _, descriptors in self._outgoing:
            close_all(descriptors)
        self._outgoing.clear()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self.lost.set_result(f"the forkserver ended with {how}")
        unanswered: list[asyncio.Future[Any]] = [self.ready, *self._waiting.values()]
        for future in unanswered:
            if not future.done():
                future.set_exception(ForkserverLost(self.lost.result()))
                # Whoever waits gets it; that nobody waits is fine too.
                future.exception()
        self._on_lost(self)

    async def close(self) -> None:
        """Let it bury what is left and end by itself; kill it if that takes too long."""
        if self.ready.done() and not self.lost.done() and not stopped(self.pid):
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            await asyncio.wait([self.lost], timeout=CLOSE_WITHIN_S)
        self.discard()


def close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
