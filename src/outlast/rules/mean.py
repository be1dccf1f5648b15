from __future__ import annotations

from dataclasses import dataclass

from outlast.rules.kernels import Blend
from outlast.rules.rule import Decision, Rule, need
from outlast.rules.space import Cloud, normalised


@dataclass(frozen=True)
class Mean(Rule):
    """The weighted mean of all contributions.

    Withstands: nothing. One contribution can put the result anywhere, and one NaN makes it NaN.
    Needs: n ≥ 1.
    Weights: Σ wᵢxᵢ / Σ wᵢ.
    """

    @property
    def believes_all(self) -> bool:
        return True

    def tolerates(self, n: int) -> int:
        need(n, 1, self)
        # Those set aside by a stage before it are no concern of its own.
        return n - 1

    def decide(self, cloud: Cloud) -> Decision:
        return Decision(cloud.combination(normalised(cloud.weights))[None], Blend())
