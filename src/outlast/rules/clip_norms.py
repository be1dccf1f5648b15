from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from outlast.rules.rule import Needs, Stage, check_positive, need
from outlast.rules.space import Cloud


@dataclass(frozen=True)
class ClipNorms(Stage):
    """Shortens each contribution that is longer than `limit` to that length; without a limit, to the median
    length.

    Withstands: by itself, contributions that are merely large; that includes 1e38, which is shortened like
    any other.
    Needs: n ≥ 1.
    Weights: they stay what they are.
    Papers: Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning? 2019; for limits that
    follow the contributions: Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: Adaptive Gradient Clipping
    for Robust Federated Learning. ICLR 2025.
    """

    limit: float | None = None

    def __post_init__(self) -> None:
        check_positive("limit", self.limit)

    @property
    def needs(self) -> Needs:
        return Needs(lengths=True, origin=True)

    def tolerates(self, n: int) -> int:
        need(n, 1, self)
        return (n - 1) // 2

    def voters(self, n: int) -> int:
        return n

    def transform(self, cloud: Cloud) -> Cloud:
        origin = cloud.landmark(cloud.origin)
        lengths = cloud.distances_to(origin).sqrt()
        limit = lengths.sort().values[(cloud.size - 1) // 2] if self.limit is None else self.limit
        factors = torch.where(lengths > limit, limit / lengths, 1.0)
        drawn = cloud.mix * factors[:, None] + origin * (1 - factors)[:, None]
        return replace(cloud, mix=drawn)
