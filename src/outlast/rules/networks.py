"""Sorting networks, cut down to the ranks that somebody asks for.

A sorting network is a fixed list of comparators (i, j): after each, wire i holds the smaller of the two
values and wire j the larger. Since the list does not depend on the values, a comparator can work on whole
vectors, one per wire, with nothing but minimum and maximum: no branches, no indices, no memory beyond the
wires. For the few dozen contributions of a training step that is many times as fast as sorting each
coordinate.

The networks are Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M). Then
everything is dropped that nobody asks for: walking from the outputs back to the inputs, a comparator is kept
only if it decides something, and only the half of it whose output is used.
"""

from dataclasses import dataclass
from functools import cache

MOST_WIRES = 1024
"""A bound on what is worth building; networks grow with n·log²n."""


@dataclass(frozen=True)
class Comparator:
    low: int
    high: int
    keeps_low: bool
    """Whether somebody uses the smaller value."""
    keeps_high: bool


@cache
def merge_exchange(n: int) -> tuple[tuple[int, int], ...]:
    """All comparators of a network that sorts n wires, in order."""
    assert 1 <= n <= MOST_WIRES
    pairs = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    step = top
    while step > 0:
        span, phase, distance = top, 0, step
        while True:
            pairs += [(i, i + distance) for i in range(n - distance) if i & step == phase]
            if span == step:
                break
            distance, span, phase = span - step, span // 2, step
        step //= 2
    return tuple(pairs)


@cache
def selection(n: int, first: int, last: int, *, sorted_out: bool) -> tuple[Comparator, ...]:
    """A network after which the wires first … last-1 hold the values of these ranks.

    With sorted_out=False they hold them in any order, which is enough for their sum: a comparator whose two
    outputs both go into the sum, or both nowhere, decides nothing.
    """
    assert 0 <= first < last <= n
    # What becomes of the value on a wire, seen from below: wires with the same fate are interchangeable.
    fate: list[int] = [-1] * n
    for wire in range(first, last):
        fate[wire] = wire if sorted_out else -2
    kept = []
    for low, high in reversed(merge_exchange(n)):
        if fate[low] == fate[high]:
            continue
        kept.append(Comparator(low, high, fate[low] != -1, fate[high] != -1))
        fate[low], fate[high] = low, high
    return tuple(reversed(kept))
