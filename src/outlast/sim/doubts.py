"""Wrong numbers in the simulator: who computes them, who doubts them, and what a hearing makes of that.

A shard's contribution is a number that stands for its bits: `GOOD`, the same `BAD_DATA` for everybody who
computes a shard whose data is at fault, or, from a process that computes wrongly just now, a number that
nobody else comes to. Only good ones look sane. What owners say in their sums is what they have seen of that.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from outlast.protocol import hearing
from outlast.protocol.step_words import Trial
from outlast.protocol.tree import Node, leaf

if TYPE_CHECKING:
    from outlast.sim.engine import Engine
    from outlast.sim.simulation import Simulation

GOOD = 0
BAD_DATA = 1

Values = tuple[tuple[int, int], ...]
"""Shards and the numbers of their contributions."""

NOTHING: Values = ()


class Misfortune:
    """What is wrong with the data of a run, and how often it is audited; drawn apart from all else."""

    def __init__(self, seed: int, *, happens: bool) -> None:
        """`happens`: the cores of this run judge what they are sent. Others would believe it all."""
        chance = random.Random(f"doubts-{seed}")
        self._seed = seed
        self.faulty_processes = happens and chance.random() < 0.3
        self._bad_data = 0.02 if happens and chance.random() < 0.25 else 0.0
        self._audits = 0.1 if happens and chance.random() < 0.25 else 0.0

    def spoils(self, step: int, shard: int) -> bool:
        return bool(self._bad_data) and self._drawn("data", step, shard) < self._bad_data

    def audited(self, step: int, shards: int) -> int | None:
        """A shard that is heard without being doubted."""
        if not self._audits or self._drawn("audit", step) >= self._audits:
            return None
        return int(self._drawn("which", step) * shards)

    def _drawn(self, *what: object) -> float:
        return random.Random(f"{what}-{self._seed}").random()


class Doubts:
    """One life's side of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sim: Simulation = engine.node.sim
        self._own: dict[tuple[int, int], int] = {}
        """What this life has computed of the present step, by step and shard."""
        self._heard: dict[tuple[int, int, int], dict[int, Values]] = {}
        """What came with parts, by view, step and trial."""
        self._hearing = hearing.Hearing()
        self.left_out: dict[tuple[int, int], frozenset[int]] = {}
        """What a hearing found to be bad, by view and step."""

    def adopt(self) -> None:
        self._heard.clear()
        self.left_out.clear()

    # What the training thread computes.

    def compute(self, step: int) -> None:
        """The own shards of this step; those that are there already stay what they are."""
        self._own = {key: value for key, value in self._own.items() if key[0] == step}
        for shard in self._shards(self._engine.node.replica):
            self._own.setdefault((step, shard), self._value(step, shard))

    def asked(self) -> list[Node]:
        return self._hearing.of(self._engine.node.replica)

    def _value(self, step: int, shard: int) -> int:
        node = self._engine.node
        if node.wrong_until > self._sim.world.now:
            return self._sim.world.chance.getrandbits(30) + 2
        return BAD_DATA if self._sim.misfortune.spoils(step, shard) else GOOD

    def _shards(self, replica: int) -> list[int]:
        return [shard for shard, owner in enumerate(self._engine.view.shards) if owner == replica]

    def part(self, step: int, trial: int) -> Values:
        """What goes with the own part of this trial."""
        if trial == Trial.HEARING:
            values = tuple((node.lo, self._value(step, node.lo)) for node in self.asked())
        elif trial == Trial.FINAL:
            values = NOTHING
        else:
            self.compute(step)
            values = tuple(
                (shard, self._own[step, shard]) for shard in self._shards(self._engine.node.replica)
            )
        self.take(step, trial, self._engine.node.replica, values)
        return values

    # What is told.

    def take(self, step: int, trial: int, sender: int, values: Values) -> None:
        self._heard.setdefault((self._engine.view.number, step, trial), {})[sender] = values

    def first(self, step: int) -> dict[int, int]:
        """The numbers of all shards, as they were sent first."""
        parts = self._heard.get((self._engine.view.number, step, Trial.FIRST), {})
        return {shard: value for values in parts.values() for shard, value in values}

    def judge(self, step: int, trial: int) -> bool | None:
        """Whether another trial is needed; None if the step has to wait for a view without the guilty."""
        view = self._engine.view
        members = [m.replica for m in view.members]
        first = self.first(step)
        if trial == Trial.FIRST:
            doubted = [leaf(shard) for shard, value in sorted(first.items()) if value != GOOD]
            audited = self._sim.misfortune.audited(step, len(view.shards))
            holder = {leaf(shard): owner for shard, owner in enumerate(view.shards)}
            self._hearing = hearing.call(
                members, holder, doubted=doubted, audited=[] if audited is None else [leaf(audited)]
            )
            return bool(self._hearing.witnesses)
        verdict = hearing.Verdict()
        opinions = self._heard[view.number, step, Trial.HEARING]
        for node, witnesses in self._hearing.witnesses.items():
            values = [first[node.lo], *(dict(opinions[witness])[node.lo] for witness in witnesses)]
            sane = [value == GOOD for value in values]
            hearing.hear(verdict, node, self._hearing, view.shards[node.lo], values, sane)
        if verdict.blamed:
            charges = verdict.charges(view, step)
            for charge in charges:
                self._sim.world.note(self._engine.node.name, f"charges {charge.replica}: {charge.reason}")
            if any(charge.replica == self._engine.node.replica for charge in charges):
                # It may stay, where nobody else holds the state: then it computes all of that again.
                self._own.clear()
            self._engine.perform(self._engine.participant.charge(charges, self._sim.world.now))
            return None
        self.left_out[view.number, step] = frozenset(
            node.lo for node in (*verdict.left_out, *verdict.replaced)
        )
        return verdict.changes
