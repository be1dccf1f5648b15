"""One shard, from the data set to a collated batch, in this process.

The main process and every worker run exactly this code, so it does not matter who does it: randomness is
seeded here from what is fetched, and errors get the same words. The order of things is part of the promise:

- seeded from (seed, pass, sample), fetch that sample, for each of the shard's samples in turn. A sample with
  random transforms is so the same in whatever shard it lands. A dataset that fetches many at a time
  (`__getitems__`) is seeded once, from (seed, step, shard);
- seeded from (seed, step, shard), collate them.

An empty shard has no batch: nothing is fetched or collated, and the result is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from outlast.errors import SampleFailed
from outlast.train.mixing import Purpose, mix
from outlast.train.sampling import SampleOrder, Samples
from outlast.train.seeding import seed_everything


class Dataset(Protocol):
    """A map-style dataset. `__getitems__(indices) -> samples` is used instead where there is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Collate = Callable[[Any], Any]


class ShardKey(NamedTuple):
    """The name of one shard's batch."""

    step: int
    shard: int
    shard_count: int

    def describe(self) -> str:
        return f"step {self.step}, shard {self.shard} of {self.shard_count}"


class Fetcher:
    """Fetches shards; leaves the generators of this process in whatever state the last sample left them."""

    def __init__(self, dataset: Dataset, collate: Collate, order: SampleOrder) -> None:
        self._dataset = dataset
        self._collate = collate
        self._order = order

    def fetch(self, key: ShardKey) -> Any:
        samples = self._order.samples(*key)
        if not samples.indices:
            return None
        fetched = self._fetch_samples(key, samples)
        seed_everything(mix(Purpose.COLLATE, self._order.seed, key.step, key.shard))
        try:
            return self._collate(fetched)
        except Exception as error:
            raise _failed(key, f"collate_fn raised on {_several(samples.indices)}", error) from error

    def _fetch_samples(self, key: ShardKey, samples: Samples) -> Any:
        seed = self._order.seed
        fetch_many = getattr(self._dataset, "__getitems__", None)
        if fetch_many:
            seed_everything(mix(Purpose.SHARD, seed, key.step, key.shard))
            try:
                return fetch_many(list(samples.indices))
            except Exception as error:
                what = f"the dataset raised on {_several(samples.indices)}"
                raise _failed(key, what, error) from error
        fetched = []
        for index in samples.indices:
            seed_everything(mix(Purpose.SAMPLE, seed, samples.pass_, index))
            try:
                fetched.append(self._dataset[index])
            except Exception as error:
                raise _failed(key, f"the dataset raised on sample {index}", error) from error
        return fetched


def _failed(key: ShardKey, what: str, error: Exception) -> SampleFailed:
    return SampleFailed(f"At {key.describe()}: {what}: {type(error).__name__}: {error}")


def _several(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:4]))
    return f"samples {shown}" + (f", … ({len(indices)} in all)" if len(indices) > 4 else "")
