"""Attacks that know the honest rows, and push against them without standing out."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

POWER_ITERATIONS = 20


def sign_flip(honest: Tensor, count: int, *, scale: float = 1.0) -> Tensor:
    """The honest mean backwards.

    Paper: Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods. AAAI 2019.
    """
    return _repeated(-scale * _mean(honest), honest, count)


def ipm(honest: Tensor, count: int, *, strength: float = 0.5) -> Tensor:
    """Inner product manipulation: a little of the honest mean backwards, so that it hides among honest rows
    and yet turns the aggregate's inner product with the true gradient negative.

    Paper: Xie, Koyejo, Gupta: Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation.
    UAI 2019.
    """
    return _repeated(-strength * _mean(honest), honest, count)


def alie(honest: Tensor, count: int, *, strength: float | None = None) -> Tensor:
    """A little is enough: the mean, moved by so many standard deviations per coordinate as hide among
    honest rows.

    Paper: Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed Learning.
    NeurIPS 2019.
    """
    if strength is None:
        strength = alie_strength(len(honest) + count, count)
    mean = _mean(honest)
    # By hand, since torch's own standard deviation over rows takes many times as long.
    spread = (honest - mean).square_().mean(dim=0).sqrt_()
    return _repeated(mean - strength * spread, honest, count)


def alie_strength(n: int, f: int) -> float:
    """The paper's: as far out as leaves enough honest rows farther out for the attackers to have a
    majority.
    """
    supporters = n // 2 + 1 - f
    share = (n - f - supporters) / (n - f)
    return NormalDist().inv_cdf(min(max(share, 1e-6), 1 - 1e-6))


def mimic(honest: Tensor, count: int, *, target: int | None = None) -> Tensor:
    """All copy one honest row, which then counts too much: no outlier, but harmful where honest data differs.

    Without a target, it is the row that is farthest out along the direction in which honest rows differ most.
    Paper: Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR
    2022.
    """
    if target is None:
        centred = (honest.double() - _mean(honest)).view(len(honest), -1)
        products = centred @ centred.T
        # The most telling direction, by its coordinates along the rows; it starts at the longest of them.
        direction = products[int(products.diagonal().argmax())].clone()
        for _ in range(POWER_ITERATIONS):
            direction = products @ direction
            direction /= direction.norm().clamp(min=torch.finfo(torch.float64).tiny)
        target = int((products @ direction).abs().argmax())
    return _repeated(honest[target], honest, count)


def _mean(honest: Tensor) -> Tensor:
    return honest.double().mean(dim=0)


def _repeated(row: Tensor, honest: Tensor, count: int) -> Tensor:
    return row.to(honest.dtype).expand(count, *honest.shape[1:]).clone()
