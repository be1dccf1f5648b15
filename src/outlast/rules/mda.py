"""Minimum-diameter averaging, without trying all subsets.

There is a set of n - f contributions with no two farther apart than t if and only if the *conflicts* (pairs
farther apart than t) can all be resolved by leaving out f: a vertex cover of size f. To find one takes at
most 2^f tries: of each conflict, one side has to go. So the smallest t is found by bisection over the
distances that there are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from outlast.errors import ConfigError
from outlast.rules.kernels import Blend
from outlast.rules.rule import Decision, Needs, Rule, check_count, need
from outlast.rules.space import Cloud, normalised

MOST_FAULTS = 16
"""The search takes 2^f tries at worst, and somebody may have made it the worst case."""


@dataclass(frozen=True)
class MDA(Rule):
    """The weighted mean of the n - f contributions that are nearest together: no two of them far apart.

    Withstands: f contributions: whoever is among the chosen is no farther from the honest ones there than
    honest ones are from each other.
    Needs: n ≥ 2f + 1, f ≤ 16.
    Weights: who is believed does not depend on them; the mean of those who are does. Of sets with the same
    diameter, the one with the lowest numbers counts.
    Paper: El Mhamdi, Guerraoui, Guirguis, Hoang, Rouault: Genuinely Distributed Byzantine Machine Learning.
    PODC 2020.
    """

    f: int

    def __post_init__(self) -> None:
        check_count("f", self.f, 0)
        if self.f > MOST_FAULTS:
            raise ConfigError(
                f"f={self.f} would take MDA forever: choose {MOST_FAULTS} or less, or another rule"
            )

    @property
    def needs(self) -> Needs:
        return Needs(gram=True)

    def tolerates(self, n: int) -> int:
        need(n, 2 * self.f + 1, self)
        return self.f

    def decide(self, cloud: Cloud) -> Decision:
        chosen = nearest_together(cloud.distances().tolist(), self.f - cloud.lost)
        weights = torch.zeros_like(cloud.weights)
        weights[chosen] = cloud.weights[chosen]
        return Decision(cloud.combination(normalised(weights))[None], Blend())


def nearest_together(distances: list[list[float]], f: int) -> list[int]:
    """The subset of n - f with the smallest diameter; of several, the first in lexical order."""
    n = len(distances)
    diameters = sorted({0.0, *(distance for row in distances for distance in row)})
    low, high = 0, len(diameters) - 1
    while low < high:
        middle = (low + high) // 2
        if _resolvable(_conflicts(distances, diameters[middle]), range(n), f):
            high = middle
        else:
            low = middle + 1
    conflicts = _conflicts(distances, diameters[low])
    chosen: list[int] = []
    candidates = list(range(n))
    while len(chosen) < n - f:
        first, *others = candidates
        friends = [k for k in others if k not in conflicts[first]]
        spare = len(friends) - (n - f - len(chosen) - 1)
        if spare >= 0 and _resolvable(conflicts, friends, spare):
            chosen.append(first)
            candidates = friends
        else:
            candidates = others
    return chosen


def _conflicts(distances: list[list[float]], diameter: float) -> list[set[int]]:
    return [{k for k, distance in enumerate(row) if distance > diameter} for row in distances]


def _resolvable(conflicts: list[set[int]], among: Collection[int], f: int) -> bool:
    """Whether leaving out f of `among` leaves nobody in conflict."""
    left = set(among)
    # Whoever has most conflicts goes, or all that they conflict with do.
    worst = max(left, key=lambda k: (len(conflicts[k] & left), -k), default=None)
    if worst is None or not (against := conflicts[worst] & left):
        return True
    if f == 0 or len(against) * f < sum(len(conflicts[k] & left) for k in left) // 2:
        return False
    if _resolvable(conflicts, left - {worst}, f - 1):
        return True
    return len(against) <= f and _resolvable(conflicts, left - against, f - len(against))
