"""Messages that are handed over as they come, instead of being waited for one by one."""

import asyncio
import logging

import pytest
from wire_peers import CODEC, AnyStream, Count, Say, dial, drain, eventually, insider, listening, run

from outlast.wire.framing import frame
from outlast.wire.handshake import Peer
from outlast.wire.streams import Stream, StreamLimits


async def echo_each(stream: AnyStream) -> None:
    await stream.each(stream.send)


def test_order_is_kept_however_messages_come() -> None:
    """Alone, many at once, and cut anywhere."""

    async def main() -> None:
        async with listening(echo_each) as listener, await dial(listener.address) as stream:
            sent = [Count(number, b"x" * (number * 37 % 5000)) for number in range(3000)]
            for burst in (1, 1, 10, 988, 2000):
                for message in sent[:burst]:
                    stream.send(message)
                assert [await anext(stream) for _ in range(burst)] == sent[:burst]
            assert not listener.rejected

    run(main)


def test_what_came_before_anybody_listened_is_handed_over_first() -> None:
    async def main() -> None:
        heard: list[Say | Count] = []
        listen_now = asyncio.Event()

        async def late(stream: AnyStream) -> None:
            await listen_now.wait()
            await stream.each(heard.append)

        async with listening(late) as listener, await dial(listener.address) as stream:
            stream.send(Say("first"))
            await eventually(lambda: listener.streams and listener.streams[0]._inbox)
            listen_now.set()
            stream.send(Say("second"))
            await eventually(lambda: len(heard) == 2)
            assert heard == [Say("first"), Say("second")]

    run(main)


def test_the_last_words_of_one_who_leaves_are_heard() -> None:
    async def main() -> None:
        heard: list[Say | Count] = []
        reasons: list[str] = []

        async def keep(stream: AnyStream) -> None:
            await stream.each(heard.append)
            reasons.append(stream.reason)

        async with listening(keep) as listener:
            async with await dial(listener.address) as stream:
                for number in range(100):
                    stream.send(Count(number, bytes(1000)))
            await eventually(lambda: reasons)
            assert [message.number for message in heard if isinstance(message, Count)] == list(range(100))
            assert reasons == ["eof"]

    run(main)


def test_nonsense_ends_it_after_what_came_before(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        heard: list[Say | Count] = []

        async with listening(lambda stream: stream.each(heard.append)) as listener:
            with await insider(listener.address, name="r1") as sock:
                word = frame(CODEC.encode(Say("before")))
                sock.send(word + frame(b"garbage") + word)
                await drain(sock)
            await eventually(lambda: not listener.streams)
            assert heard == [Say("before")]
            assert listener.rejected == {"malformed": 1}

    with caplog.at_level(logging.WARNING):
        run(main)
    (record,) = caplog.records
    assert record.getMessage().startswith("replica r1 was cut off: malformed message")


def test_a_listener_that_fails_costs_its_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        heard: list[Say | Count] = []

        def fragile(message: Say | Count) -> None:
            heard.append(message)
            raise RuntimeError("a bug in the handler")

        async with listening(lambda stream: stream.each(fragile)) as listener:
            async with await dial(listener.address, name="r7") as stream:
                stream.send(Say("break"))
                stream.send(Say("too late"))
                assert await anext(stream, None) is None
            await eventually(lambda: not listener.streams)
            assert heard == [Say("break")]

    with caplog.at_level(logging.WARNING):
        run(main)
    (record,) = caplog.records
    assert record.getMessage() == "the handler of replica r7 failed"
    assert record.exc_info is not None


def test_one_who_hangs_up_hears_nothing_more() -> None:
    async def main() -> None:
        heard: list[Say | Count] = []

        async def once(stream: AnyStream) -> None:
            def hear(message: Say | Count) -> None:
                heard.append(message)
                stream.close()

            await stream.each(hear)

        async with listening(once) as listener:
            with await insider(listener.address) as sock:
                sock.send(frame(CODEC.encode(Say("one"))) + frame(CODEC.encode(Say("two"))))
                await drain(sock)
            await eventually(lambda: not listener.streams)
            assert heard == [Say("one")]
            assert not listener.rejected

    run(main)


def test_a_long_run_of_messages_is_not_handed_over_in_one_turn() -> None:
    """Who sends thousands at once does not keep the loop from the others."""

    async def main() -> None:
        stream: AnyStream = Stream(Peer("replica", "r0"), CODEC, StreamLimits(), lambda _: None)
        heard: list[Say | Count] = []
        reading = asyncio.create_task(stream.each(heard.append))
        await asyncio.sleep(0)
        stream._transport = _Deaf()
        stream._data_received(frame(CODEC.encode(Count(1))) * 6400)
        turns = 0
        while len(heard) < 6400:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 99
        reading.cancel()
        await asyncio.wait([reading])

    run(main)


class _Deaf(asyncio.Transport):
    def resume_reading(self) -> None:
        pass
