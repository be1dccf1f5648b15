"""Centred clipping: everyone may pull, but only so hard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.rules.kernels import Blend
from outlast.rules.rule import Decision, Needs, Rule, Weights, check_count, check_positive, need
from outlast.rules.space import Cloud, matmul, normalised, total


@dataclass(frozen=True)
class CentredClipping(Rule):
    """Starts at a centre, and moves by the weighted mean of all differences to it, each clipped to `radius`.

    The centre is given with each call (`centre=`), usually the last result, and the origin at first;
    `Following` remembers it. Without a radius, it is the median distance to the centre, anew in each
    iteration.

    Withstands: a minority by weight: none moves the result by more than radius x its share of the weights
    in one iteration. How far that is from the honest mean depends on how near the centre is to it.
    Needs: n ≥ 1, and a centre that nobody has spoiled.
    Weights: they weigh the differences.
    Paper: Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization. ICML 2021.
    """

    radius: float | None = None
    iterations: int = 1

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_count("iterations", self.iterations, 1)

    @property
    def needs(self) -> Needs:
        # After the first iteration it is elsewhere, and has to know how far that is from everyone.
        return Needs(gram=self.iterations > 1, lengths=True, centre=True)

    def tolerates(self, n: int) -> int:
        need(n, 1, self)
        return (n - 1) // 2

    def decide(self, cloud: Cloud) -> Decision:
        shares = normalised(cloud.weights)
        here = cloud.landmark(cloud.centre)
        for _ in range(self.iterations):
            away = cloud.distances_to(here).sqrt()
            radius = away.sort().values[(len(away) - 1) // 2] if self.radius is None else self.radius
            pulls = shares * _clipped(away, radius)
            here = here * (1 - total(pulls)) + matmul(pulls[None], cloud.mix)[0]
        return Decision(here[None], Blend())


def _clipped(away: Tensor, radius: Tensor | float) -> Tensor:
    return torch.where(away > radius, radius / away, 1.0)


class Following:
    """A rule with a centre that follows its own results: the first call starts at the origin. Not for
    threads.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.last: Any = None

    def __call__(self, updates: Any, weights: Weights | None = None) -> Any:
        self.last = self.rule(updates, weights, centre=self.last)
        return self.last
