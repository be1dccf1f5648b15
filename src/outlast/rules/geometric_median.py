from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outlast.rules.kernels import Blend
from outlast.rules.rule import Decision, Needs, Rule, check_count, check_positive, need
from outlast.rules.space import Cloud, normalised

STILL = 1e-12
"""The search ends when no coefficient changes by more."""


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the least sum of (weighted) distances to all contributions.

    Found with Weiszfeld's iteration: a mean with weights wᵢ / distanceᵢ, again and again. It begins at a
    mean in which nobody counts more than the most central contribution, and distances below `smoothing`
    times the median distance to that one count as that, so that it does not stick to a contribution it
    happens to meet.

    Withstands: any minority by weight: the result stays within a few times the honest ones' radius of them.
    Needs: n ≥ 1.
    Weights: they weigh the distances; so a majority is one by weight.
    Papers: Weiszfeld: Sur le point pour lequel la somme des distances de n points donnés est minimum. Tohoku
    Mathematical Journal, 1937. Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE
    Transactions on Signal Processing, 2022.
    """

    iterations: int = 100
    """At most so many; each costs O(n²), whatever the size of the model."""
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        check_count("iterations", self.iterations, 1)
        # None means no limit elsewhere, and nothing here.
        check_positive("smoothing", 0.0 if self.smoothing is None else self.smoothing)

    @property
    def needs(self) -> Needs:
        return Needs(gram=True)

    def tolerates(self, n: int) -> int:
        need(n, 1, self)
        return (n - 1) // 2

    def decide(self, cloud: Cloud) -> Decision:
        between = cloud.distances().sqrt()
        half = between.sort(dim=1).values[:, cloud.size // 2]
        central = int(half.argmin())
        radius = half[central]
        if radius == 0:
            # More than half of them are the same: that is the median.
            return Decision(cloud.mix[central : central + 1], Blend())
        coefficients = _pull(cloud, between[central], radius)
        for _ in range(self.iterations):
            here = cloud.combination(coefficients)
            following = _pull(cloud, cloud.distances_to(here).sqrt(), radius * self.smoothing)
            moved = (following - coefficients).abs().max()
            coefficients = following
            if moved <= STILL:
                break
        return Decision(cloud.combination(coefficients)[None], Blend())


def _pull(cloud: Cloud, distances: Tensor, least: Tensor) -> Tensor:
    return normalised(cloud.weights / distances.clamp(min=float(least)))
