from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from outlast.rules.rule import Needs, Stage, check_count, need
from outlast.rules.space import Cloud, total


@dataclass(frozen=True)
class Bucketing(Stage):
    """Puts contributions into buckets of `size` at random, and replaces each bucket by its weighted mean.

    Means differ less than what they are means of, which helps rules on data that differs between
    contributors. Up to f of the ⌈n/size⌉ buckets have a fault in them, so the rule after it keeps its f and
    has fewer voters.

    Withstands: what the rule after it withstands of the buckets.
    Needs: n ≥ 1; the rule after it has ⌈n/size⌉ voters.
    Weights: within each mean; a bucket has the sum of its members'.
    Draws: from `seed` and the step (`step=` of a call), so that buckets change and all members draw the same.
    Paper: Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR
    2022.
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("size", self.size, 1)

    @property
    def needs(self) -> Needs:
        # Distances do not matter here, but what is not finite must not get into a bucket.
        return Needs(gram=True)

    def tolerates(self, n: int) -> int:
        need(n, 1, self)
        return n - 1

    def voters(self, n: int) -> int:
        return -(-n // self.size)

    def transform(self, cloud: Cloud) -> Cloud:
        order = list(range(cloud.size))
        random.Random(f"{self.seed}/{cloud.step}").shuffle(order)
        mix = torch.zeros(self.voters(cloud.size), cloud.size, dtype=torch.float64)
        for place, voter in enumerate(order):
            mix[place // self.size, voter] = cloud.weights[voter]
        weights = total(mix.T)
        return cloud.remixed(mix / weights[:, None], weights)
