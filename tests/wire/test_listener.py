"""Who gets in, who does not, and that nobody can keep the others out."""

import asyncio
import contextlib
import errno
import logging
import socket

import pytest
from wire_peers import (
    CODEC,
    JOB,
    TOKEN,
    AnyStream,
    Say,
    dial,
    drain,
    echo,
    eventually,
    insider,
    listening,
    run,
    stranger,
)

from outlast.errors import AddressInUse, ConfigError, PeerRejected
from outlast.wire.address import listen
from outlast.wire.framing import frame
from outlast.wire.listener import Limits, Listener
from outlast.wire.streams import StreamLimits


async def start(where: str | socket.socket, **changes: bool) -> Listener[Say]:
    return await Listener.start(where, job=JOB, token=TOKEN, codec=CODEC, on_stream=echo, **changes)


async def proves_that_it_serves(listener: Listener) -> None:
    async with await dial(listener.address, name="honest") as stream:
        stream.send(Say("hello"))
        assert await anext(stream) == Say("hello")


def test_another_token_and_another_job_are_refused_alike() -> None:
    async def main() -> None:
        async with listening() as listener:
            for change in ({"token": b"z" * 32}, {"job": "job-2"}):
                with pytest.raises(PeerRejected, match=rf"^{listener.address}: .*another job or has another"):
                    await dial(listener.address, **change)
            await proves_that_it_serves(listener)
            assert listener.rejected == {"credentials": 2}

    run(main)


def test_another_version_is_told_to_both_sides() -> None:
    async def main() -> None:
        async with listening() as listener:
            with pytest.raises(PeerRejected, match="version 1 of the protocol, this process version 2"):
                await insider(listener.address, version=2)
            await eventually(lambda: listener.rejected == {"version": 1})

    run(main)


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "oversize"),
        (b"\x00\x00\x04\x01", "oversize"),
        (frame(b"hello"), "malformed"),
        (frame(b""), "malformed"),
        (frame(b"outlast\0\x00\x01garbage"), "malformed"),
        (frame(b"outlast\0\x00\x07whatever it says"), "version"),
    ],
)
def test_strangers_are_dropped_and_counted(opening: bytes, reason: str) -> None:
    async def main() -> None:
        async with listening() as listener:
            with stranger(listener.address) as sock:
                sock.send(opening)
                await drain(sock)
            await eventually(lambda: listener.rejected == {reason: 1})
            await proves_that_it_serves(listener)
            assert listener.unauthenticated == 0

    run(main)


@pytest.mark.parametrize("said", [b"", b"\x00\x00", frame(b"outlast\0\x00\x01")[:-1]])
def test_a_stranger_who_takes_its_time_is_dropped_at_the_deadline(said: bytes) -> None:
    async def main() -> None:
        async with listening(limits=Limits(handshake_s=0.03)) as listener:
            with stranger(listener.address) as sock:
                sock.send(said)
                await drain(sock)
            assert listener.rejected == {"deadline": 1}

    run(main)


def test_a_stranger_who_leaves_is_counted_too() -> None:
    async def main() -> None:
        async with listening() as listener:
            with stranger(listener.address) as sock:
                sock.send(b"\x00\x00")
            await eventually(lambda: listener.rejected == {"gone": 1})

    run(main)


def test_a_crowd_of_strangers_is_bounded_and_keeps_nobody_out() -> None:
    async def main() -> None:
        limits = Limits(unauthenticated=4, handshake_s=60)
        async with listening(limits=limits) as listener:
            with contextlib.ExitStack() as crowd:
                socks = [crowd.enter_context(stranger(listener.address)) for _ in range(50)]
                await eventually(lambda: listener.rejected["crowded"] == 46)
                assert listener.unauthenticated == 4
                await proves_that_it_serves(listener)
                assert listener.rejected == {"crowded": 47}
                # The oldest have gone; the newest may go on.
                for sock in socks[:47]:
                    await drain(sock)
                for sock in socks[47:]:
                    assert len(sock.recv(4096)) > 0
                    with pytest.raises(BlockingIOError):
                        sock.recv(4096)
            await eventually(lambda: listener.rejected["gone"] == 3)

    run(main)


def test_a_whole_fleet_may_come_at_once_and_nobody_is_dismissed() -> None:
    async def main() -> None:
        replicas = 100
        async with listening(limits=Limits.for_fleet(replicas)) as listener:
            with contextlib.ExitStack() as crowd:
                for _ in range(2 * replicas):
                    crowd.enter_context(stranger(listener.address))
                await eventually(lambda: listener.unauthenticated == 2 * replicas)
                assert not listener.rejected
            await eventually(lambda: listener.rejected == {"gone": 2 * replicas})

    run(main)


@pytest.mark.parametrize("replicas", [1, 8, 1000, 10_000])
def test_a_fleet_has_room_twice_over(replicas: int) -> None:
    limits = Limits.for_fleet(replicas)
    limits.validate()
    assert limits.connections >= max(Limits().connections, 4 * replicas)
    assert limits.unauthenticated >= max(Limits().unauthenticated, 2 * replicas)


def test_the_total_is_bounded_and_strangers_make_room_before_peers_do() -> None:
    async def main() -> None:
        async with listening(limits=Limits(connections=2)) as listener:
            first = await dial(listener.address, name="r1")
            await eventually(lambda: len(listener.streams) == 1)
            with stranger(listener.address) as sock:
                await eventually(lambda: listener.unauthenticated == 1)
                second = await dial(listener.address, name="r2")
                await drain(sock)
            async with first, second:
                await eventually(lambda: len(listener.streams) == 2)
                with pytest.raises(ConnectionError):
                    await dial(listener.address, name="r3")
                assert listener.rejected == {"crowded": 1, "full": 1}
                for stream in (first, second):
                    stream.send(Say("alive"))
                    assert await anext(stream) == Say("alive")
            await eventually(lambda: not listener.streams)
            await proves_that_it_serves(listener)

    run(main)


def test_a_failing_handler_costs_its_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fragile(stream: AnyStream) -> None:
        async for message in stream:
            if message == Say("break"):
                raise RuntimeError("a bug in the handler")
            stream.send(message)

    async def main() -> None:
        async with listening(fragile) as listener:
            async with await dial(listener.address, name="r7") as stream:
                stream.send(Say("break"))
                assert await anext(stream, None) is None
            await proves_that_it_serves(listener)
            assert not listener.rejected

    with caplog.at_level(logging.WARNING):
        run(main)
    (record,) = caplog.records
    assert record.getMessage() == "the handler of replica r7 failed"
    assert record.exc_info is not None


def test_a_handler_that_returns_ends_its_stream_after_what_it_sent() -> None:
    async def greet(stream: AnyStream) -> None:
        stream.send(Say("bye"))

    async def main() -> None:
        async with listening(greet) as listener, await dial(listener.address) as stream:
            assert [message async for message in stream] == [Say("bye")]

    run(main)


def test_closing_ends_streams_strangers_and_handlers() -> None:
    cancelled: list[str] = []

    async def stuck(stream: AnyStream) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(stream.peer.name)
            raise

    async def main() -> None:
        async with listening(stuck) as listener:
            streams = [await dial(listener.address, name=f"r{number}") for number in range(3)]
            with stranger(listener.address) as sock:
                await eventually(lambda: (len(listener.streams), listener.unauthenticated) == (3, 1))
                await listener.close()
                assert sorted(cancelled) == ["r0", "r1", "r2"]
                assert (listener.streams, listener.unauthenticated) == ([], 0)
                await drain(sock)
                for stream in streams:
                    assert await anext(stream, None) is None
                    await stream.wait_closed()
            with pytest.raises(ConnectionRefusedError):
                await dial(listener.address)
            assert not listener.rejected

    run(main)


def test_closing_in_the_very_moment_of_arrival_leaks_nothing() -> None:
    async def main() -> None:
        for turns in range(8):
            async with listening() as listener:
                with stranger(listener.address):
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await listener.close()

    run(main)


def test_closing_does_not_wait_for_the_last_words_to_those_who_do_not_listen() -> None:
    async def rant(stream: AnyStream) -> None:
        while stream._transport.get_write_buffer_size() == 0:
            stream.send(Say("x" * 500_000))

    async def main() -> None:
        limits = Limits(stream=StreamLimits(flush_s=60))
        async with listening(rant, limits) as listener:
            with await insider(listener.address):
                await eventually(lambda: listener.streams and listener.streams[0].closed)
                await listener.close()
                assert not listener.streams

    run(main)


def test_a_handler_may_close_the_listener() -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def close(stream: AnyStream) -> None:
            await listener.close()
            closed.set()

        async with listening(close) as listener:
            async with await dial(listener.address) as stream:
                await closed.wait()
                assert await anext(stream, None) is None
            await eventually(lambda: not listener.streams)

    run(main)


def test_an_inherited_socket_brings_the_connections_that_wait_on_it() -> None:
    async def main() -> None:
        sock = listen("127.0.0.1:0")
        inherited = socket.socket(fileno=sock.detach())
        host, port = inherited.getsockname()
        dialling = asyncio.create_task(dial(f"{host}:{port}"))
        await asyncio.sleep(0)
        listener = await start(inherited)
        assert listener.address == f"{host}:{port}"
        async with await dialling as stream:
            stream.send(Say("patience"))
            assert await anext(stream) == Say("patience")
        await listener.close()

    run(main)


def test_ipv6_loopback_works_too() -> None:
    async def main() -> None:
        try:
            listener = await start("[::1]:0")
        except ConfigError:
            pytest.skip("this machine has no IPv6 loopback")
        assert listener.address.startswith("[::1]:")
        await proves_that_it_serves(listener)
        await listener.close()

    run(main)


def test_a_listener_does_not_leave_loopback_by_accident() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"listen on 127\.0\.0\.1"):
            await start("0.0.0.0:0")
        with socket.socket() as sock:
            sock.bind(("0.0.0.0", 0))  # noqa: S104
            sock.listen()
            with pytest.raises(ConfigError, match=r"listen on 127\.0\.0\.1"):
                await start(sock)
        listener = await start("0.0.0.0:0", allow_remote=True)
        async with await dial(listener.address.replace("0.0.0.0", "127.0.0.1")) as stream:  # noqa: S104
            stream.send(Say("through the loopback side"))
            assert await anext(stream) == Say("through the loopback side")
        await listener.close()

    run(main)


def test_mistakes_at_the_start_are_errors_at_the_start() -> None:
    async def main() -> None:
        async with listening() as listener:
            with pytest.raises(AddressInUse, match="port 0"):
                await start(listener.address)
        with pytest.raises(ConfigError, match="can be guessed"):
            await Listener.start("127.0.0.1:0", job=JOB, token=b"", codec=CODEC, on_stream=echo)
        with pytest.raises(ConfigError, match="handshake_s is 0"):
            Limits(handshake_s=0).validate()

    run(main)


class Exhausted(socket.socket):
    """A listening socket in a process that has no descriptors left, for a while."""

    failures = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_listener_survives_running_out_of_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        listener = await start(Exhausted(fileno=listen("127.0.0.1:0").detach()))
        await proves_that_it_serves(listener)
        assert listener.rejected == {"accept": 2}
        await listener.close()

    run(main)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_listener_that_waits_for_descriptors_can_be_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        listener = await start(Exhausted(fileno=listen("127.0.0.1:0").detach()))
        with stranger(listener.address):
            await eventually(lambda: listener.rejected["accept"])
            await listener.close()

    run(main)
