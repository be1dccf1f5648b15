"""The arithmetic on coordinates, as pure functions of rows that know nothing of blocks, threads or compilers.

Each kernel uses operations only that are rounded one by one (minimum, maximum, sums, products,
comparisons), in an order that depends on the number of rows alone. So a coordinate's result has the same
bits in every block, on every number of threads, and whether the kernel is compiled or not. Two things need
care for that:

- The sign of a zero depends on how a minimum is implemented. Adding +0.0 to the result makes it positive.
- NaN is no value that could be ranked: it counts as +Inf, that is, as one more extreme value.

Rows of 16-bit floats are computed in float32. Results are in the type that was computed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outlast.rules.networks import Comparator, selection

Compute = Callable[[list[Tensor], Tensor], Tensor]
"""Rows and coefficients → one row. The coefficients' dtype is what is computed in."""


class Kernel(Protocol):
    """Hashable, so that it can be compiled once; equal kernels compute the same."""

    def of(self, n: int) -> Compute:
        """The arithmetic for n rows, with everything decided that does not depend on values."""
        ...


@dataclass(frozen=True)
class Blend:
    """Σ cᵢ·rowᵢ, added in the order of the rows."""

    def of(self, n: int) -> Compute:
        def blend(rows: list[Tensor], coefficients: Tensor) -> Tensor:
            dtype = coefficients.dtype
            total = rows[0].to(dtype) * coefficients[0]
            for index in range(1, n):
                total = total + rows[index].to(dtype) * coefficients[index]
            return total + 0.0

        return blend


@dataclass(frozen=True)
class Middle:
    """Per coordinate, the mean of the values with ranks first … last-1."""

    first: int
    last: int

    def of(self, n: int) -> Compute:
        network = selection(n, self.first, self.last, sorted_out=False)
        first, last = self.first, self.last

        def middle(rows: list[Tensor], coefficients: Tensor) -> Tensor:
            return middle_of([row.to(coefficients.dtype) for row in rows], network, first, last)

        return middle


@dataclass(frozen=True)
class AroundMedian:
    """Per coordinate, the mean of the `count` values that are nearest to the median.

    They are neighbours in rank: a window that begins at rank 0 and is moved up by one for as long as the
    value that it would lose is farther from the median than the one that it would gain.
    """

    count: int

    def of(self, n: int) -> Compute:
        network = selection(n, 0, n, sorted_out=True)
        count = self.count

        def around_median(rows: list[Tensor], coefficients: Tensor) -> Tensor:
            wires = _sorted([row.to(coefficients.dtype) for row in rows], network)
            median = wires[(n - 1) // 2] * 0.5 + wires[n // 2] * 0.5
            window = wires[:count]
            for lost in range(n - count):
                gained = wires[lost + count]
                moves = (median - wires[lost]) > (gained - median)
                window[lost % count] = torch.where(moves, gained, window[lost % count])
            return _mean(window)

        return around_median


def middle_of(rows: list[Tensor], network: tuple[Comparator, ...], first: int, last: int) -> Tensor:
    """The mean of the ranks first … last-1, which the network brings to these wires."""
    return _mean(_sorted(rows, network)[first:last])


def _sorted(rows: list[Tensor], network: tuple[Comparator, ...]) -> list[Tensor]:
    wires = [_ranked(row) for row in rows]
    for comparator in network:
        a, b = wires[comparator.low], wires[comparator.high]
        if comparator.keeps_low:
            wires[comparator.low] = torch.minimum(a, b)
        if comparator.keeps_high:
            wires[comparator.high] = torch.maximum(a, b)
    return wires


def _ranked(row: Tensor) -> Tensor:
    # Not isnan(), for which inductor leaves its vectors and goes value by value.
    return torch.where(row == row, row, torch.inf)


def _mean(values: list[Tensor]) -> Tensor:
    """Of two, halves are added: the middle of two very large values is a value, too."""
    if len(values) == 2:
        return values[0] * 0.5 + values[1] * 0.5 + 0.0
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total * (1.0 / len(values)) + 0.0 if len(values) > 1 else total + 0.0
