"""The side that is connected to: lets in those who hold the token, and counts those who do not.

Every process on the machine can connect to a loopback port, so until a connection is authenticated it is an
attack that has not been ruled out. It has little time and a small budget: a few hundred bytes, one of a small
number of places. When the places are full, the *oldest* stranger goes, not the newest: an honest handshake
takes a millisecond and is nearly always over before its turn comes, whereas someone who holds connections
open is always the oldest. So nobody can keep the job's own processes out by being slow.

Refusals are counted by reason in `rejected` and not logged one by one; otherwise a stranger could fill the
disk. The reasons are

    deadline, gone                  no complete handshake in time; left in the middle of it
    credentials, version            see `handshake`
    malformed, oversize             not our protocol, or a length over the limit; at any time
    crowded, full                   made room for a newer stranger; no room at all
    slow, truncated                 authenticated, but did not read its messages; ended inside a message
    accept                          the system could not give us the connection (out of file descriptors?)
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic

from outlast.errors import ConfigError, PeerRejected, ProtocolError
from outlast.wire.address import channel_binding, check_interface, format_address, listen, tune
from outlast.wire.codec import Codec, M
from outlast.wire.handshake import ListenerHandshake
from outlast.wire.streams import Stream, StreamLimits, authenticate, open_stream

log = logging.getLogger(__name__)

_ACCEPT_RETRY_S = 0.1
_OTHERS = 64

Handler = Callable[[Stream[M]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much all peers together may cost."""

    handshake_s: float = 2.0
    """How long a stranger may take to authenticate: patience with a starved machine against lost places."""
    unauthenticated: int = 64
    """How many strangers may be in the middle of it: memory and descriptors against bursts of joiners."""
    connections: int = 4096
    """How many connections there may be in all; the limit of open files must be higher."""
    stream: StreamLimits = field(default_factory=StreamLimits)
    """What each authenticated peer may cost."""

    @classmethod
    def for_fleet(cls, replicas: int) -> "Limits":
        """Room for so many replicas with an agent each, and a few who look on. When the one that listened
        before is gone they all come at once, and some come a second time before the first is known to be
        over; nobody is to be dismissed for that."""
        usual = cls()
        return cls(
            unauthenticated=max(usual.unauthenticated, 2 * replicas),
            connections=max(usual.connections, 4 * replicas + _OTHERS),
        )

    def validate(self) -> None:
        for name in ("handshake_s", "unauthenticated", "connections"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be positive")
        self.stream.validate()


class Listener(Generic[M]):
    """Made by `await Listener.start(...)`; ended by `await listener.close()`."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        job: str,
        token: bytes,
        codec: Codec[M],
        on_stream: Handler[M],
        limits: Limits,
    ) -> None:
        self.address = format_address(sock.getsockname())
        self.rejected: Counter[str] = Counter()
        self._sock = sock
        self._job = job
        self._token = token
        self._codec = codec
        self._on_stream = on_stream
        self._limits = limits
        # A dict remembers the order of arrival.
        self._strangers: dict[socket.socket, asyncio.Task[None]] = {}
        self._streams: dict[socket.socket, Stream[M]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls,
        where: str | socket.socket,
        *,
        job: str,
        token: bytes,
        codec: Codec[M],
        on_stream: Handler[M],
        limits: Limits | None = None,
        allow_remote: bool = False,
    ) -> "Listener[M]":
        """Listen on an address, or on a socket that listens already: one that was inherited keeps its port,
        and the connections that wait on it, across a restart. The listener closes the socket at its end.

        `on_stream` runs as a task per peer; when it returns or fails, the stream is closed."""
        limits = limits or Limits()
        limits.validate()
        # A token that can not work is an error now, not one for the first peer.
        ListenerHandshake(job=job, token=token)
        if isinstance(where, socket.socket):
            check_interface(where.getsockname(), allow_remote=allow_remote)
            sock = where
        else:
            sock = listen(where, allow_remote=allow_remote)
        sock.setblocking(False)
        listener = cls(sock, job=job, token=token, codec=codec, on_stream=on_stream, limits=limits)
        listener._watch()
        return listener

    @property
    def streams(self) -> list[Stream[M]]:
        """The authenticated streams, oldest first."""
        return list(self._streams.values())

    @property
    def unauthenticated(self) -> int:
        return len(self._strangers)

    async def close(self) -> None:
        """Stop listening, close every stream, cancel every handler, and return when all of that is over."""
        if self._retry is not None:
            self._retry.cancel()
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
        for stream in self._streams.values():
            stream.close()
        # A handler may be the one that closes the listener; it can not wait for itself.
        ending = self._tasks - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _watch(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        """The socket is readable. One connection is taken per turn of the loop, so that a flood of them does
        not starve the peers; and it is taken by a callback, because a task that is cancelled while it waits
        in `loop.sock_accept` can lose a connection that was accepted already."""
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # It has left again, or another process that shares the socket was faster.
            return
        except OSError as error:
            self._count("accept")
            if self.rejected["accept"] == 1:
                log.warning("%s can not accept connections: %s", self.address, error)
            self._make_room()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock)
            self._retry = loop.call_later(_ACCEPT_RETRY_S, self._watch)
            return
        self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        no_place = len(self._strangers) >= self._limits.unauthenticated
        no_room = len(self._strangers) + len(self._streams) >= self._limits.connections
        if (no_place or no_room) and not self._make_room():
            self._count("full")
            sock.close()
            return
        task = asyncio.create_task(self._serve(sock), name=f"peer of {self.address}")
        self._strangers[sock] = task
        self._tasks.add(task)
        # Not in the task itself, which never begins to run if it is cancelled at once.
        task.add_done_callback(lambda task: self._forget(task, sock))

    def _make_room(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        self._strangers.pop(oldest).cancel()
        self._count("crowded")
        return True

    def _forget(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._strangers.pop(sock, None)
        self._streams.pop(sock, None)
        self._tasks.discard(task)
        sock.close()

    async def _serve(self, sock: socket.socket) -> None:
        stream = await self._authenticated(sock)
        if stream is None:
            return
        self._strangers.pop(sock, None)
        self._streams[sock] = stream
        try:
            await self._on_stream(stream)
        except ProtocolError as error:
            log.warning("%s %s was cut off: %s", stream.peer.role, stream.peer.name, error)
        except Exception:
            log.exception("the handler of %s %s failed", stream.peer.role, stream.peer.name)
        finally:
            stream.close()
            await stream.wait_closed()

    async def _authenticated(self, sock: socket.socket) -> Stream[M] | None:
        """The stream of a peer that has proven itself, or None for one that has been counted."""
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                sock.setblocking(False)
                tune(sock)
                binding = channel_binding(client=sock.getpeername(), server=sock.getsockname())
                machine = ListenerHandshake(job=self._job, token=self._token, binding=binding)
                try:
                    await authenticate(sock, machine)
                except PeerRejected:
                    self._count(machine.reason)
                    return None
                return await open_stream(sock, machine.peer, self._codec, self._limits.stream, self._count)
        except TimeoutError:
            self._count("deadline")
        except OSError:
            self._count("gone")
        except ProtocolError:
            self._count("oversize")
        return None

    def _count(self, reason: str) -> None:
        self.rejected[reason] += 1
