import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.train.shuffle import Shuffle


@given(length=st.integers(1, 700), seed=st.integers(0, (1 << 64) - 1), pass_=st.integers(0, 1 << 40))
def test_each_pass_holds_each_sample_once(length: int, seed: int, pass_: int) -> None:
    assert sorted(Shuffle(length, seed).run(pass_, 0, length)) == list(range(length))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 63, 64, 65, 4095, 4096, 4097, 65537])
def test_lengths_at_the_edges(length: int) -> None:
    assert sorted(Shuffle(length, 3).run(1, 0, length)) == list(range(length))


@given(length=st.integers(1, 1 << 50), data=st.data())
def test_a_position_alone_gives_what_a_run_gives(length: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length - 1))
    stop = min(length, start + 20)
    shuffle = Shuffle(length, 9)
    run = shuffle.run(4, start, stop)
    assert run == [Shuffle(length, 9).at(4, position) for position in range(start, stop)]
    assert len(set(run)) == len(run) and all(0 <= sample < length for sample in run)


def test_the_order_never_changes() -> None:
    # Pinned: an order that differs between two versions would skip and repeat samples after an upgrade.
    assert Shuffle(10, 0).run(0, 0, 10) == [0, 3, 1, 7, 5, 4, 9, 2, 6, 8]
    assert Shuffle(1_000_000, 42).run(3, 500, 504) == [115576, 591143, 689406, 577575]


def test_passes_and_seeds_differ() -> None:
    orders = {tuple(Shuffle(1000, seed).run(pass_, 0, 1000)) for seed in range(5) for pass_ in range(5)}
    assert len(orders) == 25


def test_going_back_to_an_earlier_pass_gives_its_order_again() -> None:
    shuffle = Shuffle(100, 0)
    first = shuffle.run(0, 0, 100)
    assert shuffle.run(1, 0, 100) != first
    assert shuffle.run(0, 0, 100) == first


def far_from_even(counts: Counter[object], cells: int) -> float:
    """How many standard deviations the chi-square of these counts is away from that of even chances."""
    each = counts.total() / cells
    square = sum((count - each) ** 2 / each for count in counts.values()) + (cells - len(counts)) * each
    return (square - (cells - 1)) / math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize(("length", "passes"), [(2, 2000), (3, 2000), (4, 2000), (5, 3000), (6, 4000)])
def test_all_orders_of_a_few_samples_are_equally_likely(length: int, passes: int) -> None:
    shuffle = Shuffle(length, 1)
    orders = Counter[object](tuple(shuffle.run(pass_, 0, length)) for pass_ in range(passes))
    assert far_from_even(orders, math.factorial(length)) < 4


@pytest.mark.parametrize("length", [7, 9, 16, 25, 81])
def test_even_and_odd_orders_are_equally_likely(length: int) -> None:
    shuffle = Shuffle(length, 1)
    odd = sum(inversions(shuffle.run(pass_, 0, length)) % 2 for pass_ in range(1000))
    assert abs(odd - 500) < 4 * math.sqrt(250)


def inversions(order: list[int]) -> int:
    return sum(before > after for before, after in itertools.combinations(order, 2))


@pytest.mark.parametrize("length", [6, 10, 16, 37, 64, 101])
def test_places_neighbours_and_pairs_are_even(length: int) -> None:
    # One observation of each kind per pass: several from the same order would depend on each other.
    shuffle = Shuffle(length, 11)
    firsts, distances, pairs = Counter[object](), Counter[object](), Counter[object]()
    for pass_ in range(4000):
        first, second = shuffle.run(pass_, 0, 2)
        last = shuffle.at(pass_, length - 1)
        firsts[first] += 1
        distances[(second - first) % length] += 1
        pairs[first, last] += 1
    assert far_from_even(firsts, length) < 4
    assert far_from_even(distances, length - 1) < 4
    assert far_from_even(pairs, length * (length - 1)) < 4


@pytest.mark.parametrize("length", [5000, 1_000_000])
def test_long_passes_are_even_too(length: int) -> None:
    shuffle = Shuffle(length, 2)
    parts, steps = Counter[object](), Counter[object]()
    for pass_ in range(20):
        order = shuffle.run(pass_, 100, 600)
        parts.update(sample * 50 // length for sample in order)
        steps.update((b - a) % length * 50 // length for a, b in itertools.pairwise(order))
    assert far_from_even(parts, 50) < 4
    assert far_from_even(steps, 50) < 4
