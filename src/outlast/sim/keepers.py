"""States that scripts want saved by name, in the simulator: who keeps which, and what records say of it.

In some worlds the script asks for a name after some of its steps, alike on all replicas, as
`train/keepsakes.py` has it. What members say of it in their parts is written down here, and what follows from
that is decided by the same function as in training (`protocol/naming.py`).

*Nothing that was asked for is forgotten*: when faults stop, whoever keeps a state for a name gets rid of it.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

from outlast.protocol.naming import Kept, NamedStates, choose
from outlast.protocol.step_words import Check

if TYPE_CHECKING:
    from outlast.sim.engine import Engine
    from outlast.sim.simulation import Simulation

NAME = "best"


class Said(NamedTuple):
    """What a member says in a part."""

    keeps: tuple[int, ...]
    check: Check | None
    busy: bool


class Names:
    """Of one world."""

    def __init__(self, sim: Simulation, *, saves: bool) -> None:
        # Drawn apart, so that worlds without names are what they were before there were any.
        every = random.Random(f"names-{sim.world.seed}").choice([0, 0, 1, 3, 10])
        self._every = every if saves else 0
        self._said: dict[tuple[int, int], dict[int, Said]] = {}
        """By view and step, and by replica."""
        self._kept: dict[int, Kept | None] = {}
        self._asked: set[int] = set()
        """Records in whose attempts somebody kept something."""
        self.commits = 0

    def asked_after(self, record: int) -> bool:
        """Whether the script asks for a name after the step of this record."""
        return self._every > 0 and record % self._every == 0

    def says(self, engine: Engine, step: int) -> None:
        """A member contributes to this step."""
        said = Said(engine.keeper.kept, engine.core.check(), engine.participant.saves.save is not None)
        self._said.setdefault((engine.view.number, step), {})[engine.node.replica] = said

    def made(self, engine: Engine, step: int, record: int) -> None:
        """A record was made of all parts."""
        if record in self._kept:
            return
        said = self._said.get((engine.view.number, step), {})
        keeps = {replica: one.keeps for replica, one in said.items() if one.keeps}
        busy = any(one.busy for one in said.values())
        self._kept[record] = None if busy else choose(keeps, [one.check for one in said.values()])
        if keeps:
            self._asked.add(record)

    def kept(self, record: int) -> Kept | None:
        """What the record says is to be written now."""
        return self._kept.get(record)

    def against_others(self, record: int) -> bool:
        """Whether nothing else is saved, since something is kept."""
        return record in self._asked


class Keeper:
    """What one life keeps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
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
        sim = self._engine.node.sim
        if sim.names.asked_after(record) and self._engine.participant.member.is_member:
            self._wanted.ask(NAME, step)
            self._copies[step] = (state, sim.world.now)

    def verified(self, step: int) -> None:
        self._wanted.safe(step)

    def saved(self, step: int) -> None:
        self._wanted.saved(step, [NAME])

    def go_back(self, step: int) -> None:
        self._wanted.go_back(step)

    def state(self, step: int) -> int:
        return self._copies[step][0]
