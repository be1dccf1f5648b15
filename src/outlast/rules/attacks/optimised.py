"""Attacks that try strengths against the very rule that they want to fool, and keep the worst.

The harm is the distance of the aggregate from the honest mean. As a function of the strength it rises, and
falls where the rule begins to see the attack, often with a jump; so the search tries doubled strengths
first, and then ever smaller steps around the best.

Paper: Shejwalkar, Houmansadr: Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
Federated Learning. NDSS 2021.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outlast.rules.attacks.directed import alie, ipm

Aggregate = Callable[[Tensor], Tensor]
"""Any rule: what the attackers run on the honest rows and their own."""


Attack = Callable[[float], Tensor]
"""The attackers' rows, by strength."""


def worst_alie(honest: Tensor, count: int, *, rule: Aggregate, evaluations: int = 20) -> Tensor:
    """ALIE with the strength that harms this rule most."""
    return _worst(honest, rule, evaluations, lambda strength: alie(honest, count, strength=strength))


def worst_ipm(honest: Tensor, count: int, *, rule: Aggregate, evaluations: int = 20) -> Tensor:
    """IPM with the strength that harms this rule most."""
    return _worst(honest, rule, evaluations, lambda strength: ipm(honest, count, strength=strength))


def worst_strength(honest: Tensor, attack: Attack, *, rule: Aggregate, evaluations: int = 20) -> float:
    """The strength at which an attack harms this rule most: for those who search seldom and attack often."""
    truth = honest.double().mean(dim=0)

    def harm(strength: float) -> float:
        result = rule(torch.cat([honest, attack(strength)])).double()
        distance = float((result - truth).norm())
        return distance if distance == distance else float("inf")

    tried = {0.0: harm(0.0)}
    strength = 0.25
    while len(tried) < (evaluations + 1) // 2:
        tried[strength] = harm(strength)
        strength *= 2
    best = max(tried, key=lambda at: tried[at])
    step = max(best / 2, 0.125)
    while len(tried) < evaluations:
        for candidate in (best + step, best - step):
            if candidate > 0 and candidate not in tried and len(tried) < evaluations:
                tried[candidate] = harm(candidate)
        best = max(tried, key=lambda at: tried[at])
        step /= 2
        if step < 1e-6:
            break
    return best


def _worst(honest: Tensor, rule: Aggregate, evaluations: int, attack: Attack) -> Tensor:
    return attack(worst_strength(honest, attack, rule=rule, evaluations=evaluations))
