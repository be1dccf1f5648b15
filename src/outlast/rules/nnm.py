from __future__ import annotations

from dataclasses import dataclass

import torch

from outlast.rules.rule import Needs, Stage, check_count, need
from outlast.rules.space import Cloud, total


@dataclass(frozen=True)
class NNM(Stage):
    """Nearest-neighbour mixing: replaces each contribution by the weighted mean of the n - f nearest to it,
    itself included.

    Honest ones become alike, also where their data is not; a rule after it is then as good as can be. The
    same f belongs to that rule.

    Withstands: f contributions, with the rule after it.
    Needs: n ≥ 2f + 1.
    Weights: within each mean; mixtures keep the weights of those they stand for. Of equally near ones, the
    first count.
    Paper: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing: A Recipe for Optimal
    Byzantine ML under Heterogeneity. AISTATS 2023.
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

    def voters(self, n: int) -> int:
        return n

    def transform(self, cloud: Cloud) -> Cloud:
        n, f = cloud.size, self.f - cloud.lost
        ranked = cloud.distances().fill_diagonal_(-1).sort(dim=1, stable=True).indices
        mix = torch.zeros(n, n, dtype=torch.float64)
        for voter, nearest in enumerate(ranked[:, : n - f]):
            mix[voter, nearest] = cloud.weights[nearest]
        return cloud.remixed(mix / total(mix.T)[:, None], cloud.weights)
