"""What goes out to peers: at once if they are connected, and when they are if not yet.

A view names its members the moment it is adopted; the connections with them may take a moment longer. What is
said in that moment waits. What may be sent at all, and over which connection, is decided by `lines.py`; here
is what does it.

Both ends are lives. The training thread lags behind: it may still send what was decided in a life of this
replica that is over, or what is for a life of a peer that is. Nobody waits for that, so it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, Way, encode
from outlast.protocol.lines import Line, Lines
from outlast.protocol.seams import Bulk, Outlet, Record
from outlast.protocol.views import Member, View


class Outgoing(NamedTuple):
    """A frame, and how it may be sent."""

    header: Header
    payload: memoryview | bytes
    keep: object = None
    more: bool = False
    droppable: bool = False


class Post:
    """That of one life."""

    def __init__(self, outlet: Outlet, bulk: Bulk, lines: Lines[Outgoing]) -> None:
        self._outlet = outlet
        self._bulk = bulk
        self.lines = lines

    def adopt(self, view: View, own: int) -> None:
        """These are the peers from now on, and this is the life in which they are written to."""
        self.lines.adopt(view, own)

    def connected(self, line: Line) -> None:
        frames, gap = self.lines.connected(line)
        if gap:
            self._push(line, Outgoing(Header(Kind.GAP, incarnation=line.own, view=self.lines.era), b""))
        for frame in frames:
            if not self._push(line, frame):
                break

    def hold(self, peers: Iterable[Member], until: int) -> None:
        """What is sent to these from now on leaves only when that is passed: they are not to know it yet."""
        for peer in peers:
            self.lines.hold(peer, until)

    def release(self, passed: int) -> None:
        for line, frames in self.lines.release(passed):
            for frame in frames:
                if not self._push(line, frame):
                    break

    def cut(self, peer: Member, why: str) -> None:
        """Something that came from this peer is not taken, so nothing that follows it may be."""
        line = self.lines.line(peer)
        self.lines.give_up(peer)
        if line is not None:
            self._outlet.drop(line, why)

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
        lines = self.lines
        if header.incarnation != lines.own:
            return
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        frame = Outgoing(header.sized(size), payload, keep, more, droppable)
        line = lines.route(peer, frame, size if droppable else 0)
        if line is not None:
            self._push(line, frame)

    def _push(self, line: Line, frame: Outgoing) -> bool:
        header, payload, keep, more, droppable = frame
        sent = self._outlet.send(line, header, payload, keep, more=more, droppable=droppable)
        if not sent:
            self.lines.lost(line)
        return sent

    def record(self, peer: Member, record: Record, header: Header, way: Way, place: int, count: int) -> None:
        """Every `count`-th share of a record, beginning with `place`."""
        header = header._replace(flags=way, step=record.step)
        learner = way is Way.STABLE
        self.send(peer, header._replace(kind=Kind.NOTE), encode(record.note), droppable=learner)
        for index in range(place, self._bulk.shares, count):
            memory = self._bulk.share(record.vector, index)
            if memory.nbytes:
                share = header._replace(kind=Kind.SHARE, lo=index)
                self.send(peer, share, memory, record, droppable=learner)
