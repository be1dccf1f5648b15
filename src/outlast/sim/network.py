"""What lies between the nodes: delay, loss, duplication, reordering and partitions.

Control messages travel like datagrams that may be lost, doubled or overtaken; the protocol has to live with
that. Frames between replicas travel over connections: never lost while both ends live, but slow, possibly
out of order across connections, and stuck for as long as a partition lasts.
"""

from collections.abc import Callable
from typing import Any

from outlast.sim.world import Node, World

TYPICAL_DELAY_S = 0.002
LONGEST_DELAY_S = 0.15


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        chance = world.chance
        self.loss = chance.choice([0.0, 0.0, 0.02, 0.08])
        self.doubling = chance.choice([0.0, 0.0, 0.02, 0.1])
        self.straggling = chance.choice([0.0, 0.01, 0.05])
        self._cut: set[tuple[str, str]] = set()
        self._stuck: dict[tuple[str, str], list[tuple[Node, Callable[..., None], tuple[Any, ...]]]] = {}

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        self._cut.add((one, other))
        if both_ways:
            self._cut.add((other, one))

    def heal(self, one: str, other: str) -> None:
        for pair in ((one, other), (other, one)):
            self._cut.discard(pair)
            for node, action, args in self._stuck.pop(pair, []):
                self._world.after(self._delay(), node, action, *args)

    def reaches(self, one: str, other: str) -> bool:
        return (one, other) not in self._cut

    def datagram(self, sender: Node, to: Node, action: Callable[..., None], *args: Any) -> None:
        chance = self._world.chance
        if not self.reaches(sender.name, to.name) or chance.random() < self.loss:
            return
        self._world.after(self._delay(), to, action, *args)
        if chance.random() < self.doubling:
            self._world.after(self._delay(), to, action, *args)

    def frame(self, sender: Node, to: Node, action: Callable[..., None], *args: Any) -> None:
        if not self.reaches(sender.name, to.name):
            self._stuck.setdefault((sender.name, to.name), []).append((to, action, args))
            return
        self._world.after(self._delay(), to, action, *args)
        if self._world.chance.random() < self.doubling:
            self._world.after(self._delay(), to, action, *args)

    def _delay(self) -> float:
        chance = self._world.chance
        if chance.random() < self.straggling:
            return chance.uniform(0.0, LONGEST_DELAY_S)
        return chance.uniform(0.2, 2.0) * TYPICAL_DELAY_S
