import itertools

import pytest

from outlast.rules.networks import merge_exchange, selection


def run(values: list[int], n: int, first: int, last: int, *, sorted_out: bool) -> list[int]:
    wires = list(values)
    for comparator in selection(n, first, last, sorted_out=sorted_out):
        low, high = sorted((wires[comparator.low], wires[comparator.high]))
        # What nobody is said to use is made unusable.
        wires[comparator.low] = low if comparator.keeps_low else 99
        wires[comparator.high] = high if comparator.keeps_high else 99
    return wires[first:last]


@pytest.mark.parametrize("n", range(1, 13))
def test_every_selection_is_right_for_all_zeros_and_ones(n: int) -> None:
    # A network that sorts all sequences of zeros and ones sorts everything (Knuth 5.3.4, Theorem Z).
    ranges = [(first, n - first) for first in range((n + 1) // 2)] + [((n - 1) // 2, n // 2 + 1), (0, n)]
    for values in itertools.product((0, 1), repeat=n):
        ordered = sorted(values)
        for first, last in ranges:
            assert run(list(values), n, first, last, sorted_out=True) == ordered[first:last]
            assert sorted(run(list(values), n, first, last, sorted_out=False)) == ordered[first:last]


def test_what_nobody_asks_for_is_left_out() -> None:
    assert len(merge_exchange(16)) == 63
    assert selection(16, 0, 16, sorted_out=False) == ()
    halves = sum(c.keeps_low + c.keeps_high for c in selection(16, 7, 9, sorted_out=False))
    assert halves < 2 * 63 * 0.75
