"""Faults that nobody planned: broken memory, overflow, noise."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def gaussian(honest: Tensor, count: int, *, generator: Generator, scale: float = 1.0) -> Tensor:
    """Noise instead of an update: each coordinate from N(0, scale²).

    Used as an attack in: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries.
    NeurIPS 2017.
    """
    noise = torch.randn(count, *honest.shape[1:], generator=generator, dtype=torch.float32)
    return (noise * scale).to(honest.dtype)


def infinite(honest: Tensor, count: int) -> Tensor:
    """+Inf and -Inf in turns, as from an overflow."""
    rows = honest.new_full((count, *honest.shape[1:]), torch.inf)
    rows.view(count, -1)[:, 1::2] = -torch.inf
    return rows


def not_a_number(honest: Tensor, count: int) -> Tensor:
    """NaN, as from a division by zero."""
    return honest.new_full((count, *honest.shape[1:]), torch.nan)


def bit_flips(honest: Tensor, count: int, *, generator: Generator, flips: int = 1) -> Tensor:
    """The first honest rows, again and again, with `flips` bits flipped in each: in mantissas, exponents
    and signs.

    Rates of such faults in data centres: Hochschild et al.: Cores that don't count. HotOS 2021.
    """
    rows = honest[torch.arange(count) % len(honest)].clone().view(count, -1)
    bits = rows.element_size() * 8
    patterns = rows.view(_INTEGERS[rows.element_size()])
    for row in patterns:
        for _ in range(flips):
            place = int(torch.randint(row.numel(), (), generator=generator))
            bit = int(torch.randint(bits, (), generator=generator))
            # The sign bit's value is one that only its negative fits into the type.
            row[place] ^= 1 << bit if bit < bits - 1 else -(1 << bit)
    return rows.view(count, *honest.shape[1:])
