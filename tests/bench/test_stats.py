import pytest

from bench.stats import median, nearest_rank, p90, p99, spread


def test_the_90th_percentile_of_twenty_values_is_the_third_largest() -> None:
    assert p90([float(value) for value in range(1, 21)]) == 18


def test_the_99th_percentile_of_less_than_a_hundred_values_is_the_largest() -> None:
    assert p99([float(value) for value in range(1, 100)]) == 99
    assert p99([float(value) for value in range(1, 101)]) == 99
    assert p99([float(value) for value in range(1, 102)]) == 100


def test_the_median_is_a_measured_value() -> None:
    assert median([1.0, 2.0, 3.0]) == 2.0
    assert median([1.0, 2.0, 3.0, 100.0]) == 2.0


def test_the_order_of_the_values_does_not_matter() -> None:
    assert p90([5.0, 1.0, 4.0, 2.0, 3.0]) == 5.0
    assert median([5.0, 1.0, 4.0, 2.0, 3.0]) == 3.0


def test_one_value_is_every_percentile() -> None:
    found = spread([7.0])
    assert found == {"count": 1, "min": 7.0, "median": 7.0, "p90": 7.0, "p99": 7.0, "max": 7.0}


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_a_percentage_out_of_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="percentage"):
        nearest_rank([1.0], percent)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])
