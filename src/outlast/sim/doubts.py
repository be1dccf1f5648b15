"""Wrong numbers in the simulator: who computes them, who doubts them, and what a hearing makes of that.

A shard's contribution is a number that stands for its bits: `GOOD`, the same `BAD_DATA` for everybody who
computes a shard whose data is at fault, or, from a process that computes wrongly just now, a number that
nobody else comes to. Only good ones look sane.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from outlast.protocol import hearing
from outlast.protocol.kinds import PartNote
from outlast.protocol.seams import At, Worked
from outlast.protocol.step_words import Judge, Trial
from outlast.protocol.tree import Node, leaf
from outlast.protocol.views import View

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

GOOD = 0
BAD_DATA = 1

Values = tuple[tuple[int, int], ...]
"""Shards and the numbers of their contributions."""


class Heard(Protocol):
    """What came with the parts of an attempt, by replica."""

    parts: dict[int, PartNote]
    opinions: dict[int, PartNote]


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
    """One process's side of it."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._sim = node.sim
        self._own: dict[tuple[int, int], int] = {}
        """What this process has computed of the present step, by step and shard."""
        self._hearing = hearing.Hearing()
        self.left_out: dict[int, frozenset[int]] = {}
        """What a hearing found to be bad, by step."""

    def adopt(self) -> None:
        self.left_out.clear()
        self._hearing = hearing.Hearing()

    def compute(self, step: int, view: View, *, afresh: bool) -> None:
        """The own shards of this step; those that are there already stay what they are."""
        kept = {} if afresh else self._own
        self._own = {key: value for key, value in kept.items() if key[0] == step}
        for shard in self._shards(view):
            self._own.setdefault((step, shard), self._value(step, shard))

    def own(self, step: int, view: View) -> Values:
        """What goes with the own part."""
        return tuple((shard, self._own[step, shard]) for shard in self._shards(view))

    def asked(self) -> list[Node]:
        return self._hearing.of(self._node.replica)

    def opinions(self, step: int) -> Values:
        """What was computed again."""
        return tuple((node.lo, self._value(step, node.lo)) for node in self.asked())

    def _value(self, step: int, shard: int) -> int:
        if self._node.wrong_until > self._sim.world.now:
            return self._sim.world.drawn("wrong").getrandbits(30) + 2
        return BAD_DATA if self._sim.misfortune.spoils(step, shard) else GOOD

    def _shards(self, view: View) -> list[int]:
        return [shard for shard, owner in enumerate(view.shards) if owner == self._node.replica]

    def judge(self, view: View, at: At, heard: Heard) -> Worked:
        """Whether another trial is needed, or who is charged."""
        first = {note.lo: int(note.weight) for part in heard.parts.values() for note in part.nodes}
        if at.trial == Trial.FIRST:
            return Worked(at, Judge, again=self._call(view, at.step, first))
        opinions = {
            replica: {note.lo: int(note.weight) for note in part.nodes}
            for replica, part in heard.opinions.items()
        }
        verdict = hearing.Verdict()
        for node, witnesses in self._hearing.witnesses.items():
            values = [first[node.lo], *(opinions[witness][node.lo] for witness in witnesses)]
            sane = [value == GOOD for value in values]
            hearing.hear(verdict, node, self._hearing, view.shards[node.lo], values, sane)
        charges = verdict.charges(view, at.step)
        for charge in charges:
            self._sim.world.note(self._node.name, f"charges {charge.replica}: {charge.reason}")
        if not charges:
            out = (*verdict.left_out, *verdict.replaced)
            self.left_out[at.step] = frozenset(node.lo for node in out)
        return Worked(at, Judge, again=verdict.changes, charges=tuple(charges))

    def _call(self, view: View, step: int, first: dict[int, int]) -> bool:
        """Whether there has to be a hearing."""
        doubted = [leaf(shard) for shard, value in sorted(first.items()) if value != GOOD]
        audited = self._sim.misfortune.audited(step, len(view.shards))
        holder = {leaf(shard): owner for shard, owner in enumerate(view.shards)}
        members = [member.replica for member in view.members]
        self._hearing = hearing.call(
            members, holder, doubted=doubted, audited=[] if audited is None else [leaf(audited)]
        )
        return bool(self._hearing.witnesses)
