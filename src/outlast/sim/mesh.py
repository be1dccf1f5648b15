"""The connections between replicas: in order while they hold, and what is under way when one breaks is lost.

Every two processes that run have one, as far as the network lets them. It breaks when one of them dies, when
the network cuts it (`sever`), or by itself (`tear`); what was sent last is then lost, and nobody sends it
again. A new one takes its place as soon as that is possible. Both ends hear of the break, each in its own
time: until then it sends into the void, and afterwards, not before, it hears what comes on the new one. A
network that is only slow, or stuck for a while (`Network.cut` alone), breaks nothing: frames come late, and
in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast.sim.network import Network
from outlast.sim.world import World

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

SALVAGED_WITHIN_S = 0.005
"""Of what is under way when a connection breaks, a first part may still arrive, up to this much later."""

Pair = tuple[int, int]


class Mesh:
    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._network = network
        self._severed: set[frozenset[str]] = set()
        self._serials: dict[frozenset[Pair], int] = {}
        """How often the connection between two processes has broken."""
        self._salvaged_until: dict[frozenset[Pair], float] = {}
        self._seen: dict[tuple[Pair, Pair], int] = {}
        """How many of these breaks one end (the first of the two) has heard of."""
        self._arrival: dict[tuple[Pair, Pair], float] = {}
        self._stuck: dict[tuple[str, str], list[tuple[ReplicaNode, ReplicaNode, int, Any, Any]]] = {}

    def heard_breaks(self, end: ReplicaNode, other: ReplicaNode) -> int:
        """How often this end has heard that its connection with the other broke."""
        return self._seen.get((_process(end), _process(other)), 0)

    def send(
        self, sender: ReplicaNode, to: ReplicaNode | None, action: Callable[..., None] | None, *args: Any
    ) -> bool:
        """Says whether there was a connection to send it on."""
        if to is None or not to.up or frozenset((sender.name, to.name)) in self._severed:
            return False
        serial = self.heard_breaks(sender, to)
        if not self._network.reaches(sender.name, to.name):
            self._stuck.setdefault((sender.name, to.name), []).append((sender, to, serial, action, args))
        else:
            self._dispatch(sender, to, serial, action, args)
        return True

    def _dispatch(self, sender: ReplicaNode, to: ReplicaNode, serial: int, action: Any, args: Any) -> None:
        line = (_process(sender), _process(to))
        at = max(self._world.now + self._network.delay(), self._arrival.get(line, 0.0))
        self._arrival[line] = at
        self._world.after(at - self._world.now, to, self._arrive, sender, to, serial, action, args)

    def _arrive(self, sender: ReplicaNode, to: ReplicaNode, serial: int, action: Any, args: Any) -> None:
        ends, heard = _ends(sender, to), self.heard_breaks(to, sender)
        broken = serial != self._serials.get(ends, 0)
        if serial < heard or (broken and self._world.now > self._salvaged_until[ends]):
            return
        if serial > heard:
            self._see(to, sender)
        action(*args)

    def heal(self, one: str, other: str) -> None:
        self._severed.discard(frozenset((one, other)))
        for pair in ((one, other), (other, one)):
            for sender, to, serial, action, args in self._stuck.pop(pair, []):
                if serial == self._serials.get(_ends(sender, to), 0):
                    self._dispatch(sender, to, serial, action, args)

    def sever(self, one: ReplicaNode, other: ReplicaNode) -> None:
        self._severed.add(frozenset((one.name, other.name)))
        self._break(one, other)

    def tear(self, one: ReplicaNode, other: ReplicaNode) -> None:
        """It breaks for no reason, and there is another at once."""
        self._break(one, other)

    def died(self, node: ReplicaNode, peers: list[ReplicaNode]) -> None:
        for peer in peers:
            self._break(node, peer)

    def ended(self, node: ReplicaNode, peers: list[ReplicaNode]) -> None:
        """It has closed its connections in order: peers see the end after all that it had sent."""
        for peer in peers:
            if peer.up and peer is not node:
                self.send(node, peer, peer.lost_connection, node.replica)

    def under_way(self, replica: int, to: ReplicaNode) -> bool:
        """Whether something that this replica has sent is still to arrive there."""
        lines = ((line, at) for line, at in self._arrival.items() if line[1] == _process(to))
        return any(sender == replica and at > self._world.now for ((sender, _), _), at in lines)

    def _break(self, one: ReplicaNode, other: ReplicaNode) -> None:
        ends = _ends(one, other)
        self._serials[ends] = self._serials.get(ends, 0) + 1
        self._salvaged_until[ends] = self._world.now + self._world.chance.uniform(0.0, SALVAGED_WITHIN_S)
        for node, peer in ((one, other), (other, one)):
            if node.up:
                seen_s = self._world.chance.uniform(SALVAGED_WITHIN_S, 4 * SALVAGED_WITHIN_S)
                self._world.after(seen_s, node, self._see, node, peer)

    def _see(self, node: ReplicaNode, peer: ReplicaNode) -> None:
        """This end finds out that the connection is over."""
        line, serial = (_process(node), _process(peer)), self._serials.get(_ends(node, peer), 0)
        if self._seen.get(line, 0) < serial:
            self._seen[line] = serial
            node.lost_connection(peer.replica)


def _process(node: ReplicaNode) -> Pair:
    return node.replica, node.process


def _ends(one: ReplicaNode, other: ReplicaNode) -> frozenset[Pair]:
    return frozenset((_process(one), _process(other)))
