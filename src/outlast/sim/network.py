"""What lies between the nodes: delay, loss, duplication, reordering and partitions.

Control messages travel like datagrams that may be lost, doubled or overtaken; the protocol has to live with
that. Frames between replicas travel over connections, see `mesh`.
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

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        self._cut.add((one, other))
        if both_ways:
            self._cut.add((other, one))

    def heal(self, one: str, other: str) -> None:
        self._cut -= {(one, other), (other, one)}

    def reaches(self, one: str, other: str) -> bool:
        return (one, other) not in self._cut

    def datagram(self, sender: Node, to: Node, action: Callable[..., None], *args: Any) -> None:
        chance = self._world.chance
        if not self.reaches(sender.name, to.name) or chance.random() < self.loss:
            return
        self._world.after(self.delay(), to, action, *args)
        if chance.random() < self.doubling:
            self._world.after(self.delay(), to, action, *args)

    def delay(self) -> float:
        chance = self._world.chance
        if chance.random() < self.straggling:
            return chance.uniform(0.0, LONGEST_DELAY_S)
        return chance.uniform(0.2, 2.0) * TYPICAL_DELAY_S
