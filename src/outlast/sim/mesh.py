"""The connections between lives of replicas: in order while they hold, and what is under way when one breaks
is lost.

Two lives that want each other get a connection, as far as the network lets them; that takes a while, and both
ends hear of it, each in its own time. It ends when one of them dies, or does not want it any more, when the
network cuts it (`sever`), or by itself (`tear`): then a first part of what is under way still arrives, cut
behind any frame, and nobody sends the rest again. Each end hears of that in its own time, and before it hears
of the next connection. A network that is only slow, or stuck for a while (`Network.cut` alone), breaks
nothing: frames come late, and in order.

What is sent at one instant in one direction is one burst and one event. Receiving takes a while, too: some
frames with a payload are begun in one event, and complete in another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outlast.protocol.header import HEADER_BYTES, Header
from outlast.protocol.kinds import Kind
from outlast.protocol.lines import Line
from outlast.protocol.views import Member
from outlast.sim.network import Network
from outlast.sim.world import World

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

HEARD_WITHIN_S = 0.02
"""Each end hears of a connection, or of its end, within this time."""

SLOW_TO_CONNECT_S = 1.0
TAKES_TIME = frozenset((Kind.SCATTER, Kind.RESULT, Kind.SHARE, Kind.PIECE))

Frame = tuple[bytes, bytes]


class End:
    """One end of a connection."""

    def __init__(self, node: ReplicaNode, line: Line) -> None:
        self.node = node
        self.line = line
        self.open = False
        """Whether this end may use it: it has heard of it, and not of its end."""
        self.over = False
        self.burst: list[Frame] = []
        """What was sent from here in this instant."""
        self.burst_at = -1.0
        self.arrives_at = 0.0
        """When the last of what was sent from here arrives."""
        self.stuck: list[list[Frame]] = []
        self.receiving = False
        """Whether a frame is being received here: what was sent behind it waits."""
        self.waiting: list[list[Frame]] = []


class Connection:
    def __init__(self, one: End, other: End) -> None:
        self.ends = (one, other)
        self.broken = False

    def other(self, end: End) -> End:
        return self.ends[1] if end is self.ends[0] else self.ends[0]


class Mesh:
    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._network = network
        self._severed: set[frozenset[str]] = set()
        self._numbers = itertools.count(1)
        self._wants: dict[ReplicaNode, tuple[int, dict[int, Member]]] = {}
        self._lines: dict[int, tuple[Connection, End]] = {}
        self._dials: dict[frozenset[ReplicaNode], int] = {}
        """Pairs that try to connect, and which try it is."""
        self.on_send: Callable[[ReplicaNode, Line, Header], str] | None = None
        """What becomes of a frame: "lose" it, "tear" the connection right behind it, or nothing."""

    # What the outlet of a replica asks for.

    def reach(self, node: ReplicaNode, own: int, peers: Sequence[Member]) -> None:
        """This life wants to be connected with these, and with nobody else."""
        self._wants[node] = (own, {peer.replica: peer for peer in peers if peer.replica != node.replica})
        for connection, end in self._of(node):
            wanted = self._wants[node][1].get(end.line.peer.replica)
            if end.line.own != own or wanted is None or wanted.incarnation != end.line.peer.incarnation:
                self._close(connection, end)
        for other in list(self._wants):
            self._dial(node, other)

    def send(self, line: Line, header: Header, payload: memoryview | bytes) -> bool:
        """Says whether that connection is still there, as far as its end knows."""
        found = self._lines.get(line.number)
        if found is None or not found[1].open:
            return False
        connection, end = found
        fate = self.on_send(end.node, line, header) if self.on_send is not None else ""
        if fate == "lose":
            return True
        self._put(connection, end, (header.pack(), bytes(payload)))
        if fate == "tear":
            self._break(connection, whole=True)
        return True

    def drop(self, line: Line) -> None:
        found = self._lines.get(line.number)
        if found is not None:
            self._close(*found)
            self._dial_again(found[0])

    # What happens to connections.

    def tear(self, one: ReplicaNode, other: ReplicaNode) -> None:
        """It breaks for no reason, and there is another soon."""
        for connection in self._between(one, other):
            self._break(connection)

    def sever(self, one: ReplicaNode, other: ReplicaNode) -> None:
        self._severed.add(frozenset((one.name, other.name)))
        self.tear(one, other)

    def heal(self, one: str, other: str) -> None:
        self._severed.discard(frozenset((one, other)))
        for connection, end in list(self._lines.values()):
            if {end.node.name, connection.other(end).node.name} == {one, other}:
                stuck, end.stuck = end.stuck, []
                for burst in stuck:
                    self._dispatch(connection, end, burst)
        nodes = [node for node in self._wants if node.name in (one, other)]
        for node, peer in itertools.combinations(nodes, 2):
            self._dial(node, peer)

    def died(self, node: ReplicaNode) -> None:
        self._wants.pop(node, None)
        for connection, _ in self._of(node):
            self._break(connection)

    def ended(self, node: ReplicaNode) -> None:
        """It has closed its connections in order: peers see the end after all that it had sent."""
        self._wants.pop(node, None)
        for connection, end in self._of(node):
            self._close(connection, end)

    def _of(self, node: ReplicaNode) -> list[tuple[Connection, End]]:
        return [(connection, end) for connection, end in self._lines.values() if end.node is node]

    def _between(self, one: ReplicaNode, other: ReplicaNode) -> list[Connection]:
        return [connection for connection, end in self._of(one) if connection.other(end).node is other]

    # How one comes about.

    def _may(self, one: ReplicaNode, other: ReplicaNode) -> tuple[Member, Member] | None:
        """The two lives, as each knows the other, if both want to be connected and can."""
        if one is other or not (one.up and other.up) or {one, other} - self._wants.keys():
            return None
        (own, peers), (their_own, their_peers) = self._wants[one], self._wants[other]
        peer, me = peers.get(other.replica), their_peers.get(one.replica)
        if peer is None or me is None or (peer.incarnation, me.incarnation) != (their_own, own):
            return None
        both_ways = self._network.reaches(one.name, other.name) and self._network.reaches(
            other.name, one.name
        )
        if not both_ways or frozenset((one.name, other.name)) in self._severed:
            return None
        return peer, me

    def _dial(self, one: ReplicaNode, other: ReplicaNode) -> None:
        pair = frozenset((one, other))
        if self._may(one, other) is None or pair in self._dials or self._is_connected(one, other):
            return
        chance = self._world.drawn("mesh")
        slow = chance.random() < 0.02
        delay_s = chance.uniform(0.001, SLOW_TO_CONNECT_S if slow else 0.01)
        self._dials[pair] = number = next(self._numbers)
        self._world.after(delay_s, None, self._connect, one, other, number)

    def _is_connected(self, one: ReplicaNode, other: ReplicaNode) -> bool:
        return any(not connection.broken for connection in self._between(one, other))

    def _connect(self, one: ReplicaNode, other: ReplicaNode, number: int) -> None:
        pair = frozenset((one, other))
        if self._dials.get(pair) != number:
            return
        del self._dials[pair]
        lives = self._may(one, other)
        if lives is None or self._is_connected(one, other):
            return
        peer, me = lives
        ends = (
            End(one, Line(peer, self._wants[one][0], next(self._numbers))),
            End(other, Line(me, self._wants[other][0], next(self._numbers))),
        )
        connection = Connection(*ends)
        # Whoever has the higher number dials, and is the first to hear.
        first, second = sorted(ends, key=lambda end: -end.node.replica)
        for end in ends:
            self._lines[end.line.number] = (connection, end)
        chance = self._world.drawn("mesh")
        self._world.after(0.0, first.node, self._hear, connection, first)
        self._world.after(chance.uniform(0.0, HEARD_WITHIN_S), second.node, self._hear, connection, second)

    def _hear(self, connection: Connection, end: End) -> None:
        if end.over or end.open:
            return
        for old, old_end in self._of(end.node):
            same = old_end.line.peer.replica == end.line.peer.replica
            if same and old is not connection and old_end.line.number < end.line.number:
                self._lose(old_end, "a new connection took its place")
        end.open = True
        end.node.connected(end.line)

    # How it ends.

    def _close(self, connection: Connection, end: End) -> None:
        """This end does not want it any more, which holds for it at once, though it hears of that a moment
        later; the other sees the end after all that was sent."""
        other = connection.other(end)
        if end.open:
            self._world.after(0.0, end.node, end.node.lost, end.line, "it is not wanted any more")
        end.over, end.open = True, False
        self._forget(end)
        if not connection.broken:
            connection.broken = True
            at = max(end.arrives_at, self._world.now + self._network.delay())
            self._world.after(at - self._world.now, other.node, self._lose, other, "it was closed")
            self._world.after(at - self._world.now + HEARD_WITHIN_S, None, self._dial_again, connection)

    def _break(self, connection: Connection, *, whole: bool = False) -> None:
        """Nothing more is sent on it, and of what is under way only a first part arrives; `whole`: all of
        it."""
        if connection.broken:
            return
        connection.broken = True
        chance = self._world.drawn("mesh")
        for end in connection.ends:
            end.stuck.clear()
            if not whole and end.burst:
                # Whoever serves the burst sees that it is shorter.
                del end.burst[chance.randrange(len(end.burst) + 1) :]
                end.burst_at = -1.0
        for end in connection.ends:
            if end.node.up:
                salvaged_until = connection.other(end).arrives_at if chance.random() < 0.5 else 0.0
                at = max(self._world.now + chance.uniform(0.0, HEARD_WITHIN_S), salvaged_until)
                self._world.after(at - self._world.now, end.node, self._lose, end, "it broke")
            else:
                self._forget(end)
        self._world.after(2 * HEARD_WITHIN_S, None, self._dial_again, connection)

    def _dial_again(self, connection: Connection) -> None:
        self._dial(connection.ends[0].node, connection.ends[1].node)

    def _lose(self, end: End, why: str) -> None:
        """This end finds out that it is over."""
        if end.over:
            return
        heard, end.over, end.open = end.open, True, False
        self._forget(end)
        if heard and end.node.up:
            end.node.lost(end.line, why)

    def _forget(self, end: End) -> None:
        self._lines.pop(end.line.number, None)

    # What travels on it.

    def _put(self, connection: Connection, end: End, frame: Frame) -> None:
        if connection.broken:
            # It is sent into the void, and this end does not know yet.
            return
        if end.burst_at == self._world.now:
            end.burst.append(frame)
            return
        end.burst, end.burst_at = [frame], self._world.now
        if self._network.reaches(end.node.name, connection.other(end).node.name):
            self._dispatch(connection, end, end.burst)
        else:
            end.stuck.append(end.burst)

    def _dispatch(self, connection: Connection, end: End, burst: list[Frame]) -> None:
        other = connection.other(end)
        end.arrives_at = max(self._world.now + self._network.delay(), end.arrives_at)
        self._world.after(
            end.arrives_at - self._world.now, other.node, self._arrive, connection, end, other, burst, 0
        )

    def _arrive(self, connection: Connection, end: End, other: End, burst: list[Frame], first: int) -> None:
        """Serve a burst, from one of its frames on."""
        if burst is end.burst:
            end.burst_at = -1.0
        if other.receiving:
            other.waiting.append(burst)
            return
        if not other.open and not other.over and first == 0:
            # It hears of the connection by what comes over it.
            self._hear(connection, other)
        place = first
        # A tear may cut it shorter while it is served.
        while place < len(burst) and other.open:
            packed, payload = burst[place]
            header = Header.unpack(packed)
            assert len(packed) == HEADER_BYTES
            memory = other.node.driver.room(other.line, header) if header.size else memoryview(b"")
            if memory:
                memory[:] = payload
            if header.kind in TAKES_TIME and self._world.drawn("mesh").random() < 0.1:
                delay_s = self._world.drawn("mesh").uniform(0.0, 0.003)
                end.arrives_at = max(end.arrives_at, self._world.now + delay_s)
                other.receiving = True
                rest = (connection, end, other, burst, place, header, memory)
                self._world.after(delay_s, other.node, self._complete, *rest)
                return
            other.node.arrived(other.line, header, memory)
            place += 1

    def _complete(
        self,
        connection: Connection,
        end: End,
        other: End,
        burst: list[Frame],
        place: int,
        header: Header,
        memory: memoryview | None,
    ) -> None:
        """The rest of a frame has come, and what was sent behind it."""
        other.receiving = False
        if other.open:
            other.node.arrived(other.line, header, memory)
            self._arrive(connection, end, other, burst, place + 1)
        while other.waiting and not other.receiving:
            self._arrive(connection, end, other, other.waiting.pop(0), 0)
