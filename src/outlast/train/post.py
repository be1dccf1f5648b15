"""What goes out to peers: at once if they are connected, and when they are if not yet.

A view names its members the moment it is adopted; the connections with them may take a moment longer. What
is said in that moment is kept, per life, until the connection is there or the life is out of the view.

Both ends are lives. The training thread lags behind: it may still send what was decided in a life of this
replica that is over, or what is for a life of a peer that is. Nobody waits for that, so it is dropped. It
must not be kept: there will never be a connection for it, and whatever is said afterwards waits behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import NOTE_BYTES, SHARES, Kind, Way, encode
from outlast.mesh.transport import Mesh
from outlast.protocol.views import Member, View
from outlast.train.records import Record

WAITING_MOST = 4096
"""Frames kept for a learner that is not connected yet."""


class Post:
    """Used under the engine's lock."""

    def __init__(self, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self._life = 0
        self._present: set[Member] = set()
        self._waiting: dict[Member, list[tuple[Header, memoryview | bytes, object]]] = {}
        self._met: set[Member] = set()

    def adopt(self, view: View, life: int) -> None:
        """These are the peers from now on, and this is the life in which they are written to."""
        if life != self._life:
            self._life = life
            self._waiting.clear()
            self._met.clear()
        self._present = {*view.members, *view.learners}
        self._waiting = {peer: frames for peer, frames in self._waiting.items() if peer in self._present}
        self._met &= self._present

    def connected(self, peer: Member) -> None:
        self._met.add(peer)
        for header, payload, keep in self._waiting.pop(peer, ()):
            self.send(peer, header, payload, keep)

    def has_met(self, peer: Member) -> bool:
        """Whether there has been a connection with this life of a peer, in the present life here."""
        return peer in self._met

    @property
    def waiting(self) -> dict[int, int]:
        """How many frames wait, for which replica."""
        return {peer.replica: len(frames) for peer, frames in self._waiting.items()}

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
        droppable: bool = False,
    ) -> None:
        assert self._mesh is not None, "who is alone has nobody to write to"
        if header.incarnation != self._life or peer not in self._present:
            return
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        header = header._replace(size=size)
        if peer not in self._waiting and self._mesh.send(
            peer.replica, header, payload, keep=keep, droppable=droppable
        ):
            return
        waiting = self._waiting.get(peer, ())
        if droppable and (peer in self._met or len(waiting) >= WAITING_MOST):
            # It was dropped because it does not keep up, or does not come; it has to start over anyway.
            return
        self._waiting.setdefault(peer, []).append((header, payload, keep))

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
