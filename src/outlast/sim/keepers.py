"""States that scripts want saved by name, in the simulator: who keeps which.

In some worlds the script asks for a name after some of its steps, alike on all replicas, as
`train/keepsakes.py` has it. What members say of it in their parts, and what follows from that, is the same as
in training (`protocol/naming.py`, `protocol/wishes.py`).

*Nothing that was asked for is forgotten*: when faults stop, whoever keeps a state for a name gets rid of it.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from outlast.protocol.naming import NamedStates

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode
    from outlast.sim.simulation import Simulation

NAME = "best"


class Names:
    """Of one world."""

    def __init__(self, sim: Simulation, *, saves: bool) -> None:
        # Drawn apart, so that worlds without names are what they were before there were any.
        every = random.Random(f"names-{sim.world.seed}").choice([0, 0, 1, 3, 10])
        self._every = every if saves else 0

    def asked_after(self, record: int) -> bool:
        """Whether the script asks for a name after the step of this record."""
        return self._every > 0 and record % self._every == 0


class Keeper:
    """What one process keeps."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._wanted = NamedStates()
        self._copies: dict[int, tuple[int, float]] = {}
        """Step → the state, and since when it is kept."""

    @property
    def kept(self) -> tuple[int, ...]:
        return self._wanted.steps

    @property
    def since(self) -> float:
        """For how long the oldest of them has been waiting."""
        return min((self._copies[step][1] for step in self.kept), default=math.inf)

    def applied(self, step: int, record: int, state: int) -> None:
        """The script has run the body of this step."""
        sim = self._node.sim
        if sim.names.asked_after(record) and self._node.core.is_member:
            self._wanted.ask(NAME, step)
            self._copies[step] = (state, sim.world.now)

    def verified(self, step: int) -> None:
        self._wanted.safe(step)

    def saved(self, step: int) -> None:
        self._wanted.saved(step, [NAME])

    def go_back(self, step: int) -> None:
        self._wanted.go_back(step)

    def clear(self) -> None:
        """Others have given this process their state: what it kept is of another life."""
        self._wanted = NamedStates()

    def state(self, step: int) -> int | None:
        return self._copies[step][0] if step in self.kept else None
