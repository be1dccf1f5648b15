"""The training data of a run: each step's samples, whoever loads them.

`Data` stands between a dataset and the training loop. It takes the place of a sampler and a data loader,
because with these the samples of a step depend on how many processes there are and on what each of them has
read before. Here they depend on the number of the step alone (see `sampling`), randomness on the sample alone
(see `fetch`), so that a step that is computed again, elsewhere, by fewer replicas, is the same step.

    data = Data(dataset, global_batch=256, num_workers=2)
    data.expect([(7, 0), (7, 1)], shard_count=8)
    batch = data.load(7, 0, 8)

The promise holds for datasets whose samples do not change: `dataset[i]` may draw random numbers, but must not
depend on what was asked before. Its length is checked at each load.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from torch.utils.data import DataLoader, IterableDataset, default_collate

from outlast.errors import ConfigError, DatasetChanged, WorkerDied
from outlast.train.fetch import Collate, Dataset, Fetcher, ShardKey
from outlast.train.loader import PREFETCH_MOST, Loader
from outlast.train.sampling import SampleOrder, Samples
from outlast.train.seeding import randomness_kept

_COMPLETED = "completed_steps"
CHANGEABLE = {"dataset_length": "length", "global_batch": "global_batch"}
"""What may be changed on purpose when a run goes on from a checkpoint, and what that is called here."""

GLOBAL_BATCH_IS = "the number of samples of a step over all replicas together, whoever is alive"
_INSTEAD = {
    "batch_size": f"use global_batch=…, which is {GLOBAL_BATCH_IS}. For what DistributedDataParallel does "
    "with a batch_size on each process, it is batch_size times the number of processes.",
    "sampler": "the number of a step says which samples it uses; shuffle=True and seed=… give their order.",
    "batch_sampler": "the number of a step says which samples it uses; global_batch=… says how many.",
    "prefetch_factor": "use prefetch=…, a number of shards.",
    "generator": "use seed=…: the order is drawn anew from it for each pass.",
    "worker_init_fn": "generators are seeded for each sample, in workers too; leave it out.",
}


class Data:
    """A map-style dataset, cut into steps and shards. For use by one thread, best the main one."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        global_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        drop_last: bool = False,
        **others: Any,
    ) -> None:
        """
        `global_batch` is the number of samples of a step over all replicas. `num_workers` processes load up
        to `prefetch` shards ahead, each process with a copy of the dataset; 0 loads in the training process,
        when asked. `collate_fn` makes a batch of a list of samples, by default as torch's DataLoader does.
        """
        _refuse_a_loader(dataset)
        _refuse_others(others)
        if global_batch is None:
            raise ConfigError(f"outlast.Data needs global_batch=…: {GLOBAL_BATCH_IS}.")
        self._dataset = dataset
        self.order = SampleOrder(
            length=_length_of(dataset),
            global_batch=global_batch,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self.order.validate()
        if num_workers < 0:
            raise ConfigError(f"num_workers = {num_workers}: use 0 to load in the training process, or more.")
        if not 1 <= prefetch <= PREFETCH_MOST:
            raise ConfigError(f"prefetch = {prefetch}: use a number of shards from 1 to {PREFETCH_MOST}.")
        self._num_workers = num_workers
        self._prefetch = prefetch
        self._fetcher = Fetcher(dataset, collate_fn or default_collate, self.order)
        self._loader: Loader | None = None
        self._may_change: frozenset[str] = frozenset()
        self.changed: tuple[str, ...] = ()
        """What was found to differ from a state that was loaded last, or refused."""
        self.completed_steps = 0
        """The cursor: whoever runs the steps sets it to the last one that is done."""

    @property
    def steps_per_epoch(self) -> int:
        """How many steps a pass over the data takes, with any number of replicas."""
        return self.order.steps_per_pass

    def shards_of(self, step: int, shard_count: int) -> list[range]:
        """The positions of a step's shards in its pass: contiguous, the larger first, some possibly empty."""
        return self.order.shards_of(step, shard_count)

    def samples(self, step: int, shard: int, shard_count: int) -> Samples:
        """The pass that a step is in, and the indices of the samples of one of its shards."""
        return self.order.samples(step, shard, shard_count)

    def load(self, step: int, shard: int, shard_count: int, *, keep_randomness: bool = True) -> Any:
        """The collated batch of one shard; None for a shard without samples.

        Loading in this process (`num_workers=0`) seeds this process's generators, and puts them back after.
        A caller that seeds them anyway before it computes may save the 0.15 ms for that with
        `keep_randomness=False`; the generators are then left in some state or other.
        """
        key = ShardKey(step, shard, shard_count)
        positions = self.order.positions(*key)
        self._check_length(step)
        if not positions:
            return None
        if self._num_workers:
            return self._from_workers(key)
        if not keep_randomness:
            return self._fetcher.fetch(key)
        with randomness_kept():
            return self._fetcher.fetch(key)

    def expect(self, shards: Iterable[tuple[int, int]], shard_count: int) -> None:
        """Load these (step, shard) ahead, soonest first, and forget what was expected before.

        Without workers this does nothing. A wrong expectation costs a little time, never correctness.
        """
        if not self._num_workers:
            return
        keys = [ShardKey(step, shard, shard_count) for step, shard in shards]
        loader = self._running_loader()
        try:
            loader.expect(key for key in keys if self.order.positions(*key))
        except WorkerDied:
            self.close()
            raise

    def state_dict(self) -> dict[str, int | bool]:
        """The cursor, and what the sequence that it points into depends on."""
        return {_COMPLETED: self.completed_steps, **self.order.as_dict()}

    def may_change(self, names: Iterable[str]) -> None:
        """Load a state that differs in these (see `CHANGEABLE`): from there on, steps have the samples that
        they have with this data."""
        self._may_change = frozenset(CHANGEABLE[name] for name in names if name in CHANGEABLE)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        mine = self.state_dict()
        self.changed = tuple(
            name for name, field in CHANGEABLE.items() if state.get(field, mine[field]) != mine[field]
        )
        if unknown := state.keys() ^ mine.keys():
            raise ConfigError(
                "The saved data state and this version of Outlast do not have these fields in common: "
                f"{', '.join(sorted(unknown))}. Load it with the version that saved it."
            )
        for field in mine.keys() - {_COMPLETED}:
            if state[field] != mine[field] and field not in self._may_change:
                raise ConfigError(
                    f"The saved run used {field} = {state[field]}, but this one has {field} = {mine[field]}: "
                    "the samples of its steps would not be the same. Use the saved value, or start a new run."
                )
        self.completed_steps = int(state[_COMPLETED])

    def close(self) -> None:
        """End the workers, if any. Loading again starts new ones."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _from_workers(self, key: ShardKey) -> Any:
        loader = self._running_loader()
        try:
            return loader.load(key)
        except WorkerDied:
            # The rest would wait for a colleague that is gone. Whoever catches this may load again.
            self.close()
            raise

    def _running_loader(self) -> Loader:
        if self._loader is None or self._loader.owner_pid != os.getpid():
            self._loader = Loader(self._fetcher, num_workers=self._num_workers, prefetch=self._prefetch)
            weakref.finalize(self, self._loader.close)
        return self._loader

    def _check_length(self, step: int) -> None:
        length = len(self._dataset)
        if length != self.order.length:
            raise DatasetChanged(
                f"At step {step} the dataset has {length} samples, but at the start it had "
                f"{self.order.length}. The order of the samples depends on their number, so it must stay the "
                "same during a run. "
                "Give Data a fixed list of samples; to use more of them, start a new run."
            )


def _refuse_a_loader(dataset: object) -> None:
    if isinstance(dataset, DataLoader):
        batch = dataset.batch_size
        size = f", global_batch={batch} * replicas" if batch else ", global_batch=…"
        raise ConfigError(
            "outlast.Data was given a DataLoader. It takes the place of one: give it the dataset itself, "
            f"outlast.Data(loader.dataset{size}), and collate_fn, num_workers and drop_last as needed."
        )


def _refuse_others(others: Mapping[str, Any]) -> None:
    """Arguments that a DataLoader has, and Data has not."""
    for name, value in others.items():
        if name in _INSTEAD:
            raise ConfigError(f"outlast.Data has no {name}={value!r}: {_INSTEAD[name]}")
        known = [p for p in inspect.signature(Data).parameters if p not in ("dataset", "others")]
        raise ConfigError(f"outlast.Data has no argument {name!r}; it has {', '.join(known)}.")


def _length_of(dataset: Dataset) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"The dataset is a {type(dataset).__name__}, which cannot be asked for a sample by its number. "
            "A step must be able to be computed again, so give a dataset with __getitem__ and __len__."
        )
    try:
        return len(dataset)
    except TypeError as error:
        raise ConfigError(
            f"The dataset is a {type(dataset).__name__}, which has no length. Give it a __len__."
        ) from error
