"""Gram space: points that are known by their inner products, and rules' arithmetic on them.

A *cloud* has one voter per contribution. Pre-aggregations replace voters by mixtures of contributions (their
neighbours' mean, a bucket's mean, themselves drawn towards the origin); all of these are combinations whose
coefficients add up to one, so distances between them follow from the Gram matrix of the contributions,
whatever point it was seen from. Nothing here ever touches a row.

Everyone who takes part in a step computes this from the same matrix and must come to the same bits, on
whatever machine. So sums are added one term after the other, in order, in float64: no library chooses an
order for us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outlast.rules import gram


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, with each sum added in order."""
    return total((a[:, :, None] * b[None]).transpose(0, 1))


def total(values: Tensor) -> Tensor:
    """The sum along the first dimension, added in order: a running sum cannot be added in any other."""
    if len(values) == 0:
        return torch.zeros(values.shape[1:], dtype=torch.float64)
    return values.cumsum(0)[-1]


def normalised(weights: Tensor) -> Tensor:
    return weights / total(weights)


@dataclass(frozen=True)
class Cloud:
    """The voters of one aggregation."""

    mix: Tensor
    """Voters x base: each voter as a combination of base points: contributions first, then landmarks."""
    weights: Tensor
    """One per voter, positive."""
    base: Tensor | None = None
    """The Gram matrix of the base points, if the rule asked for one."""
    origin: int | None = None
    centre: int | None = None
    """Which base points are landmarks: the origin, and the point that clipping starts from."""
    lost: int = 0
    """How many contributions were set aside since they are not finite: so many faults have been found
    already.
    """
    step: int = 0

    @property
    def size(self) -> int:
        return len(self.mix)

    def remixed(self, mix: Tensor, weights: Tensor) -> Cloud:
        """New voters, given as combinations of the present ones."""
        return replace(self, mix=matmul(mix, self.mix), weights=weights)

    def products(self) -> Tensor:
        """The Gram matrix of the voters."""
        assert self.base is not None
        if _is_selection(self.mix):
            chosen = self.mix.argmax(1)
            return self.base[chosen][:, chosen]
        return matmul(matmul(self.mix, self.base), self.mix.T)

    def distances(self) -> Tensor:
        """Squared distances between voters."""
        return gram.distances(self.products()).fill_diagonal_(0)

    def distances_to(self, point: Tensor) -> Tensor:
        """Squared distances of all voters to one combination of base points."""
        assert self.base is not None
        offsets = self.mix - point
        return total((matmul(offsets, self.base) * offsets).T).clamp(min=0)

    def landmark(self, index: int | None) -> Tensor:
        assert index is not None
        point = torch.zeros(self.mix.shape[1], dtype=torch.float64)
        point[index] = 1
        return point

    def combination(self, coefficients: Tensor) -> Tensor:
        """Σ cᵢ·voterᵢ as a combination of base points."""
        return matmul(coefficients[None], self.mix)[0]


def _is_selection(mix: Tensor) -> bool:
    return bool(((mix == 0) | (mix == 1)).all() and ((mix != 0).sum(1) == 1).all())
