"""The sending half of a connection at its edges: interrupted, closed under the writer, full."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mesh_peers import Recorder, ends, framed, head

from outlast.mesh.connection import Connection
from outlast.mesh.frames import seal
from outlast.mesh.incoming import Incoming
from outlast.mesh.poller import WRITABLE, Poller
from outlast.protocol.lines import Line
from outlast.protocol.views import Member
from patience import PATIENCE_S


class Socket(socket.socket):
    """Does something else first, whenever something is written."""

    before_write: Callable[[], object] = staticmethod(lambda: None)

    def sendmsg(self, *args: Any) -> int:
        self.before_write()
        return super().sendmsg(*args)


@contextlib.contextmanager
def connection() -> Iterator[tuple[Connection, Socket, socket.socket]]:
    plain, theirs = socket.socketpair()
    ours = Socket(fileno=plain.detach())
    ours.setblocking(False)
    theirs.settimeout(PATIENCE_S)
    poller = Poller()
    line = Line(Member(3, 1), 1, 1)
    incoming = Incoming(line, Recorder(), memoryview(bytearray(1000)), 1 << 30)
    made = Connection(ours, line, incoming, poller)
    made.watch(lambda _events: None)
    with theirs:
        yield made, ours, theirs
        made.close()
        made.close()
        assert ours.fileno() == -1
    poller.close()


def send(conn: Connection, *payload: bytes, keep: object = None, more: bool = False) -> bool:
    views = [memoryview(data) for data in payload]
    header = head(size=sum(map(len, payload))).pack()
    return conn.send(header, views, keep, more=more, limit_bytes=None)


def test_a_small_frame_is_written_by_its_sender_in_one_piece() -> None:
    with connection() as (conn, _, theirs):
        assert send(conn, b"abc", b"def")
        assert theirs.recv(1000) == framed(1, head(size=6), b"abcdef")
        assert (conn.queued_bytes, conn.queued_frames) == (0, 0)


def test_more_pieces_than_fit_one_call_leave_in_order() -> None:
    pieces = [bytes([number]) * 3 for number in range(200)]
    with connection() as (conn, _, theirs):
        assert send(conn, *pieces)
        assert theirs.recv(656, socket.MSG_WAITALL)[48:-8] == b"".join(pieces)


def test_a_large_frame_waits_for_the_io_thread_and_for_room() -> None:
    big = bytes(range(250)) * 8000
    with connection() as (conn, _, theirs):
        assert send(conn, big) and send(conn, b"small")
        assert (conn.queued_bytes, conn.queued_frames) == (56 + len(big) + 56 + 5, 2)
        received = bytearray()
        while len(received) < 56 + len(big) + 56 + 5:
            conn.serve(WRITABLE)
            received += theirs.recv(1 << 20)
        assert received[48:].startswith(big) and received.endswith(b"small" + seal(2))
        assert (conn.queued_bytes, conn.queued_frames) == (0, 0)


@pytest.mark.parametrize("blow", [KeyboardInterrupt, SystemExit])
def test_a_send_that_is_interrupted_ends_the_connection(blow: type[BaseException]) -> None:
    def strike() -> None:
        raise blow

    with connection() as (conn, ours, theirs):
        ours.before_write = strike
        with pytest.raises(blow):
            send(conn, b"abc")
        assert ends(theirs)
        assert not send(conn, b"abc")
        with pytest.raises(ConnectionError, match="interrupted"):
            conn.serve(~WRITABLE)


def test_a_connection_closed_under_its_writer_is_closed_by_the_writer() -> None:
    with connection() as (conn, ours, _):
        seen: list[int] = []

        def close() -> None:
            conn.close()
            seen.append(ours.fileno())

        ours.before_write = close
        assert send(conn, b"abc", keep=object())
        assert seen[0] >= 0 and ours.fileno() == -1
        assert (conn.queued_bytes, conn.queued_frames) == (0, 0)
        assert not send(conn, b"abc")


def test_what_others_send_while_one_writes_goes_out_behind_it() -> None:
    with connection() as (conn, ours, theirs):
        steps = iter("xyz")

        def send_another() -> None:
            if (name := next(steps, None)) is not None:
                assert send(conn, name.encode())

        ours.before_write = send_another
        assert send(conn, b"w")
        assert theirs.recv(4 * 57, socket.MSG_WAITALL)[48::57] == b"wxyz"


def test_ending_sends_the_rest_and_then_says_so() -> None:
    with connection() as (conn, _, theirs):
        assert send(conn, b"abc", more=True)
        conn.end()
        assert not send(conn, b"late")
        conn.serve(WRITABLE)
        assert theirs.recv(1000)[48:-8] == b"abc"
        assert ends(theirs)
        theirs.sendall(b"whatever")
        conn.serve(~WRITABLE)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError, match="closed its mesh"):
            conn.serve(~WRITABLE)


def test_a_peer_that_is_gone_is_found_by_whoever_writes() -> None:
    with connection() as (conn, _, theirs):
        theirs.close()
        assert send(conn, b"abc")
        assert not send(conn, b"abc")
        with pytest.raises(ConnectionError, match="the peer is gone"):
            conn.serve(~WRITABLE)
