from __future__ import annotations

from dataclasses import dataclass

from outlast.rules.kernels import Middle
from outlast.rules.rule import Decision, Rule, need, rankable
from outlast.rules.space import Cloud


@dataclass(frozen=True)
class Median(Rule):
    """Per coordinate, the median of all contributions; of an even number, the middle between the two.

    Withstands: any minority, f < n/2: each coordinate stays within the range of the honest ones.
    Needs: n ≥ 1.
    Weights: one contribution, one vote; weight 0 takes no part.
    Paper: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates. ICML 2018.
    """

    def tolerates(self, n: int) -> int:
        need(n, 1, self)
        rankable(n, self)
        return (n - 1) // 2

    def decide(self, cloud: Cloud) -> Decision:
        n = cloud.size
        return Decision(cloud.mix, Middle((n - 1) // 2, n // 2 + 1))
