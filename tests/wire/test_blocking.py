"""A plain thread against a listener in asyncio."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from wire_peers import CLIENT, CODEC, CREDENTIALS, TOKEN, AnyStream, Count, Say, served

from leaks import nothing_new
from outlast.errors import PeerRejected, ProtocolError
from outlast.wire.address import channel_binding, format_address, listen
from outlast.wire.blocking import BlockingStream
from outlast.wire.framing import frame
from outlast.wire.handshake import ListenerHandshake, Peer
from patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    with nothing_new():
        yield


def dial(address: str, **changes: Any) -> BlockingStream[Say | Count]:
    return BlockingStream.connect(address, **{**CLIENT, **changes})


@contextlib.contextmanager
def raw_pair() -> Iterator[tuple[BlockingStream[Say | Count], socket.socket]]:
    """A stream whose other end is in the hands of the test, which may send any bytes at all."""
    with listen("127.0.0.1:0") as server, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(dial, format_address(server.getsockname()))
        sock, _ = server.accept()
        binding = channel_binding(client=sock.getpeername(), server=sock.getsockname())
        machine = ListenerHandshake(job=CREDENTIALS["job"], token=TOKEN, binding=binding)
        sock.sendall(frame(machine.start()[0]))
        for welcome in machine.receive(sock.recv(1024)[4:]):
            sock.sendall(frame(welcome))
        with sock, connecting.result(PATIENCE_S) as stream:
            yield stream, sock


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def in_thread_until_blocked(pool: ThreadPoolExecutor, stream: BlockingStream[Say | Count], call: Any) -> Any:
    """Start the call in a thread, and return when that thread is inside the stream."""
    future = pool.submit(call)
    wait_until(lambda: stream._inside or future.done())
    return future


def test_messages_go_both_ways() -> None:
    with served() as listener, dial(listener.address) as stream:
        assert stream.peer == Peer("listener", "job-1")
        for message in (Say("hällo"), Count(7, bytes(1_000_000)), Say("")):
            stream.send(message)
            assert stream.receive(10) == message
        assert not stream.closed


def test_many_threads_may_send_and_no_message_is_torn() -> None:
    with served() as listener, dial(listener.address) as stream, ThreadPoolExecutor(8) as pool:

        def burst(first: int) -> None:
            for number in range(first, first + 100):
                stream.send(Count(number, bytes(number)))

        sending = [pool.submit(burst, first) for first in range(0, 800, 100)]
        numbers = [message.number for _ in range(800) if isinstance(message := stream.receive(10), Count)]
        assert sorted(numbers) == list(range(800))
        for future in sending:
            future.result()


def test_nothing_in_time_is_none() -> None:
    with served() as listener, dial(listener.address) as stream:
        assert stream.receive(0) is None
        assert stream.receive(0.01) is None
        stream.send(Say("x"))
        assert stream.receive(10) == Say("x")


def test_the_descriptor_can_be_waited_on() -> None:
    with served() as listener:
        with dial(listener.address) as stream:
            stream.send(Say("x"))
            poll = select.poll()
            poll.register(stream, select.POLLIN)
            assert poll.poll(10_000)
            assert stream.receive(0) == Say("x")
        assert stream.fileno() == -1


@pytest.mark.parametrize("change", [{"token": b"z" * 32}, {"job": "job-2"}])
def test_another_token_or_job_is_refused(change: dict[str, Any]) -> None:
    with served() as listener:
        with pytest.raises(PeerRejected, match=rf"^{listener.address}: .*another job or has another token"):
            dial(listener.address, **change)
        # The listener counts in its own thread, after it has said so.
        wait_until(lambda: listener.rejected == {"credentials": 1})


def test_nobody_there_and_nobody_who_answers() -> None:
    with listen("127.0.0.1:0") as sock:
        address = format_address(sock.getsockname())
        with pytest.raises(TimeoutError, match=rf"{address} did not complete the handshake within 0.02 s"):
            dial(address, deadline_s=0.02)
    with pytest.raises(ConnectionRefusedError):
        dial(address)


def test_something_else_on_the_port() -> None:
    with listen("127.0.0.1:0") as server, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(dial, format_address(server.getsockname()))
        sock, _ = server.accept()
        with sock:
            sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            with pytest.raises(ProtocolError, match="announced a frame"):
                connecting.result(PATIENCE_S)


def test_a_listener_of_another_release_is_named_and_told() -> None:
    with listen("127.0.0.1:0") as server, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(dial, format_address(server.getsockname()))
        sock, _ = server.accept()
        with sock:
            machine = ListenerHandshake(job="job-1", token=TOKEN, version=9)
            sock.sendall(frame(machine.start()[0]))
            with pytest.raises(PeerRejected, match="version 9 of the protocol, this process version 1"):
                connecting.result(PATIENCE_S)
            with pytest.raises(PeerRejected, match="version 1 of the protocol, this process version 9"):
                machine.receive(sock.recv(1024)[4:])


def test_closing_from_another_thread_wakes_the_receiver() -> None:
    with served() as listener, ThreadPoolExecutor(1) as pool:
        stream = dial(listener.address)
        receiving = in_thread_until_blocked(pool, stream, lambda: stream.receive(None))
        stream.close()
        with pytest.raises(ConnectionError, match="closed by this process"):
            receiving.result(10)
        assert stream.fileno() == -1


def test_closing_from_another_thread_wakes_the_sender() -> None:
    with raw_pair() as (stream, _), ThreadPoolExecutor(1) as pool:

        def send_until_stuck() -> None:
            while True:
                stream.send(Count(1, bytes(1_000_000)), deadline_s=60)

        sending = in_thread_until_blocked(pool, stream, send_until_stuck)
        stream.close()
        with pytest.raises(ConnectionError, match="closed by this process"):
            sending.result(10)


def test_a_closed_stream_says_so_and_may_be_closed_again() -> None:
    with served() as listener:
        stream = dial(listener.address)
        stream.close()
        stream.close()
        assert stream.closed
        with pytest.raises(ConnectionError, match="closed by this process"):
            stream.send(Say("x"))
        with pytest.raises(ConnectionError, match="closed by this process"):
            stream.receive(0)


def test_what_arrived_before_the_loss_is_delivered_before_the_error() -> None:
    async def farewell(stream: AnyStream) -> None:
        stream.send(Say("one"))
        stream.send(Say("two"))

    with served(farewell) as listener, dial(listener.address) as stream:
        assert [stream.receive(10), stream.receive(10)] == [Say("one"), Say("two")]
        for _ in range(2):
            with pytest.raises(ConnectionError, match=r"the peer closed the connection$"):
                stream.receive(10)
        with pytest.raises(ConnectionError, match="the peer closed"):
            stream.send(Say("too late"))


def test_the_end_in_the_middle_of_a_message_is_told_apart() -> None:
    with raw_pair() as (stream, sock):
        sock.sendall(frame(CODEC.encode(Say("half")))[:-1])
        sock.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError, match="in the middle of a message"):
            stream.receive(10)


@pytest.mark.parametrize("nonsense", [b"\x7f\xff\xff\xff", frame(b"garbage")])
def test_nonsense_is_a_protocol_error_once_and_a_lost_stream_after(nonsense: bytes) -> None:
    with raw_pair() as (stream, sock):
        sock.sendall(nonsense)
        with pytest.raises(ProtocolError):
            stream.receive(10)
        assert stream.closed
        with pytest.raises(ConnectionError):
            stream.receive(10)
        with pytest.raises(ConnectionError):
            stream.send(Say("x"))


def test_a_peer_that_does_not_read_can_not_hold_up_a_sender_for_long() -> None:
    with raw_pair() as (stream, _):

        def send_much() -> None:
            for _ in range(100):
                stream.send(Count(1, bytes(1_000_000)), deadline_s=0.02)

        with pytest.raises(ConnectionError, match=r"took nothing for 0\.02 s"):
            send_much()
        assert stream.closed


def test_a_forked_child_does_not_keep_the_connection_open() -> None:
    with served() as listener, dial(listener.address) as stream:
        child = os.fork()
        if child == 0:
            gone = stream.fileno() == -1
            stream.close()
            os._exit(0 if gone else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stream.send(Say("the parent goes on"))
        assert stream.receive(10) == Say("the parent goes on")
