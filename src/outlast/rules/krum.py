"""Krum: believe those whom most others are near to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.rules.kernels import Blend
from outlast.rules.rule import Decision, Needs, Rule, check_count, need
from outlast.rules.space import Cloud, normalised, total


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """For each, the sum of squared distances to the n - f - 1 others that are nearest to it."""
    n = len(distances)
    # Nobody is their own neighbour, so the diagonal goes first and is left out.
    ranked = distances.clone().fill_diagonal_(-1).sort(dim=1).values
    return total(ranked[:, 1 : n - f].T)


@dataclass(frozen=True)
class Krum(Rule):
    """The one contribution that is nearest to its n - f - 1 nearest others, in squared distances.

    Withstands: f contributions: the result is one of the contributions, and no farther from the honest ones
    than they are from each other, up to a factor. It has the noise of a single contribution.
    Needs: n ≥ 2f + 1 (the first paper's guarantee takes n ≥ 2f + 3, with one neighbour less; this is the
    second's).
    Weights: one contribution, one vote; weight 0 takes no part. Of equals, the first wins.
    Papers: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent. NeurIPS 2017. Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by
    Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity. AISTATS 2023.
    """

    f: int

    def __post_init__(self) -> None:
        check_count("f", self.f, 0)

    @property
    def needs(self) -> Needs:
        return Needs(gram=True)

    def tolerates(self, n: int) -> int:
        need(n, 2 * self.f + 1, self)
        return self.f

    def decide(self, cloud: Cloud) -> Decision:
        best = int(krum_scores(cloud.distances(), self.f - cloud.lost).argmin())
        return Decision(cloud.mix[best : best + 1], Blend())


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The weighted mean of the contributions with the best Krum scores: of n - f, or of `keep`.

    Withstands: f contributions, as Krum, with less noise.
    Needs: n ≥ 2f + 1, and keep ≤ n - f.
    Weights: who is believed does not depend on them; the mean of those who are does.
    Paper: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent. NeurIPS 2017.
    """

    f: int
    keep: int | None = None

    def __post_init__(self) -> None:
        check_count("f", self.f, 0)
        if self.keep is not None:
            check_count("keep", self.keep, 1)

    @property
    def needs(self) -> Needs:
        return Needs(gram=True)

    def tolerates(self, n: int) -> int:
        need(n, max(2 * self.f, self.f + (self.keep or 1) - 1) + 1, self)
        return self.f

    def decide(self, cloud: Cloud) -> Decision:
        f = self.f - cloud.lost
        scores = krum_scores(cloud.distances(), f)
        best = scores.sort(stable=True).indices[: self.keep or cloud.size - f]
        chosen = torch.zeros_like(cloud.weights)
        chosen[best] = cloud.weights[best]
        return Decision(cloud.combination(normalised(chosen))[None], Blend())
