"""Means of neighbourhoods, ranked without being made.

Mixtures such as NNM's are means of m of n rows each, and any two of them have most rows in common. Seen from
one of them, the *base*, another differs by a few exchanges: a row that goes and a row that comes.

    mixture = (Σ base + Σ (comes - goes)) / m

The base is the same for all, so mixtures are ranked as their exchanges are, and the middle of all mixtures is
that of the exchanges, moved by the base: a kernel that reads each row once, where making the mixtures takes a
matrix product, and as much memory again as the rows.

Nothing may be lost when a row is enormous. So every row of the base is in more neighbourhoods than there can
be liars: an honest one has chosen it, and it is no farther out than honest rows are. Where there is no
such base, mixtures are made. Sums of m values are taken before they are divided, so values have to stay below
a hundredth of what their type can hold; that is far more than any gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.rules.kernels import Compute, Middle, middle_of
from outlast.rules.networks import selection

PAYS_ELEMENTS = 1 << 24
"""Values in all mixtures from which on it is worth compiling such a kernel, which takes long."""

MOST_ROWS = 128
"""A kernel has so many rows to read at most, each as often as it is exchanged; compilers take their time."""


@dataclass(frozen=True)
class MiddleOfExchanges:
    """Per coordinate, the mean of the mixtures with ranks first … last-1. The rows are first those of the
    base, then for each mixture the rows that come and those that go, in turns.
    """

    base: int
    mixtures: int
    exchanges: int
    first: int
    last: int

    def of(self, n: int) -> Compute:
        base, each, first, last = self.base, 2 * self.exchanges, self.first, self.last
        assert n == base + self.mixtures * each
        network = selection(self.mixtures, first, last, sorted_out=False)

        def middle(rows: list[Tensor], coefficients: Tensor) -> Tensor:
            dtype = coefficients.dtype
            total = rows[0].to(dtype)
            for row in rows[1:base]:
                total = total + row.to(dtype)
            moved = []
            for begin in range(base, n, each):
                pairs = [rows[k].to(dtype) - rows[k + 1].to(dtype) for k in range(begin, begin + each, 2)]
                change = pairs[0]
                for pair in pairs[1:]:
                    change = change + pair
                moved.append(change)
            return (total + middle_of(moved, network, first, last)) * (1.0 / base) + 0.0

        return middle


def as_exchanges(kernel: Middle, mix: Tensor) -> tuple[MiddleOfExchanges, list[int]] | None:
    """The kernel that has the same result for these mixtures, and the rows that it is given; None if the
    mixtures are none of neighbourhoods of one size, or differ too much.
    """
    near = mix != 0
    sizes = near.sum(1)
    size, spare = int(sizes[0]), mix.shape[1] - int(sizes[0])
    alike = bool((sizes == size).all()) and bool((mix[near] == mix[near][0]).all())
    if not alike or spare == 0 or size + 2 * spare * len(mix) > MOST_ROWS:
        return None
    chosen_by = near.sum(0)
    support = torch.where(near, chosen_by, len(mix)).amin(1)
    centre = int(support.argmax())
    if int(support[centre]) <= spare:
        return None
    base = _rows(near[centre])
    given = list(base)
    for neighbourhood in near:
        comes, goes = _rows(neighbourhood & ~near[centre]), _rows(near[centre] & ~neighbourhood)
        # To exchange a row for itself changes nothing. So the kernel is the same whoever is near to whom.
        idle = [base[0]] * (spare - len(comes))
        for pair in zip(comes + idle, goes + idle, strict=True):
            given += pair
    return MiddleOfExchanges(size, len(mix), spare, kernel.first, kernel.last), given


def _rows(mask: Tensor) -> list[int]:
    return [int(k) for k in mask.nonzero().flatten()]
