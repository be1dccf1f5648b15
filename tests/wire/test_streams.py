"""One connection, both ends, and what either may do to the other."""

import asyncio
import contextlib
import socket

import pytest
from wire_peers import CODEC, AnyStream, Count, Say, dial, drain, eventually, insider, listening, run

from outlast.errors import ConfigError, PeerRejected, ProtocolError
from outlast.wire.address import channel_binding, format_address, listen
from outlast.wire.framing import MAX_FRAME_BYTES, frame
from outlast.wire.handshake import ListenerHandshake, Peer
from outlast.wire.listener import Limits
from outlast.wire.streams import StreamLimits, authenticate


def test_messages_go_both_ways_in_order() -> None:
    async def main() -> None:
        async with listening() as listener, await dial(listener.address, role="agent", name="a1") as stream:
            sent = [Say("hällo"), *(Count(number, b"x" * number) for number in range(200)), Say("")]
            for message in sent:
                stream.send(message)
            assert [await anext(stream) for _ in sent] == sent
            assert stream.peer == Peer("listener", "job-1")
            assert [peer.peer for peer in listener.streams] == [Peer("agent", "a1")]
            assert not listener.rejected

    run(main)


def test_the_longest_message_passes_and_a_longer_one_is_the_senders_error() -> None:
    async def main() -> None:
        async with listening() as listener, await dial(listener.address) as stream:
            overhead = len(CODEC.encode(Count(1, bytes(70_000)))) - 70_000
            biggest = Count(1, bytes(MAX_FRAME_BYTES - overhead))
            stream.send(biggest)
            assert await anext(stream) == biggest
            with pytest.raises(ValueError, match="over the limit"):
                stream.send(Count(1, bytes(MAX_FRAME_BYTES)))
            assert not stream.closed

    run(main)


def test_last_words_are_delivered_although_the_speaker_has_left() -> None:
    async def main() -> None:
        heard: list[Say | Count] = []
        over = asyncio.Event()

        async def keep(stream: AnyStream) -> None:
            heard.extend([message async for message in stream])
            assert stream.reason == "eof"
            over.set()

        async with listening(keep) as listener:
            async with await dial(listener.address) as stream:
                for number in range(100):
                    stream.send(Count(number, bytes(1000)))
            await over.wait()
            assert [message.number for message in heard if isinstance(message, Count)] == list(range(100))

    run(main)


def test_closing_here_ends_the_reader_here() -> None:
    async def main() -> None:
        async with listening() as listener, await dial(listener.address) as stream:
            reading = asyncio.create_task(anext(stream, None))
            await asyncio.sleep(0)
            stream.close()
            assert await reading is None
            assert stream.closed
            assert stream.reason == "closed"
            stream.send(Say("to nobody"))
            stream.close()

    run(main)


def test_a_message_that_is_cut_short_is_not_delivered() -> None:
    async def main() -> None:
        heard: list[Say | Count] = []
        reasons: list[str] = []

        async def keep(stream: AnyStream) -> None:
            heard.extend([message async for message in stream])
            reasons.append(stream.reason)

        async with listening(keep) as listener:
            with await insider(listener.address) as sock:
                sock.send(frame(CODEC.encode(Say("whole"))) + frame(CODEC.encode(Say("half")))[:-1])
                sock.shutdown(socket.SHUT_WR)
                await drain(sock)
            await eventually(lambda: reasons)
            assert (heard, reasons) == ([Say("whole")], ["truncated"])
            assert listener.rejected == {"truncated": 1}

    run(main)


@pytest.mark.parametrize(
    ("nonsense", "reason"),
    [(b"\x00\x20\x00\x01", "oversize"), (frame(b"garbage"), "malformed"), (frame(b""), "malformed")],
)
def test_nonsense_from_an_insider_costs_its_own_connection_only(nonsense: bytes, reason: str) -> None:
    async def main() -> None:
        heard: list[Say | Count] = []
        ended: list[tuple[str, str]] = []

        async def keep(stream: AnyStream) -> None:
            try:
                async for message in stream:
                    heard.append(message)
                    stream.send(message)
            except ProtocolError as error:
                ended.append((stream.reason, str(error)))
                raise

        async with listening(keep) as listener, await dial(listener.address) as bystander:
            with await insider(listener.address, name="r1") as sock:
                sock.send(frame(CODEC.encode(Say("before"))))
                await eventually(lambda: heard)
                sock.send(nonsense)
                await drain(sock)
            await eventually(lambda: ended)
            assert ended[0][0] == reason
            assert listener.rejected == {reason: 1}
            bystander.send(Say("still here"))
            assert await anext(bystander) == Say("still here")

    run(main)


def test_a_peer_that_does_not_read_is_cut_off_and_the_others_do_not_notice() -> None:
    async def main() -> None:
        limits = Limits(stream=StreamLimits(backlog_bytes=100_000))
        async with listening(limits=limits) as listener, await dial(listener.address, name="good") as good:
            with await insider(listener.address, name="slow"):
                await eventually(lambda: len(listener.streams) == 2)
                streams = {stream.peer.name: stream for stream in listener.streams}
                # The kernel takes some megabytes before the backlog even begins.
                for number in range(2000):
                    message = Count(number, bytes(50_000))
                    for stream in streams.values():
                        stream.send(message)
                    assert await anext(good) == message
                    if streams["slow"].closed:
                        break
                assert streams["slow"].reason == "slow"
                assert not streams["good"].closed
                await eventually(lambda: len(listener.streams) == 1)
                assert listener.rejected == {"slow": 1}

    run(main)


def test_what_nobody_reads_is_not_hoarded_but_held_back_at_the_sender() -> None:
    async def main() -> None:
        read_now = asyncio.Event()
        heard = 0

        async def patient(stream: AnyStream) -> None:
            nonlocal heard
            await read_now.wait()
            async for _ in stream:
                heard += 1

        limits = Limits(stream=StreamLimits(inbox_bytes=10_000))
        async with listening(patient, limits) as listener, await dial(listener.address) as stream:
            sent = 0
            while stream._transport.get_write_buffer_size() < 1_000_000:
                stream.send(Count(sent, bytes(50_000)))
                sent += 1
                await asyncio.sleep(0)
                assert sent < 2000
            (receiver,) = listener.streams
            assert receiver._inbox_bytes < 1_000_000
            read_now.set()
            await eventually(lambda: heard == sent)

    run(main)


def test_a_long_run_of_messages_lets_others_have_their_turn() -> None:
    async def main() -> None:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with listening() as listener, await dial(listener.address) as stream:
            for number in range(6400):
                stream.send(Count(number))
            await eventually(lambda: len(stream._inbox) == 6400)
            ticking = asyncio.create_task(tick())
            for _ in range(6400):
                await anext(stream)
            assert turns >= 99
            ticking.cancel()
            await asyncio.wait([ticking])

    run(main)


def test_a_closed_stream_does_not_wait_for_ever_to_deliver() -> None:
    async def main() -> None:
        async with listening() as listener:
            with await insider(listener.address):
                await eventually(lambda: listener.streams)
                (stream,) = listener.streams
                stream._limits = StreamLimits(flush_s=0.01)
                while stream._transport.get_write_buffer_size() == 0:
                    stream.send(Count(1, bytes(500_000)))
                assert not stream.closed
                stream.close()
                await stream.wait_closed()

    run(main)


def test_nobody_there_is_a_refused_connection() -> None:
    async def main() -> None:
        with listen("127.0.0.1:0") as sock:
            address = format_address(sock.getsockname())
        with pytest.raises(ConnectionRefusedError):
            await dial(address)

    run(main)


def test_somebody_who_says_nothing_is_a_timeout() -> None:
    async def main() -> None:
        with listen("127.0.0.1:0") as sock:
            address = format_address(sock.getsockname())
            with pytest.raises(
                TimeoutError, match=rf"{address} did not complete the handshake within 0.02 s"
            ):
                await dial(address, deadline_s=0.02)

    run(main)


@pytest.mark.parametrize(
    ("greeting", "error", "match"),
    [
        (b"", ConnectionError, "closed during the handshake"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", ProtocolError, "127.0.0.1.*announced a frame"),
        (frame(b"hello, world"), PeerRejected, "does not speak Outlast's protocol"),
    ],
)
def test_somebody_else_on_the_port_is_told_apart(greeting: bytes, error: type[Exception], match: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with listen("127.0.0.1:0") as server:
            server.setblocking(False)

            async def greet() -> None:
                sock, _ = await loop.sock_accept(server)
                with sock:
                    await loop.sock_sendall(sock, greeting)

            greeter = asyncio.create_task(greet())
            with pytest.raises(error, match=match):
                await dial(format_address(server.getsockname()))
            await greeter

    run(main)


def test_an_impostor_on_the_port_learns_nothing_and_is_not_believed() -> None:
    """It answers any proof with a welcome, made with a token of its own."""

    class Gullible(ListenerHandshake):
        def receive(self, payload: bytes) -> list[bytes]:
            from outlast.wire import handshake

            return [self._pack(handshake._Welcome(bytes(32)))]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with listen("127.0.0.1:0") as server:
            server.setblocking(False)

            async def pose() -> None:
                sock, _ = await loop.sock_accept(server)
                with sock, pytest.raises(OSError, match=r"closed during the handshake|reset"):
                    await authenticate(sock, Gullible(job="job-1", token=bytes(32)))

            posing = asyncio.create_task(pose())
            with pytest.raises(PeerRejected, match="can not prove itself"):
                await dial(format_address(server.getsockname()))
            await posing

    run(main)


def test_a_relay_between_client_and_listener_is_found_out() -> None:
    """Every byte is passed on unchanged, and the proof still does not fit: the addresses are others."""

    async def pump(source: socket.socket, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, 4096):
            await loop.sock_sendall(sink, data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with listening() as listener:
            with listen("127.0.0.1:0") as relay:
                relay.setblocking(False)

                async def pass_on() -> None:
                    victim, _ = await loop.sock_accept(relay)
                    with victim, socket.create_connection(tuple(listener.address.split(":"))) as onward:
                        onward.setblocking(False)
                        await asyncio.gather(pump(victim, onward), pump(onward, victim))

                passing = asyncio.create_task(pass_on())
                with pytest.raises(PeerRejected, match="relays"):
                    await dial(format_address(relay.getsockname()))
                await passing
            assert listener.rejected == {"credentials": 1}

    run(main)


def test_the_binding_is_that_of_the_connection() -> None:
    async def main() -> None:
        async with listening() as listener:
            with pytest.raises(PeerRejected):
                await insider(listener.address, binding=channel_binding(("127.0.0.1", 1), ("127.0.0.1", 2)))
            assert listener.rejected == {"credentials": 1}

    run(main)


def test_limits_that_can_not_work_are_named() -> None:
    with pytest.raises(ConfigError, match="backlog_bytes is 0"):
        StreamLimits(backlog_bytes=0).validate()
