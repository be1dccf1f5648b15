import pytest

from bench.paired import paired_ratio


def test_the_ratio_is_taken_within_each_pair() -> None:
    # One pair was measured on a machine ten times as slow; that does not matter.
    found = paired_ratio([(1.0, 2.0), (10.0, 20.0), (1.1, 2.2)])
    assert found.median == pytest.approx(0.5)
    assert found.as_list() == pytest.approx([0.5, 0.5])


def test_the_interval_holds_the_median_and_is_inside_of_what_was_measured() -> None:
    pairs = [(1.0 + index / 100, 1.0) for index in range(41)]
    found = paired_ratio(pairs)
    assert found.median == pytest.approx(1.2)
    assert 1.0 < found.low < found.median < found.high < 1.4


def test_more_pairs_are_surer() -> None:
    few = paired_ratio([(1.0 + index / 10, 1.0) for index in range(11)])
    many = paired_ratio([(1.0 + index / 10, 1.0) for index in range(11)] * 20)
    assert many.high - many.low < few.high - few.low


def test_the_same_pairs_have_the_same_interval() -> None:
    pairs = [(1.0 + index % 7, 2.0) for index in range(30)]
    assert paired_ratio(pairs) == paired_ratio(pairs)
