import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sample_datasets import Noisy, NoisyMany, Plain, Stubborn, Unlucky
from torch.utils.data import IterableDataset, TensorDataset

from outlast.errors import ConfigError, DatasetChanged, SampleFailed
from outlast.train.data import Data

STEPS, SHARDS = 4, 3


def noisy_collate(samples: list[Any]) -> Any:
    """Draws, too; and returns more than tensors."""
    return {
        "samples": samples,
        "mixed": torch.rand(2),
        "coin": random.random(),
        "die": float(np.random.rand()),
    }


def flat(batch: Any) -> Any:
    """A batch as plain values, so that two of them can be compared bit for bit."""
    if isinstance(batch, torch.Tensor):
        return (batch.dtype, batch.tolist())
    if isinstance(batch, dict):
        return {key: flat(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [flat(value) for value in batch]
    return batch


def everything(data: Data, order: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
    with data:
        return {(step, shard): flat(data.load(step, shard, SHARDS)) for step, shard in order}


@pytest.mark.parametrize("dataset", [Noisy(10), NoisyMany(10)], ids=["one by one", "many at once"])
@pytest.mark.parametrize("collate", [None, noisy_collate], ids=["default", "noisy"])
def test_a_shard_has_the_same_bits_whoever_loads_it(dataset: Noisy, collate: Any) -> None:
    names = [(step, shard) for step in range(1, STEPS + 1) for shard in range(SHARDS)]
    loaded = [
        everything(Data(dataset, global_batch=4, seed=7, collate_fn=collate, num_workers=count), order)
        for count, order in [(0, names), (0, names[::-1]), (1, names[::-1]), (3, names)]
    ]
    assert all(other == loaded[0] for other in loaded[1:])


def test_a_sample_has_the_same_randomness_in_whatever_shard_it_lands() -> None:
    def by_index(global_batch: int) -> dict[int, Any]:
        data = Data(Noisy(10), global_batch=global_batch, collate_fn=list)
        steps = range(1, data.order.steps_per_pass + 1)
        return {sample["index"]: flat(sample) for step in steps for sample in data.load(step, 0, 1)}

    assert by_index(3) == by_index(10)


def test_randomness_differs_between_samples_passes_and_seeds() -> None:
    def noise(seed: int, step: int) -> set[float]:
        batch = Data(Noisy(8), global_batch=8, seed=seed, collate_fn=list).load(step, 0, 1)
        return {sample["noise"][1][0] for sample in batch}

    assert len(noise(0, 1) | noise(0, 2) | noise(1, 1)) == 24


def test_the_randomness_of_collate_fn_depends_on_step_and_shard_alone() -> None:
    def drawn(dataset: Any, step: int, shard: int) -> Any:
        batch = Data(dataset, global_batch=4, collate_fn=noisy_collate).load(step, shard, 2)
        return flat([batch["mixed"], batch["coin"], batch["die"]])

    # How much the samples drew before does not matter.
    assert drawn(Plain(8), 1, 0) == drawn(Noisy(8), 1, 0) == drawn(NoisyMany(8), 1, 0)
    assert drawn(Plain(8), 1, 0) != drawn(Plain(8), 1, 1) != drawn(Plain(8), 2, 1)


def test_the_batch_holds_the_samples_that_are_promised() -> None:
    data = Data(Plain(10), global_batch=4)
    for step in range(1, 7):
        for shard in range(2):
            assert data.load(step, shard, 2).tolist() == list(data.samples(step, shard, 2).indices)


def test_a_tensor_dataset_is_collated_as_usual() -> None:
    data = Data(TensorDataset(torch.arange(6.0).view(6, 1), torch.arange(6)), global_batch=6, shuffle=False)
    features, labels = data.load(1, 1, 2)
    assert features.tolist() == [[3.0], [4.0], [5.0]] and labels.tolist() == [3, 4, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_without_samples_has_no_batch(workers: int) -> None:
    with Data(Plain(6), global_batch=4, num_workers=workers) as data:
        data.expect([(2, shard) for shard in range(4)], 4)
        batches = [data.load(2, shard, 4) for shard in range(4)]
    assert [None if batch is None else len(batch) for batch in batches] == [1, 1, None, None]


def test_loading_leaves_the_randomness_of_the_trainer_alone() -> None:
    data = Data(Noisy(8), global_batch=8)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    data.load(1, 0, 1)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    data.load(1, 0, 1, keep_randomness=False)
    assert not torch.equal(before[0], torch.get_rng_state())


@pytest.mark.parametrize("length", [7, 9])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_changes_its_length_is_an_error(length: int, workers: int) -> None:
    dataset = Plain(8)
    with Data(dataset, global_batch=4, num_workers=workers) as data:
        data.load(1, 0, 1)
        dataset.length = length
        with pytest.raises(DatasetChanged, match=f"At step 2 the dataset has {length} samples.* had 8"):
            data.load(2, 0, 1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [IndexError("gone"), KeyError("label"), Stubborn("this", "that")])
def test_an_error_of_the_dataset_names_step_shard_and_sample(workers: int, error: Exception) -> None:
    dataset = Unlucky(8, bad=5, what=error)
    with Data(dataset, global_batch=4, shuffle=False, num_workers=workers) as data:
        data.load(1, 0, 2)
        with pytest.raises(
            SampleFailed, match="step 2, shard 0 of 2: the dataset raised on sample 5"
        ) as caught:
            data.load(2, 0, 2)
        # One bad sample does not end the loading of the others.
        assert data.load(2, 1, 2).tolist() == [6, 7]
    cause = caught.value.__cause__
    assert str(error) in str(cause)
    if workers == 0:
        assert cause is error
    else:
        assert isinstance(error, Stubborn) or type(cause) is type(error)
        assert "in __getitem__" in "".join(cause.__notes__)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_collate_fn_names_the_samples(workers: int) -> None:
    def collate(samples: list[int]) -> None:
        raise ValueError("shapes differ")

    data = Data(Plain(8), global_batch=8, shuffle=False, collate_fn=collate, num_workers=workers)
    with data, pytest.raises(SampleFailed, match=r"collate_fn raised on samples 0, 1, 2, 3, … \(8 in all\)"):
        data.load(1, 0, 1)


def test_the_state_brings_the_cursor_back() -> None:
    data = Data(Plain(8), global_batch=4, seed=3)
    data.completed_steps = 17
    other = Data(Plain(8), global_batch=4, seed=3)
    other.load_state_dict(data.state_dict())
    assert other.completed_steps == 17
    assert all(type(value) in (int, bool) for value in data.state_dict().values())


@pytest.mark.parametrize(
    ("field", "saved", "here"),
    [
        ("length", Data(Plain(9), global_batch=4), "8"),
        ("global_batch", Data(Plain(8), global_batch=2), "4"),
        ("seed", Data(Plain(8), global_batch=4, seed=5), "0"),
        ("shuffle", Data(Plain(8), global_batch=4, shuffle=False), "True"),
        ("drop_last", Data(Plain(8), global_batch=4, drop_last=True), "False"),
    ],
)
def test_a_state_of_another_sequence_is_refused(field: str, saved: Data, here: str) -> None:
    data = Data(Plain(8), global_batch=4)
    state = saved.state_dict()
    with pytest.raises(ConfigError, match=f"{field} = {state[field]}, but this one has {field} = {here}"):
        data.load_state_dict(state)
    assert data.completed_steps == 0


def test_a_state_with_other_fields_is_refused() -> None:
    data = Data(Plain(8), global_batch=4)
    with pytest.raises(ConfigError, match="extra"):
        data.load_state_dict({**data.state_dict(), "extra": 1})


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class Unmeasured:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "settings", "words"),
    [
        (Endless(), {}, "Endless, which cannot be asked"),
        (Unmeasured(), {}, "Unmeasured, which has no length"),
        (Plain(0), {}, "empty"),
        (Plain(1), {"num_workers": -1}, "num_workers = -1"),
        (Plain(1), {"prefetch": 0}, "prefetch = 0"),
        (Plain(1), {"prefetch": 65}, "prefetch = 65"),
    ],
)
def test_what_cannot_work_is_said_at_once(dataset: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Data(dataset, global_batch=1, **settings)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (
            {"batch_size": 8},
            r"no batch_size=8: use global_batch=…, which is the number of samples of a step over all",
        ),
        ({}, r"needs global_batch=…: the number of samples of a step over all replicas"),
        ({"global_batch": 8, "sampler": None}, "no sampler=None: the number of a step says"),
        (
            {"global_batch": 8, "batch_sise": 3},
            "no argument 'batch_sise'; it has global_batch, seed, shuffle",
        ),
    ],
)
def test_arguments_of_a_loader_are_answered_with_ours(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Data(list(range(10)), **arguments)


def test_a_loader_is_not_a_dataset() -> None:
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"outlast\.Data\(loader\.dataset, global_batch=4 \* replicas"):
        Data(loader, global_batch=4)  # type: ignore[arg-type]
