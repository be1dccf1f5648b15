"""Which samples a step uses: arithmetic, and nothing else.

Imagine all passes over the data set written down one after the other, each in an order of its own. A run
reads this one sequence from its beginning, a global batch per step, whoever is alive. So the number of a
step says all: which pass it is in, where it begins, how many samples it takes. It never crosses the end of a
pass; the last batch of a pass is short, or is left out with `drop_last`.

A step's batch is cut into `shard_count` contiguous shards whose sizes differ by one at most, the larger ones
first. A batch with fewer samples than shards leaves the last shards empty.

Steps count from 1 (step 0 is the state before any step); passes, positions, samples and shards count from 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

from outlast.errors import ConfigError, UsageError
from outlast.train.shuffle import Shuffle


class Span(NamedTuple):
    """Where a step stands in the sequence: positions `offset` to `offset + size` of a pass."""

    pass_: int
    offset: int
    size: int


class Samples(NamedTuple):
    """What one shard is made of, in this order."""

    pass_: int
    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SampleOrder:
    """All that decides which sample is used when."""

    length: int
    """The number of samples in the data set."""
    global_batch: int
    """The samples of one step, over all replicas; larger is steadier, smaller is more steps per pass."""
    seed: int = 0
    """Another seed is another order, and other randomness in every sample."""
    shuffle: bool = True
    """False reads each pass from the first sample to the last, for data that is shuffled already."""
    drop_last: bool = False
    """True leaves out the short batch at the end of a pass: equal batches, at the price of unused samples."""

    def validate(self) -> None:
        for field, value in (("global_batch", self.global_batch), ("seed", self.seed)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{field} = {value!r}: use a whole number.")
        if self.length < 1:
            raise ConfigError("The dataset is empty: training needs at least one sample.")
        if self.global_batch < 1:
            raise ConfigError(f"global_batch = {self.global_batch}: a step needs one sample or more.")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed = {self.seed}: use a number from 0 to 2**64 - 1.")
        if self.steps_per_pass < 1:
            raise ConfigError(
                f"drop_last = True with global_batch = {self.global_batch}: the dataset has only "
                f"{self.length} samples, so every batch would be dropped. Use a smaller global_batch, "
                "or drop_last=False."
            )

    @property
    def steps_per_pass(self) -> int:
        if self.drop_last:
            return self.length // self.global_batch
        return -(-self.length // self.global_batch)

    @property
    def samples_per_pass(self) -> int:
        return min(self.length, self.steps_per_pass * self.global_batch)

    def span(self, step: int) -> Span:
        if step < 1:
            raise UsageError(f"There is no step {step}: steps count from 1.")
        pass_, index = divmod(step - 1, self.steps_per_pass)
        offset = index * self.global_batch
        return Span(pass_, offset, min(self.global_batch, self.length - offset))

    def shards_of(self, step: int, shard_count: int) -> list[range]:
        """The positions of each shard of a step, in its pass."""
        return [self.positions(step, shard, shard_count) for shard in range(shard_count)]

    def positions(self, step: int, shard: int, shard_count: int) -> range:
        if not 0 <= shard < shard_count:
            raise UsageError(f"There is no shard {shard} among {shard_count}: shards count from 0.")
        span = self.span(step)
        size, larger = divmod(span.size, shard_count)
        start = span.offset + shard * size + min(shard, larger)
        return range(start, start + size + (shard < larger))

    def samples(self, step: int, shard: int, shard_count: int) -> Samples:
        positions = self.positions(step, shard, shard_count)
        pass_ = self.span(step).pass_
        if not self.shuffle:
            return Samples(pass_, tuple(positions))
        return Samples(pass_, tuple(self._shuffle.run(pass_, positions.start, positions.stop)))

    def as_dict(self) -> dict[str, int | bool]:
        """What two runs must have in common to read the same sequence."""
        return asdict(self)

    @cached_property
    def _shuffle(self) -> Shuffle:
        return Shuffle(self.length, self.seed)
