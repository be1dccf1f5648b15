"""Two things measured in turns: the ratio of each pair, the median of those, and how sure it is.

On a busy machine, times of one minute can not be compared with those of the next. Two that were taken right
after each other can: whatever slowed one down has slowed the other, too. So the ratio is taken within each
pair, and the interval comes from drawing pairs anew (the bootstrap), which assumes nothing about how the
ratios are spread.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.stats import median, nearest_rank

DRAWS = 4000
CONFIDENCE_PERCENT = 95.0


@dataclass(frozen=True)
class Ratio:
    median: float
    low: float
    high: float
    """The ends of the 95 % interval of the median."""

    def as_list(self) -> list[float]:
        return [self.low, self.high]


def paired_ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> Ratio:
    """The first of each pair over the second. The same pairs have the same interval."""
    ratios = [first / second for first, second in pairs]
    draw = random.Random(seed)
    medians = [median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS)]
    tail = (100 - CONFIDENCE_PERCENT) / 2
    return Ratio(median(ratios), nearest_rank(medians, tail), nearest_rank(medians, 100 - tail))
