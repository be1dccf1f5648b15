"""A connection of the benchmark's crowd: authenticated like any, and as cheap as can be after that.

A thousand machines share two cores with the coordinator that is measured, so what stands in for them must
cost little. The handshake is the real one. After it bytes go straight from and to the socket, since there is
nobody here who would have to be kept waiting, or cut off.
"""

import asyncio
import random
import socket
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast.protocol.finding import Finder
from outlast.protocol.messages import Message
from outlast.wire.address import channel_binding, parse_address, refuse_self_connection, tune
from outlast.wire.control import CONTROL
from outlast.wire.framing import HEADER_BYTES, frame
from outlast.wire.handshake import ClientHandshake
from outlast.wire.rundir import RunFile
from outlast.wire.streams import authenticate

DIAL_WITHIN_S = 2.0
READ_BYTES = 1 << 16


class Line:
    """Kept up for as long as whoever it belongs to lives, as agents and replicas do it."""

    def __init__(
        self,
        run: RunFile,
        token: bytes,
        *,
        role: str,
        name: str,
        decode: Callable[[bytes], Message],
        on_open: Callable[[], None],
        on_message: Callable[[Message], None],
    ) -> None:
        self._run = run
        self._token = token
        self._role = role
        self._name = name
        self._decode = decode
        self._on_open = on_open
        self._on_message = on_message
        self._finder = Finder(run.addresses, run.timing(), random.random)
        self._sock: socket.socket | None = None
        self._unread = b""
        self._over: asyncio.Future[float] | None = None
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def open(self) -> bool:
        return self._sock is not None

    def say(self, message: Message) -> None:
        """What cannot be sent is said again on a new connection."""
        if self._sock is None:
            return
        data = frame(CONTROL.encode(message))
        try:
            whole = self._sock.send(data) == len(data)
        except OSError:
            whole = False
        if not whole:
            self._lost()

    def look(self, now: float) -> None:
        """Whether the other end has been silent for too long."""
        if self._finder.is_silent(now):
            self._lost()

    def freeze(self) -> socket.socket | None:
        """The machine is gone without a word: nothing is said, read or closed any more. Whoever holds the
        socket that is returned keeps it that way."""
        sock = None
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            sock, self._sock = self._sock.dup(), None
        self._keeping.cancel()
        return sock

    def close(self) -> None:
        """The process has ended."""
        self._keeping.cancel()

    async def _keep(self) -> None:
        while True:
            try:
                async with asyncio.timeout(DIAL_WITHIN_S):
                    sock = await self._dial(self._finder.where)
            except (OSError, OutlastError):
                rest_s = self._finder.failed()
            else:
                rest_s = await self._converse(sock)
            await asyncio.sleep(rest_s)

    async def _dial(self, address: str) -> socket.socket:
        host, port = parse_address(address)
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setblocking(False)
            tune(sock)
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            refuse_self_connection(sock)
            machine = ClientHandshake(
                job=self._run.spec.name,
                token=self._token,
                role=self._role,
                name=self._name,
                binding=channel_binding(sock.getsockname(), sock.getpeername()),
            )
            await authenticate(sock, machine)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _converse(self, sock: socket.socket) -> float:
        loop = asyncio.get_running_loop()
        self._sock, self._unread, self._over = sock, b"", loop.create_future()
        self._finder.connected(loop.time())
        loop.add_reader(sock, self._readable)
        try:
            self._on_open()
            return await self._over
        finally:
            self._sock = None
            loop.remove_reader(sock)
            sock.close()

    def _lost(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(self._finder.failed())

    def _readable(self) -> None:
        if self._sock is None:
            return
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        data = self._unread + data if self._unread else data
        at = 0
        while len(data) - at >= HEADER_BYTES:
            begin = at + HEADER_BYTES
            end = begin + int.from_bytes(data[at:begin], "big")
            if end > len(data):
                break
            self._hear(data[begin:end])
            at = end
        self._unread = data[at:]

    def _hear(self, payload: bytes) -> None:
        message = self._decode(payload)
        rest_s = self._finder.heard(message, asyncio.get_running_loop().time())
        if rest_s is None:
            self._on_message(message)
        elif self._over is not None and not self._over.done():
            self._over.set_result(rest_s)
