"""The program that makes a link between two machines slow: `slow_link.py DELAY_S BYTES_PER_S`.

Connections to the other machine are redirected to it. It says which port it listens at, and asks the kernel
of each connection where that was meant to go. What it reads it passes on when it is due, in both directions:
every byte is late by the delay, and no more of them pass in a second than the link allows.
"""

import asyncio
import contextlib
import socket
import struct
import sys

MARK = 7
"""What the proxy itself sends is not redirected."""
CHUNK_BYTES = 1 << 14
UNDER_WAY_MOST = 64
"""How many chunks a connection may have on the link in each direction; its sender has to wait then."""
_SO_ORIGINAL_DST = 80


def meant_for(connection: socket.socket) -> tuple[str, int]:
    if connection.family == socket.AF_INET6:
        raw = connection.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
        return socket.inet_ntop(socket.AF_INET6, raw[8:24]), int.from_bytes(raw[2:4], "big")
    raw = connection.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
    return socket.inet_ntop(socket.AF_INET, raw[4:8]), int.from_bytes(raw[2:4], "big")


class SlowLink:
    def __init__(self, delay_s: float, bytes_per_s: float) -> None:
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        with contextlib.ExitStack() as stack:
            four, six = socket.socket(socket.AF_INET), socket.socket(socket.AF_INET6)
            for listener in (four, six):
                stack.enter_context(listener)
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            four.bind(("127.0.0.1", 0))
            port = four.getsockname()[1]
            six.bind(("::1", port))
            for listener in (four, six):
                listener.listen(1024)
                listener.setblocking(False)
            print(port, flush=True)
            await asyncio.gather(self._accept(four), self._accept(six))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(listener)
            task = loop.create_task(self._carry(near))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _carry(self, near: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        far = socket.socket(near.family)
        far.setblocking(False)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        ways: list[asyncio.Task[None]] = []
        try:
            # A connection is there after it has been asked for and granted.
            await asyncio.sleep(2 * self._delay_s)
            await loop.sock_connect(far, meant_for(near))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = [loop.create_task(self._pass_on(*way)) for way in ((near, far), (far, near))]
            await asyncio.gather(*ways)
        except OSError:
            # Whatever happened to one end is what the other is told.
            for end in (near, far):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            near.close()
            far.close()

    async def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes | OSError]] = asyncio.Queue(UNDER_WAY_MOST)

        async def read() -> None:
            free_at, data = 0.0, b"."
            while data:
                try:
                    data = await loop.sock_recv(source, CHUNK_BYTES)
                except OSError as error:
                    await under_way.put((loop.time() + self._delay_s, error))
                    return
                free_at = max(free_at, loop.time()) + len(data) / self._bytes_per_s
                await under_way.put((free_at + self._delay_s, data))

        reading = loop.create_task(read())
        try:
            data: bytes | OSError = b"."
            while data:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                if isinstance(data, OSError):
                    raise data
                await loop.sock_sendall(target, data)
            target.shutdown(socket.SHUT_WR)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(SlowLink(float(sys.argv[1]), float(sys.argv[2])).serve())
