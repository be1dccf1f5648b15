"""Which contributions look sane: judged by what they are, and by what the run has seen so far.

One number is known of each whole contribution, its norm over its weight. One that is not finite is *not
sane*. Neither is one that is `FAR` times as large as any that counted in the last records; but what is usual
in a run is known only after some of these, and where most contributions of a step are so large, it is the run
that has changed (another learning rate, a layer that was unfrozen), not those who compute it.

What has been seen is replicated state. Each record says the largest norm that counted in it, every replica
takes it from there when it applies the record, and who joins or resumes is given it with the state. So
everybody has the same history at the same step, and comes to the same conclusions.

A `GradScaler` makes steps that are not finite on purpose, to find the largest scale that works, and skips
them everywhere alike. With one, they are let through, unless too many follow each other.

Here is also who is audited, and when: a pure function of the seed and the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outlast.errors import ConfigError, TrainingDiverged
from outlast.protocol.kinds import RecordNote
from outlast.protocol.tree import Node
from outlast.train.mixing import MASK, Purpose, mix

FAR = 100.0
REMEMBERED = 64
LEAST_REMEMBERED = 8
SKIPPED_MOST = 32
"""Steps in a row that a GradScaler may skip; its scale halves each time, so it should have found one."""

EMPTY_MOST = 10
"""Steps in a row of which nothing was sane."""


@dataclass(frozen=True)
class Screened:
    """What screening has done, as far as this process has seen it."""

    left_out: int = 0
    """Shards that did not count."""
    recomputed: int = 0
    """Contributions that were computed again by somebody, because of a doubt or an audit."""
    blamed: int = 0
    """How often a replica was found to be wrong."""


def checked_audit(audit: object, *, exact: bool) -> float:
    if isinstance(audit, bool) or not isinstance(audit, int | float) or not 0 <= audit <= 1:
        raise ConfigError(f"audit = {audit!r}: it is the share of steps that are audited, from 0 to 1.")
    if audit and not exact:
        raise ConfigError(
            f"audit = {audit} compares bits, which differ between the machines of a run with exact=False. "
            "Leave one of them out."
        )
    return float(audit)


def has_scaler(state: Mapping[str, Any]) -> bool:
    return any(isinstance(one, torch.amp.GradScaler) and one.is_enabled() for one in state.values())


class Screening:
    """One run's history of norms, as one replica knows it."""

    def __init__(self, *, audit: float = 0.0, exact: bool = True, lenient: bool = False) -> None:
        """`lenient`: a GradScaler looks after steps that are not finite."""
        self.audit = audit
        self.exact = exact
        self.lenient = lenient
        self._norms: list[float] = []
        self._usual = math.inf
        """The largest of them, once there are enough."""
        self._skipped = 0
        self._empty = 0
        self._losses: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        """The newest that were finite, with their steps, as far as this process has seen them."""
        self.counts = Screened()

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self._norms), "skipped": self._skipped, "empty": self._empty}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._remember([float(norm) for norm in state["norms"]])
        self._skipped, self._empty = state["skipped"], state["empty"]

    # One step.

    def _remember(self, norms: list[float]) -> None:
        self._norms = norms[-REMEMBERED:]
        enough = len(self._norms) >= LEAST_REMEMBERED and max(self._norms) > 0
        self._usual = max(self._norms) if enough else math.inf

    def limit(self, norms: Collection[float]) -> float:
        """What is beyond this is not sane, in a step whose contributions have these norms."""
        limit = FAR * self._usual
        beyond = sum([limit < norm < math.inf for norm in norms])
        return math.inf if 2 * beyond > len(norms) else limit

    def doubts(self, norms: Mapping[Node, float]) -> list[Node]:
        limit = self.limit(norms.values())
        lets_through = self.lenient and self._skipped < SKIPPED_MOST
        return [
            node
            for node, norm in sorted(norms.items())
            if (norm > limit if math.isfinite(norm) else not lets_through)
        ]

    def keeps_update(self, left_out: set[Node], everything: set[Node]) -> bool:
        """Whether an update that is not sane is kept: a GradScaler must see one to skip it."""
        return self.lenient and left_out == everything

    def audited(
        self, seed: int, step: int, nodes: Sequence[Node], owners: Sequence[int]
    ) -> tuple[list[Node], list[int]]:
        """The contributions and the owners of slices that are audited in this step."""
        if not self.audit or mix(Purpose.AUDIT, seed, step, 0) > self.audit * MASK:
            return [], []
        node = nodes[mix(Purpose.AUDIT, seed, step, 1) % len(nodes)]
        if self.audit == 1:
            return [node], list(owners)
        return [node], [owners[mix(Purpose.AUDIT, seed, step, 2) % len(owners)]]

    # What has come of it.

    def applied(self, step: int, note: RecordNote, shard_count: int) -> None:
        """A record has been applied. Raises TrainingDiverged if nothing has been learned for long."""
        if len(note.left_out) == shard_count:
            self._empty += 1
        elif math.isfinite(note.norm):
            self._empty = self._skipped = 0
            self._remember([*self._norms, note.norm])
            if math.isfinite(note.loss):
                self._losses.append((step, note.loss))
        else:
            self._skipped += 1
        self.count(left_out=len(note.left_out))
        if self._empty >= EMPTY_MOST:
            raise TrainingDiverged(
                f"step {step}: the model has diverged, or data is at fault: since step "
                f"{step - self._empty + 1} nothing was sane in any shard from 0 to {shard_count - 1}, nor "
                f"when computed again.{self._growth()} Go on from an earlier checkpoint, with a smaller "
                "learning rate or other data"
            )

    def _growth(self) -> str:
        """How the loss has grown before that, if it has."""
        if len(self._losses) < 2:
            return ""
        least_at, least = min(self._losses, key=lambda one: one[1])
        last_at, last = self._losses[-1]
        if last_at == least_at or last - least < abs(least):
            return ""
        return f" The loss grew from {least:.3g} at step {least_at} to {last:.3g} at step {last_at}."

    def count(self, *, left_out: int = 0, recomputed: int = 0, blamed: int = 0) -> None:
        was = self.counts
        if left_out or recomputed or blamed:
            self.counts = Screened(was.left_out + left_out, was.recomputed + recomputed, was.blamed + blamed)
