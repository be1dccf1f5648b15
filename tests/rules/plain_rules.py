"""Every rule once more, as its paper says it, in float64, with no thought of speed."""

from itertools import combinations

import torch
from torch import Tensor


def mean(x: Tensor, w: Tensor) -> Tensor:
    return (w[:, None] * x).sum(0) / w.sum()


def median(x: Tensor, w: Tensor) -> Tensor:
    ordered = x.sort(0).values
    return (ordered[(len(x) - 1) // 2] + ordered[len(x) // 2]) / 2


def trimmed_mean(x: Tensor, w: Tensor, f: int) -> Tensor:
    return x.sort(0).values[f : len(x) - f].mean(0)


def squared(x: Tensor) -> Tensor:
    return ((x[:, None] - x[None]) ** 2).sum(2)


def scores(x: Tensor, f: int) -> Tensor:
    found = []
    for i, row in enumerate(squared(x)):
        others = sorted(float(v) for j, v in enumerate(row) if j != i)
        found.append(sum(others[: len(x) - f - 1]))
    return torch.tensor(found, dtype=torch.float64)


def krum(x: Tensor, w: Tensor, f: int) -> Tensor:
    return x[int(scores(x, f).argmin())]


def multi_krum(x: Tensor, w: Tensor, f: int) -> Tensor:
    best = scores(x, f).sort(stable=True).indices[: len(x) - f]
    return mean(x[best], w[best])


def bulyan(x: Tensor, w: Tensor, f: int) -> Tensor:
    left, picked = list(range(len(x))), []
    while len(picked) < len(x) - 2 * f:
        picked.append(left.pop(int(scores(x[left], f).argmin())))
    # Of two values that are equally near to the median, the smaller one counts.
    chosen = x[picked].sort(0).values
    away = (chosen - median(chosen, w)).abs()
    nearest = away.sort(dim=0, stable=True).indices[: len(picked) - 2 * f]
    return chosen.gather(0, nearest).mean(0)


def mda(x: Tensor, w: Tensor, f: int) -> Tensor:
    far = squared(x)
    subsets = [list(s) for s in combinations(range(len(x)), len(x) - f)]
    best = min(subsets, key=lambda s: float(far[s][:, s].max()))
    return mean(x[best], w[best])


def geometric_median(x: Tensor, w: Tensor, rounds: int = 3000) -> Tensor:
    """Weiszfeld, for long; good enough where no contribution is the median itself."""
    z = mean(x, w)
    for _ in range(rounds):
        pull = w / (x - z).norm(dim=1).clamp(min=1e-12)
        z = mean(x, pull)
    return z


def centred_clipping(x: Tensor, w: Tensor, centre: Tensor, radius: float, rounds: int) -> Tensor:
    for _ in range(rounds):
        away = x - centre
        centre = centre + mean(away * (radius / away.norm(dim=1).clamp(min=radius))[:, None], w)
    return centre


def nnm(x: Tensor, w: Tensor, f: int) -> Tensor:
    near = squared(x).fill_diagonal_(-1).sort(dim=1, stable=True).indices[:, : len(x) - f]
    return torch.stack([mean(x[those], w[those]) for those in near])


def clipped(x: Tensor, limit: float) -> Tensor:
    return x * (limit / x.norm(dim=1).clamp(min=limit))[:, None]


def has_one_best(x: Tensor, f: int) -> bool:
    """Whether Krum's choice is clear: mixtures often have the same score, and then rounding decides."""
    found = scores(x, f)
    near = found <= found.min() * (1 + 1e-6) + 1e-30
    return bool((x[near] - x[near][0]).abs().max() <= 1e-9 * x.abs().max())
