"""Bytes of one connection, cut in every way that TCP could."""

import random
import socket
from collections.abc import Iterator

import pytest
from mesh_peers import Recorder, framed, head

from outlast.errors import ProtocolError
from outlast.mesh.frames import HELLO, SEAL_BYTES
from outlast.mesh.incoming import BUFFER_BYTES, Incoming
from outlast.protocol.header import HEADER_BYTES
from outlast.protocol.lines import Line
from outlast.protocol.views import Member

PEER = Member(3, 1)
SCRATCH_BYTES = 1000


class Pipe:
    def __init__(self, sock: socket.socket, theirs: socket.socket) -> None:
        self.sink = Recorder()
        self.theirs = theirs
        self._sock = sock
        self.incoming = Incoming(
            Line(PEER, 1, 1), self.sink, memoryview(bytearray(SCRATCH_BYTES)), 10_000_000
        )

    def feed(self, data: bytes) -> None:
        """Send, and have it read until all of it has been."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.theirs.send(rest) :]
            except BlockingIOError:
                self.pull()
        self.pull()

    def pull(self) -> None:
        self.incoming.pull(self._sock, 1 << 30)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield Pipe(ours, theirs)


def frames(sizes: list[int]) -> tuple[bytes, list[bytes]]:
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    stream = b"".join(framed(step + 1, head(step, len(data)), data) for step, data in enumerate(payloads))
    return stream, payloads


@pytest.mark.parametrize("cut", [1, 47, 48, 49, 1000, BUFFER_BYTES, BUFFER_BYTES + 1, 1 << 30])
def test_frames_arrive_whole_and_in_order_however_the_bytes_are_cut(pipe: Pipe, cut: int) -> None:
    edge = BUFFER_BYTES - HEADER_BYTES - SEAL_BYTES
    sizes = (
        [0, 1, 0, 47, 48, 3000] if cut == 1 else [0, 1, edge, 0, edge + 1, 300_000, 48, 70_000, 0, edge - 1]
    )
    stream, payloads = frames(sizes)
    for start in range(0, len(stream), cut):
        pipe.feed(stream[start : start + cut])
    assert [payload for _, _, payload in pipe.sink.frames] == payloads
    assert pipe.sink.steps() == list(range(len(sizes)))
    assert {sender for sender, _, _ in pipe.sink.frames} == {PEER}


@pytest.mark.parametrize("cut", [500, SCRATCH_BYTES + HEADER_BYTES, 1 << 30])
def test_an_unwanted_payload_is_drained_and_the_frames_behind_it_arrive(pipe: Pipe, cut: int) -> None:
    stream, payloads = frames([5, 100_000, 7, 600, 9])
    pipe.sink.on_destination = lambda h: None if h.step in (1, 3) else memoryview(bytearray(h.size))
    for start in range(0, len(stream), cut):
        pipe.feed(stream[start : start + cut])
    arrived = [payload for _, _, payload in pipe.sink.frames]
    assert arrived == [payloads[0], None, payloads[2], None, payloads[4]]


def test_payloads_are_written_to_the_memory_that_the_sink_names(pipe: Pipe) -> None:
    memory = bytearray(300_000)
    pipe.sink.on_destination = lambda h: memoryview(memory)[100_000:200_000].cast("f")
    stream, payloads = frames([100_000])
    pipe.feed(stream)
    assert memory[100_000:200_000] == payloads[0]
    assert not any(memory[:100_000]) and not any(memory[200_000:])


def test_a_frame_that_is_cut_off_never_arrives(pipe: Pipe) -> None:
    stream, _ = frames([10, 100_000])
    pipe.feed(stream[:-1])
    pipe.theirs.close()
    with pytest.raises(ConnectionError, match="in the middle of a frame"):
        pipe.pull()
    assert pipe.sink.steps() == [0]


def test_an_end_between_frames_is_only_an_end(pipe: Pipe) -> None:
    pipe.feed(frames([10])[0])
    pipe.theirs.close()
    with pytest.raises(ConnectionError, match=r"closed the connection$"):
        pipe.pull()


@pytest.mark.parametrize("lost", [1, 4, 8, 47, 48, 56])
@pytest.mark.parametrize("at", [3, 50, 56 + 48 + 10, 56 + 48 + 1000])
def test_a_frame_from_which_bytes_were_lost_does_not_count(pipe: Pipe, lost: int, at: int) -> None:
    """Nor any behind it; and that is known before the frame is handed on."""
    stream, payloads = frames([0, 2000, 0, 2000, 2000])
    with pytest.raises((ProtocolError, ConnectionError)):
        pipe.feed(stream[:at] + stream[at + lost :])
    arrived = [payload for _, _, payload in pipe.sink.frames]
    assert arrived == payloads[: len(arrived)] and len(arrived) <= 1


@pytest.mark.parametrize("added", [b"x", b"outlast\0", head(7).pack(), framed(2, head(7))])
def test_a_frame_to_which_bytes_were_added_does_not_count(pipe: Pipe, added: bytes) -> None:
    stream, payloads = frames([0, 2000, 0, 2000])
    with pytest.raises((ProtocolError, ConnectionError)):
        pipe.feed(stream[:200] + added + stream[200:])
    assert [payload for _, _, payload in pipe.sink.frames] == payloads[:1]


def test_a_frame_that_is_lost_as_a_whole_is_missed(pipe: Pipe) -> None:
    with pytest.raises(ProtocolError, match="bytes were lost or added on the connection"):
        pipe.feed(framed(1, head(0)) + framed(3, head(2)))
    assert pipe.sink.steps() == [0]


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (head(size=10_000_001), "announced 10000001 bytes; the limit is 10000000"),
        (head(incarnation=2), "life 2 on a connection of its life 1"),
        (head(kind=HELLO), "introduced itself twice"),
    ],
)
def test_what_no_honest_peer_sends_ends_the_connection(pipe: Pipe, header: object, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        pipe.feed(header.pack())  # type: ignore[attr-defined]
    assert pipe.sink.frames == []


@pytest.mark.parametrize(
    "offered", [memoryview(bytearray(9)), memoryview(bytearray(11)), memoryview(bytes(10)), "no memory"]
)
def test_memory_that_does_not_fit_is_this_processs_own_fault(pipe: Pipe, offered: memoryview) -> None:
    pipe.sink.on_destination = lambda h: offered
    with pytest.raises(ConnectionError, match="this process could not deal"):
        pipe.feed(frames([10])[0])


def test_nothing_is_delivered_once_stopped_not_even_what_has_been_read(pipe: Pipe) -> None:
    def stop_after_the_second(_sender: Member, header: object) -> None:
        pipe.incoming.stopped = header.step == 1  # type: ignore[attr-defined]

    pipe.sink.on_arrived = stop_after_the_second
    pipe.feed(frames([1, 2, 3])[0])
    assert pipe.sink.steps() == [0, 1]
