from __future__ import annotations

from dataclasses import dataclass

from outlast.rules.kernels import AroundMedian
from outlast.rules.krum import krum_scores
from outlast.rules.rule import Decision, Needs, Rule, check_count, need, rankable
from outlast.rules.space import Cloud


@dataclass(frozen=True)
class Bulyan(Rule):
    """Picks n - 2f contributions by Krum, one after the other; then per coordinate the mean of the n - 4f
    values that are nearest to their median.

    Withstands: f contributions, also those that differ from the honest ones in a few coordinates only, which
    distances hardly show.
    Needs: n ≥ 4f + 3.
    Weights: one contribution, one vote; weight 0 takes no part.
    Paper: El Mhamdi, Guerraoui, Rouault: The Hidden Vulnerability of Distributed Learning in Byzantium.
    ICML 2018.
    """

    f: int

    def __post_init__(self) -> None:
        check_count("f", self.f, 0)

    @property
    def needs(self) -> Needs:
        return Needs(gram=True)

    def tolerates(self, n: int) -> int:
        need(n, 4 * self.f + 3, self)
        rankable(n, self)
        return self.f

    def decide(self, cloud: Cloud) -> Decision:
        f = self.f - cloud.lost
        distances = cloud.distances()
        left = list(range(cloud.size))
        picked = []
        for _ in range(cloud.size - 2 * f):
            scores = krum_scores(distances[left][:, left], f)
            picked.append(left.pop(int(scores.argmin())))
        # In the order of their numbers, so that it does not matter when each was picked.
        return Decision(cloud.mix[sorted(picked)], AroundMedian(len(picked) - 2 * f))
