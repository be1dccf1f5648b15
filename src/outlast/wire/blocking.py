"""The same connection for a plain thread: what a training process uses, which has no event loop.

A training process must never wait for the control plane. `receive` has a timeout, `send` has a deadline, and
`close` may be called from any thread at any time and wakes whoever is inside. A peer that is lost, and a peer
that does not take a message before the deadline, both end the stream with ConnectionError; what to do then
(connect again, in peace, while training goes on) is the caller's business.

Training processes fork: data loaders do. A child would inherit the connection and keep it open after its
parent's death, and nobody would notice that death; so the child closes its copy as soon as it exists.
"""

import contextlib
import math
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self

from outlast.errors import PeerRejected, ProtocolError
from outlast.wire.address import channel_binding, parse_address, refuse_self_connection, tune
from outlast.wire.codec import Codec, M
from outlast.wire.framing import HEADER_BYTES, MAX_FRAME_BYTES, FrameDecoder, frame, payload_length
from outlast.wire.handshake import HANDSHAKE_FRAME_BYTES, ClientHandshake, Peer

SEND_DEADLINE_S = 5.0
_READ_BYTES = 1 << 16


class BlockingStream(Generic[M]):
    """An authenticated connection for threads. Made by `connect`; close it, or use `with`."""

    def __init__(self, sock: socket.socket, peer: Peer, codec: Codec[M], frame_bytes: int) -> None:
        self.peer = peer
        self._sock = sock
        self._codec = codec
        self._frame_bytes = frame_bytes
        self._decoder = FrameDecoder(frame_bytes)
        self._inbox: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        # Re-entrant, so that a signal handler may close a stream whose thread is just entering it.
        self._door = threading.RLock()
        self._inside = 0
        self._closed = False
        self._lost = ""
        sock.setblocking(False)
        _open_streams.add(self)

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        job: str,
        token: bytes,
        role: str,
        name: str,
        codec: Codec[M],
        deadline_s: float,
        frame_bytes: int = MAX_FRAME_BYTES,
    ) -> "BlockingStream[M]":
        """Connect and authenticate, in one attempt that ends within `deadline_s`; raises like
        `streams.connect`."""
        until = time.monotonic() + deadline_s
        sock: socket.socket | None = None
        try:
            sock = _dial(address, until)
            binding = channel_binding(sock.getsockname(), sock.getpeername())
            machine = ClientHandshake(job=job, token=token, role=role, name=name, binding=binding)
            _authenticate(sock, machine, until)
            return cls(sock, machine.peer, codec, frame_bytes)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, PeerRejected | ProtocolError):
                raise type(error)(f"{address}: {error}") from error
            if isinstance(error, TimeoutError):
                raise TimeoutError(
                    f"{address} did not complete the handshake within {deadline_s} s"
                ) from error
            raise

    @property
    def closed(self) -> bool:
        return self._closed or bool(self._lost)

    def fileno(self) -> int:
        """For `select` and the like; -1 once closed. Several messages can arrive at once, so call
        `receive(0)` until it returns None before waiting on the descriptor."""
        return self._sock.fileno()

    def send(self, message: M, deadline_s: float = SEND_DEADLINE_S) -> None:
        """Send from any thread. If the peer does not take the whole message in time, the stream is lost:
        half a message can not be taken back."""
        until = time.monotonic() + deadline_s
        rest = memoryview(frame(self._codec.encode(message), self._frame_bytes))
        with self._entered():
            if not self._sending.acquire(timeout=deadline_s):
                raise self._lose(f"the peer took nothing for {deadline_s} s")
            try:
                while rest:
                    self._check_alive()
                    try:
                        rest = rest[self._sock.send(rest) :]
                    except BlockingIOError:
                        if not self._ready(select.POLLOUT, until):
                            raise self._lose(f"the peer took nothing for {deadline_s} s") from None
                    except OSError as error:
                        raise self._lose(f"the peer is gone ({error.strerror})") from error
            finally:
                if rest:
                    # Ctrl-C may have cut the message short, and the next one would be read as its rest.
                    self._lose("a message was cut short")
                self._sending.release()

    def receive(self, timeout_s: float | None = None) -> M | None:
        """The next message; None if none came in time. Messages that arrived before a loss come first."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._entered():
            if not self._receiving.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0)):
                return None
            try:
                while not self._inbox:
                    self._check_alive()
                    if not self._ready(select.POLLIN, until):
                        return None
                    self._pull()
                return self._codec.decode(self._inbox.popleft())
            except ProtocolError as error:
                self._inbox.clear()
                self._lose(str(error))
                raise
            finally:
                self._receiving.release()

    def close(self) -> None:
        """From any thread, any number of times. Threads inside `send` or `receive` get ConnectionError. The
        last one out closes the descriptor, lest its number be reused under a thread that waits on it."""
        with self._door:
            self._closed = True
            self._hang_up()
            self._close_if_empty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with self._door:
            if self._closed:
                raise ConnectionError("the stream was closed by this process")
            self._inside += 1
        try:
            yield
        finally:
            with self._door:
                self._inside -= 1
                self._close_if_empty()

    def _close_if_empty(self) -> None:
        if self._closed and self._inside == 0:
            self._sock.close()

    def _check_alive(self) -> None:
        if self._closed:
            raise ConnectionError("the stream was closed by this process")
        if self._lost:
            raise ConnectionError(self._lost)

    def _lose(self, why: str) -> ConnectionError:
        """The stream is of no more use: make that known to every thread, and to the peer."""
        if self._closed:
            return ConnectionError("the stream was closed by this process")
        self._lost = self._lost or why
        self._hang_up()
        return ConnectionError(self._lost)

    def _hang_up(self) -> None:
        # Unlike close, shutdown wakes threads that wait on the socket.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _ready(self, event: int, until: float | None) -> bool:
        # Not select.select, which fails for descriptors over 1023, and not a socket timeout, which the
        # sending and the receiving thread would have to share.
        poll = select.poll()
        poll.register(self._sock, event)
        left_ms = None if until is None else max(0, math.ceil((until - time.monotonic()) * 1000))
        return bool(poll.poll(left_ms))

    def _pull(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lose(f"the peer is gone ({error.strerror})") from error
        if not data:
            inside = " in the middle of a message" if self._decoder.mid_frame else ""
            raise self._lose(f"the peer closed the connection{inside}")
        self._inbox.extend(self._decoder.feed(data))


def _dial(address: str, until: float) -> socket.socket:
    host, port = parse_address(address)
    failure: OSError = ConnectionError(f"{address} has no address")
    for family, kind, proto, _, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            tune(sock)
            sock.settimeout(_left_s(until))
            sock.connect(sockaddr)
            refuse_self_connection(sock)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _authenticate(sock: socket.socket, machine: ClientHandshake, until: float) -> None:
    try:
        while not machine.done:
            length = payload_length(_read_exactly(sock, HEADER_BYTES, until), HANDSHAKE_FRAME_BYTES)
            for payload in machine.receive(_read_exactly(sock, length, until)):
                sock.sendall(frame(payload))
    except PeerRejected:
        with contextlib.suppress(OSError):
            for payload in machine.farewell:
                sock.sendall(frame(payload))
        raise


def _read_exactly(sock: socket.socket, size: int, until: float) -> bytes:
    received = bytearray()
    while len(received) < size:
        sock.settimeout(_left_s(until))
        chunk = sock.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the connection was closed during the handshake")
        received += chunk
    return bytes(received)


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        # A timeout of zero would mean something else to a socket: do not wait at all.
        raise TimeoutError
    return left_s


_open_streams: "weakref.WeakSet[BlockingStream[Any]]" = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child. Locks are replaced (their owners may not exist here), and the connection is not shut
    down (it is the parent's): only this copy of the descriptor goes."""
    for stream in list(_open_streams):
        stream._door = threading.RLock()
        stream._inside = 0
        stream._closed = True
        stream._sock.close()


os.register_at_fork(after_in_child=_close_inherited)
