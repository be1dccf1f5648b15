"""What goes out to peers: at once if they are connected, and when they are if not yet.

A view names its members the moment it is adopted; the connections with them may take a moment longer. What
is said in that moment waits. What may be sent at all, and over which connection, is decided by
`protocol/lines.py`; here is what does it.

Both ends are lives. The training thread lags behind: it may still send what was decided in a life of this
replica that is over, or what is for a life of a peer that is. Nobody waits for that, so it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import NOTE_BYTES, SHARES, Kind, Way, encode
from outlast.mesh.transport import Mesh
from outlast.protocol.lines import Line, Lines
from outlast.protocol.views import Member, View
from outlast.train.records import Record


class Outgoing(NamedTuple):
    """A frame, and how it may be sent."""

    header: Header
    payload: memoryview | bytes
    keep: object = None
    more: bool = False
    droppable: bool = False


class Post:
    """Used under the engine's lock."""

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self.lines: Lines[Outgoing] = Lines()

    def adopt(self, view: View, life: int) -> None:
        """These are the peers from now on, and this is the life in which they are written to."""
        self.lines.adopt(view, life)

    def connected(self, line: Line) -> None:
        frames, gap = self.lines.connected(line)
        if gap:
            self._push(line, Outgoing(Header(Kind.GAP, incarnation=line.own, view=self.lines.era), b""))
        for frame in frames:
            if not self._push(line, frame):
                break

    def cut(self, peer: Member, why: str) -> None:
        """Something that came from this peer is not taken, so nothing that follows it may be."""
        line = self.lines.line(peer)
        self.lines.give_up(peer)
        if line is not None and self._mesh is not None:
            self._mesh.drop(peer.replica, why, line)

    def all(self, peers: Iterable[Member], header: Header, payload: bytes = b"") -> None:
        for peer in peers:
            self.send(peer, header, payload)

    def send(
        self,
        peer: Member,
        header: Header,
        payload: memoryview | bytes = b"",
        keep: object = None,
        *,
        more: bool = False,
        droppable: bool = False,
    ) -> None:
        """A frame that is `droppable` costs one who does not keep up the connection."""
        if header.incarnation != self.lines.own:
            return
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        frame = Outgoing(header.sized(size), payload, keep, more, droppable)
        line = self.lines.route(peer, frame, size if droppable else 0)
        if line is not None:
            self._push(line, frame)

    def _push(self, line: Line, frame: Outgoing) -> bool:
        assert self._mesh is not None, "who is alone has nobody to write to"
        header, payload, keep, more, droppable = frame
        sent = self._mesh.send(line, header, payload, keep=keep, more=more, droppable=droppable)
        if not sent:
            self.lines.lost(line)
        return sent

    def record(self, peer: Member, record: Record, header: Header, way: Way, place: int, count: int) -> None:
        """Every `count`-th share of a record, beginning with `place`."""
        header = header._replace(flags=way)
        learner = way is Way.STABLE
        self.send(peer, header._replace(kind=Kind.NOTE), encode(record.note), droppable=learner)
        for index in range(place, SHARES, count):
            memory = record.share(index)
            if memory.nbytes:
                share = header._replace(kind=Kind.SHARE, lo=index)
                self.send(peer, share, memory, record, droppable=learner)


def room(header: Header) -> memoryview:
    """Memory for an incoming frame that is no bulk."""
    if header.size > NOTE_BYTES:
        raise ProtocolError(f"a peer announces {header.size} bytes of kind {header.kind}")
    return memoryview(bytearray(header.size))
