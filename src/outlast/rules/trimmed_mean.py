from __future__ import annotations

from dataclasses import dataclass

from outlast.rules.kernels import Middle
from outlast.rules.rule import Decision, Rule, check_count, need, rankable
from outlast.rules.space import Cloud


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate, the mean of what is left without the f largest and the f smallest values.

    Withstands: f contributions: each coordinate stays within the range of the honest ones.
    Needs: n ≥ 2f + 1.
    Weights: one contribution, one vote; weight 0 takes no part.
    Paper: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates. ICML 2018.
    """

    f: int

    def __post_init__(self) -> None:
        check_count("f", self.f, 0)

    def tolerates(self, n: int) -> int:
        need(n, 2 * self.f + 1, self)
        rankable(n, self)
        return self.f

    def decide(self, cloud: Cloud) -> Decision:
        f = self.f - cloud.lost
        return Decision(cloud.mix, Middle(f, cloud.size - f))
