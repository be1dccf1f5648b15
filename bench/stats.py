"""The few figures that the benchmarks report.

Percentiles are by *nearest rank*: always one of the values that were measured, never one in between. With
twenty values the 90th percentile is the third largest; nothing is interpolated, and nothing looks better
than it was.
"""

import math
from collections.abc import Sequence


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed."""
    if not values:
        raise ValueError("there are no values to rank")
    if not 0 < percent <= 100:
        raise ValueError(f"{percent} is not a percentage above 0 and up to 100")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def median(values: Sequence[float]) -> float:
    return nearest_rank(values, 50)


def p90(values: Sequence[float]) -> float:
    return nearest_rank(values, 90)


def p99(values: Sequence[float]) -> float:
    return nearest_rank(values, 99)


def spread(values: Sequence[float]) -> dict[str, float]:
    """One distribution, for the details of a result."""
    return {
        "count": len(values),
        "min": min(values),
        "median": median(values),
        "p90": p90(values),
        "p99": p99(values),
        "max": max(values),
    }
