"""One connection in asyncio: send without waiting, receive in order, and never suffer for a bad peer.

A coordinator talks to hundreds of peers from one loop, so nothing that a single peer does may hold up the
others. Hence three rules, each with a bound:

- `send` never waits. What the peer does not take is kept, up to a bound; a peer that falls further behind is
  cut off. It will come back and be told the present state, which is worth more than an old backlog.
- What a peer sends and nobody has read yet is kept, up to a bound; past it the socket is not read, and TCP
  makes the peer wait.
- Reading a long run of messages lets others have their turn every so often.

A stream ends in one way for its reader: the `async for` is over, whether the peer left, died, or was cut off,
and `reason` says which. Only a peer that breaks the protocol ends it with ProtocolError. Sending on a stream
that has ended does nothing: the reader is the one place that hears of the loss.
"""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, cast

from outlast.errors import ConfigError, PeerRejected, ProtocolError
from outlast.wire.address import channel_binding, parse_address, refuse_self_connection, tune
from outlast.wire.codec import Codec, M
from outlast.wire.framing import HEADER_BYTES, MAX_FRAME_BYTES, FrameDecoder, frame, payload_length
from outlast.wire.handshake import HANDSHAKE_FRAME_BYTES, ClientHandshake, Handshake, Peer

_TURN_MESSAGES = 64
_KEPT_MESSAGE_BYTES = 64
"""What a waiting message costs beyond its bytes, so that a million empty ones do not count as nothing."""


_READ_BYTES = 1 << 16


class _Desk(threading.local):
    def __init__(self) -> None:
        self.memory = memoryview(bytearray(_READ_BYTES))


_desk = _Desk()


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """How much one peer may cost."""

    frame_bytes: int = MAX_FRAME_BYTES
    """The longest message either way; both ends of a connection must agree."""
    backlog_bytes: int = 4 << 20
    """How far a peer may be behind in reading before it is cut off: memory against patience."""
    inbox_bytes: int = 1 << 20
    """How much a peer may send ahead of the reader before TCP makes it wait: memory against throughput."""
    flush_s: float = 1.0
    """How long a closed stream tries to deliver what was sent before: politeness against a quick exit."""

    def validate(self) -> None:
        for field in ("frame_bytes", "backlog_bytes", "inbox_bytes", "flush_s"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"{field} is {getattr(self, field)}: it must be positive")


class Stream(Generic[M]):
    """An authenticated connection. Made by `connect` and by a `Listener`; close it, or use `async with`."""

    def __init__(
        self, peer: Peer, codec: Codec[M], limits: StreamLimits, on_misbehaviour: Callable[[str], None]
    ) -> None:
        self.peer = peer
        self.reason = ""
        """Why the stream ended: "closed" (here), "eof", "reset", or what the peer did wrong: "slow",
        "oversize", "malformed", "truncated". Empty while it lives."""
        self._codec = codec
        self._limits = limits
        self._on_misbehaviour = on_misbehaviour
        self._decoder = FrameDecoder(limits.frame_bytes)
        self._transport: asyncio.Transport
        # Payloads wait undecoded: their size is known, that of the decoded objects is not.
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._turn = 0
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._broken: Exception | None = None
        self._hear: Callable[[M], None] | None = None

    @property
    def closed(self) -> bool:
        """True once nothing more can be sent."""
        return bool(self.reason)

    def send(self, message: M) -> None:
        """Hand the message to the transport, without waiting; cut the peer off if it is too far behind."""
        if not self.closed:
            self.send_framed(self.framed(message))

    def framed(self, message: M) -> bytes:
        """The message as it travels: for whoever says the same to many, on streams of the same kind."""
        return frame(self._codec.encode(message), self._limits.frame_bytes)

    def send_framed(self, data: bytes) -> None:
        # A connection may be known to be lost before the stream is told: that comes with the next turn.
        if self.closed or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > self._limits.backlog_bytes:
            self._inbox.clear()
            self._cut_off("slow")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        self._turn = (self._turn + 1) % _TURN_MESSAGES
        if self._turn == 0:
            await asyncio.sleep(0)
        while not self._inbox:
            if self.closed:
                if self._broken is not None:
                    raise self._broken
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        payload = self._inbox.popleft()
        self._inbox_bytes -= len(payload) + _KEPT_MESSAGE_BYTES
        if not self.closed and self._inbox_bytes <= self._limits.inbox_bytes // 2:
            self._transport.resume_reading()
        try:
            return self._codec.decode(payload)
        except ProtocolError as error:
            self._inbox.clear()
            self._broken = error
            self._cut_off("malformed")
            raise

    async def each(self, hear: Callable[[M], None]) -> None:
        """Have every message handed over in the same turn of the loop in which it arrives, until the stream
        ends. That is to loop over the stream at half the price: nobody has to be woken. A long run of
        messages is read in turns all the same."""
        self._hear = hear
        try:
            async for message in self:
                hear(message)
        finally:
            self._hear = None

    def close(self) -> None:
        """End the stream here: unread messages are dropped, sent ones are delivered if that is quick."""
        self._inbox.clear()
        self._broken = None
        self._end("closed")
        self._hang_up()

    async def wait_closed(self) -> None:
        """Returns when the socket is closed; `close` alone only begins that. Whoever is cancelled here has no
        more time to be polite, so the socket is closed at once."""
        try:
            await self._gone.wait()
        except asyncio.CancelledError:
            self._transport.abort()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.wait_closed()

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._news.set()

    def _hang_up(self) -> None:
        self._transport.close()
        if self._transport.get_write_buffer_size() > 0:
            asyncio.get_running_loop().call_later(self._limits.flush_s, self._transport.abort)

    def _cut_off(self, reason: str) -> None:
        """The peer did something wrong: hang up without another word, and have it counted, once."""
        if not self.closed:
            self._on_misbehaviour(reason)
        self._end(reason)
        self._transport.abort()

    def _data_received(self, data: bytes) -> None:
        if self.closed:
            return
        try:
            payloads = self._decoder.feed(data)
        except ProtocolError as error:
            self._broken = error
            self._cut_off("oversize")
            return
        if self._hear is not None and not self._inbox and len(payloads) <= _TURN_MESSAGES:
            self._hand_over(payloads, self._hear)
            return
        self._inbox.extend(payloads)
        self._inbox_bytes += sum(len(payload) + _KEPT_MESSAGE_BYTES for payload in payloads)
        if self._inbox_bytes > self._limits.inbox_bytes:
            self._transport.pause_reading()
        self._news.set()

    def _hand_over(self, payloads: list[bytes], hear: Callable[[M], None]) -> None:
        for payload in payloads:
            if self.closed:
                return
            try:
                message = self._codec.decode(payload)
            except ProtocolError as error:
                self._broken = error
                self._cut_off("malformed")
                return
            try:
                hear(message)
            except Exception as error:
                # Whoever waits for the end of the stream is told.
                self.close()
                self._broken = error

    def _eof_received(self) -> None:
        if self._decoder.mid_frame:
            self._cut_off("truncated")
        else:
            self._end("eof")
            self._hang_up()

    def _connection_lost(self, error: Exception | None) -> None:
        self._end("reset" if error else "eof")
        self._gone.set()


class _Events(asyncio.BufferedProtocol, Generic[M]):
    """asyncio's callbacks, kept apart so that they are not part of what a `Stream` offers.

    All streams of a thread are read into the same memory, one after the other. Were the transport to make
    room for itself, it would ask the system for a quarter of a megabyte for each message of some hundred
    bytes, and give it back."""

    def __init__(self, stream: Stream[M]) -> None:
        self._stream = stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stream._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return _desk.memory

    def buffer_updated(self, nbytes: int) -> None:
        self._stream._data_received(bytes(_desk.memory[:nbytes]))

    def eof_received(self) -> None:
        self._stream._eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream._connection_lost(exc)


async def open_stream(
    sock: socket.socket,
    peer: Peer,
    codec: Codec[M],
    limits: StreamLimits,
    on_misbehaviour: Callable[[str], None] = lambda _reason: None,
) -> Stream[M]:
    """A stream on a socket whose handshake is over; the stream owns the socket from here on."""
    stream = Stream(peer, codec, limits, on_misbehaviour)
    await asyncio.get_running_loop().create_connection(lambda: _Events(stream), sock=sock)
    return stream


async def connect(
    address: str,
    *,
    job: str,
    token: bytes,
    role: str,
    name: str,
    codec: Codec[M],
    deadline_s: float,
    limits: StreamLimits | None = None,
) -> Stream[M]:
    """Connect and authenticate, in one attempt that ends within `deadline_s`.

    Raises OSError (a ConnectionError or TimeoutError) where trying again may help, PeerRejected where it will
    not, and ProtocolError if something else listens there."""
    limits = limits or StreamLimits()
    limits.validate()
    sock: socket.socket | None = None
    try:
        async with asyncio.timeout(deadline_s):
            sock = await _dial(address)
            binding = channel_binding(sock.getsockname(), sock.getpeername())
            machine = ClientHandshake(job=job, token=token, role=role, name=name, binding=binding)
            await authenticate(sock, machine)
            return await open_stream(sock, machine.peer, codec, limits)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, PeerRejected | ProtocolError):
            raise type(error)(f"{address}: {error}") from error
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"{address} did not complete the handshake within {deadline_s} s") from error
        raise


async def _dial(address: str) -> socket.socket:
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    failure: OSError = ConnectionError(f"{address} has no address")
    for family, kind, proto, _, sockaddr in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            tune(sock)
            await loop.sock_connect(sock, sockaddr)
            refuse_self_connection(sock)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


async def authenticate(sock: socket.socket, machine: Handshake) -> None:
    """Run a handshake on a non-blocking socket. Only the bytes of the handshake are taken out of the kernel,
    so a stranger occupies no memory here, and what follows the handshake is left for the stream."""
    loop = asyncio.get_running_loop()
    try:
        for payload in machine.start():
            await loop.sock_sendall(sock, frame(payload))
        while not machine.done:
            length = payload_length(await _read_exactly(sock, HEADER_BYTES), HANDSHAKE_FRAME_BYTES)
            for payload in machine.receive(await _read_exactly(sock, length)):
                await loop.sock_sendall(sock, frame(payload))
    except PeerRejected:
        with contextlib.suppress(OSError):
            for payload in machine.farewell:
                await loop.sock_sendall(sock, frame(payload))
        raise


async def _read_exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < size:
        chunk = await loop.sock_recv(sock, size - len(received))
        if not chunk:
            raise ConnectionError("the connection was closed during the handshake")
        received += chunk
    return bytes(received)
