"""From bytes of one connection to whole frames, straight into the memory where they are wanted.

Two kinds of traffic share a connection, and each has its own worst case. Small frames come in bursts, and
what costs is the system call: so they are read many at a time into a small buffer and copied out of it.
Large payloads cost by the byte: so as soon as the header is known, the sink says where the payload belongs,
and the kernel writes it there; the small buffer only stands behind it to catch the frame that follows.

A payload that nobody wants (its attempt was cancelled) is drained into scratch memory that all connections
share: the frames behind it may be wanted. A frame that is cut off by the end of the connection has never
arrived: the sink hears nothing of it, and the memory it was written to is let go.
"""

import logging
import socket
from typing import Protocol

from outlast.errors import ProtocolError
from outlast.mesh.frames import HELLO, SEAL_BYTES, is_sealed
from outlast.protocol.header import HEADER_BYTES, Header
from outlast.protocol.lines import Line

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 16
_EMPTY = memoryview(b"")


class Sink(Protocol):
    """Where frames go. All four are called by whoever is at the helm of the mesh, with no lock held: they may
    call the mesh, and they must be quick, for nothing is received meanwhile. One that raises costs the
    connection."""

    def destination(self, line: Line, header: Header) -> memoryview | None:
        """Where to write the payload: writable memory of exactly `header.size` bytes, which is held until the
        frame or the connection ends. None to throw it away. Not asked for frames without payload."""

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        """The frame is complete. `payload` is what `destination` returned, or an empty view if there is
        none to a frame of size 0."""

    def connected(self, line: Line) -> None:
        """From here on `send` reaches this life of the peer; its frames come after this."""

    def lost(self, line: Line, why: str) -> None:
        """The connection is over, and no frame of it comes after this. Called once for each `connected`."""


class Incoming:
    """The receiving half of a connection. Used only by whoever is at the helm of the mesh."""

    def __init__(self, line: Line, sink: Sink, scratch: memoryview, max_payload_bytes: int) -> None:
        self.stopped = False
        """Once true, nothing more is delivered, not even what has been read already."""
        self._line = line
        self._sink = sink
        self._scratch = scratch
        self._max_payload_bytes = max_payload_bytes
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        # What has been read into the buffer but not been looked at. While a payload is incomplete there is
        # no such thing: what is read then belongs to the payload first.
        self._start = 0
        self._end = 0
        self._header: Header | None = None
        self._payload: memoryview | None = None
        self._missing_bytes = 0
        self._frames = 0

    def pull(self, sock: socket.socket, budget_bytes: int) -> None:
        """Read what is there, about `budget_bytes` at most, so that others have their turn.

        Raises ConnectionError or ProtocolError when the connection is of no more use."""
        while budget_bytes > 0 and not self.stopped:
            try:
                got, room = self._read(sock)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise ConnectionError(f"the peer is gone ({error.strerror})") from error
            if got == 0:
                inside = " in the middle of a frame" if self._header or self._end else ""
                raise ConnectionError(f"the peer closed the connection{inside}")
            self._deliver()
            if got < room:
                # There was no more; asking again would cost a system call just to hear that.
                return
            budget_bytes -= got

    def discard(self, sock: socket.socket) -> None:
        """Read and forget; raises ConnectionError when the peer has closed its side."""
        try:
            got = sock.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = 0
        if got == 0:
            raise ConnectionError("this process has closed its mesh")

    def _read(self, sock: socket.socket) -> tuple[int, int]:
        """Bytes read, and bytes for which there was room."""
        if self._header is None or not self._missing_bytes:
            free = self._buffer[self._end :]
            got = sock.recv_into(free)
            self._end += got
            return got, len(free)
        if self._payload is not None:
            target = self._payload[self._header.size - self._missing_bytes :]
        else:
            target = self._scratch[: self._missing_bytes]
        if len(target) < self._missing_bytes:
            got = sock.recv_into(target)
            self._missing_bytes -= got
            return got, len(target)
        got = sock.recvmsg_into((target, self._buffer))[0]
        of_payload = min(got, self._missing_bytes)
        self._missing_bytes -= of_payload
        self._end = got - of_payload
        return got, len(target) + BUFFER_BYTES

    def _deliver(self) -> None:
        """Hand over every frame that is complete, and begin the one that is not."""
        while not self.stopped:
            if self._header is None:
                if self._end - self._start < HEADER_BYTES:
                    break
                self._open_frame()
            if self._missing_bytes or self._end - self._start < SEAL_BYTES:
                break
            self._break_seal()
            assert self._header is not None
            self._finish(self._header)
        rest = self._buffer[self._start : self._end]
        if self._start:
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _open_frame(self) -> None:
        """The next header, and what there is of its payload."""
        header = Header.unpack(self._buffer, self._start)
        self._start += HEADER_BYTES
        self._begin(header)
        have_bytes = min(header.size, self._end - self._start)
        if have_bytes and self._payload is not None:
            self._payload[:have_bytes] = self._buffer[self._start : self._start + have_bytes]
        self._start += have_bytes
        self._missing_bytes = header.size - have_bytes

    def _break_seal(self) -> None:
        """A frame counts only if it is the next one, and ends where it should."""
        self._frames += 1
        if not is_sealed(self._buffer, self._start, self._frames):
            raise ProtocolError(
                f"bytes were lost or added on the connection before the end of frame {self._frames}"
            )
        self._start += SEAL_BYTES

    def _begin(self, header: Header) -> None:
        if header.kind == HELLO:
            raise ProtocolError("the peer introduced itself twice")
        if header.incarnation != self._line.peer.incarnation:
            raise ProtocolError(
                f"the peer sent a frame of its life {header.incarnation} "
                f"on a connection of its life {self._line.peer.incarnation}"
            )
        if header.size > self._max_payload_bytes:
            raise ProtocolError(
                f"the peer announced {header.size} bytes; the limit is {self._max_payload_bytes} bytes"
            )
        self._header = header
        self._payload = _EMPTY if header.size == 0 else self._destination(header)

    def _destination(self, header: Header) -> memoryview | None:
        try:
            view = self._sink.destination(self._line, header)
            if view is None:
                return None
            if view.readonly or view.nbytes != header.size:
                raise ValueError(f"{view.nbytes} bytes (readonly: {view.readonly}) offered for {header}")
            return view if view.format == "B" and view.ndim == 1 else view.cast("B")
        except ProtocolError:
            raise
        except Exception as error:
            raise self._failed(header) from error

    def _finish(self, header: Header) -> None:
        payload = self._payload
        self._header = self._payload = None
        if self.stopped:
            return
        try:
            self._sink.arrived(self._line, header, payload)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._failed(header) from error

    def _failed(self, header: Header) -> ConnectionError:
        log.exception("this process can not deal with %s from replica %d", header, self._line.peer.replica)
        return ConnectionError("this process could not deal with a frame of the peer; its log says why")
