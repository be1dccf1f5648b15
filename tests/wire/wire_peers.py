"""What the tests of this package share: two messages, a job, and peers that behave or do not."""

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import msgspec

from leaks import nothing_new
from outlast.wire.address import channel_binding, parse_address
from outlast.wire.codec import Codec
from outlast.wire.handshake import ClientHandshake
from outlast.wire.listener import Handler, Limits, Listener
from outlast.wire.streams import Stream, authenticate, connect
from patience import PATIENCE_S


class Say(msgspec.Struct, frozen=True, tag="say"):
    text: str


class Count(msgspec.Struct, frozen=True, tag="count"):
    number: int
    blob: bytes = b""


JOB = "job-1"
TOKEN = bytes(range(32))
CODEC = Codec[Say | Count]((Say, Count))
AnyStream = Stream[Say | Count]

CREDENTIALS: dict[str, Any] = {"job": JOB, "token": TOKEN, "role": "replica", "name": "r0"}
CLIENT: dict[str, Any] = {**CREDENTIALS, "codec": CODEC, "deadline_s": PATIENCE_S}


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """asyncio.run for a test that leaves nothing behind: no task, no socket, no warning."""

    async def checked() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with nothing_new():
        asyncio.run(checked())
        gc.collect()


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - conditions here are about sockets, which set no event.
            await asyncio.sleep(0.002)


async def echo(stream: AnyStream) -> None:
    async for message in stream:
        stream.send(message)


@contextlib.asynccontextmanager
async def listening(
    on_stream: Handler[Say | Count] = echo, limits: Limits | None = None
) -> AsyncIterator[Listener[Say | Count]]:
    listener = await Listener.start(
        "127.0.0.1:0", job=JOB, token=TOKEN, codec=CODEC, on_stream=on_stream, limits=limits
    )
    try:
        yield listener
    finally:
        await listener.close()


async def dial(address: str, **changes: Any) -> AnyStream:
    return await connect(address, **{**CLIENT, **changes})


def stranger(address: str) -> socket.socket:
    """A connection that has not said anything yet."""
    sock = socket.create_connection(parse_address(address), timeout=PATIENCE_S)
    sock.setblocking(False)
    return sock


async def insider(address: str, **changes: Any) -> socket.socket:
    """An authenticated connection in the hands of someone who may send any bytes at all."""
    sock = stranger(address)
    binding = channel_binding(sock.getsockname(), sock.getpeername())
    try:
        await authenticate(sock, ClientHandshake(**{**CREDENTIALS, "binding": binding, **changes}))
    except BaseException:
        sock.close()
        raise
    return sock


async def drain(sock: socket.socket) -> bytes:
    """Everything until the other side hangs up."""
    loop = asyncio.get_running_loop()
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := await loop.sock_recv(sock, 65536):
            received += chunk
    return received


@contextlib.contextmanager
def served(
    on_stream: Handler[Say | Count] = echo, limits: Limits | None = None
) -> Iterator[Listener[Say | Count]]:
    """A listener in a thread of its own, for tests of blocking clients."""
    started = threading.Event()
    box: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, Listener[Say | Count]]] = []

    async def main() -> None:
        stop = asyncio.Event()
        async with listening(on_stream, limits) as listener:
            box.append((asyncio.get_running_loop(), stop, listener))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(PATIENCE_S)
    loop, stop, listener = box[0]
    try:
        yield listener
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
