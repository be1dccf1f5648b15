import pytest
import torch

from bench.byzantine_data import CLASSES, DATASETS, gamma_similar, load

LABELS = torch.arange(1000) % CLASSES


def split(gamma: float, seed: int = 0) -> list[torch.Tensor]:
    return gamma_similar(LABELS, 10, gamma, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("gamma", [0.0, 0.33, 1.0])
def test_every_sample_is_held_by_one_worker(gamma: float) -> None:
    held = split(gamma)
    assert [len(part) for part in held] == pytest.approx([100] * 10, abs=1)
    assert sorted(torch.cat(held).tolist()) == list(range(1000))


def test_without_similarity_each_worker_knows_one_label() -> None:
    assert [set(LABELS[part].tolist()) for part in split(0.0)] == [{label} for label in range(10)]


def test_with_full_similarity_all_know_all_labels() -> None:
    assert all(len(set(LABELS[part].tolist())) == CLASSES for part in split(1.0))


def test_gamma_is_the_share_that_is_dealt_at_random() -> None:
    # Two thirds have the worker's own label, and about a tenth of the remaining third.
    for label, part in enumerate(split(0.33)):
        own = (LABELS[part] == label).double().mean().item()
        assert 0.6 < own < 0.8
        assert len(set(LABELS[part].tolist())) > 5


def test_the_seed_decides_who_holds_what() -> None:
    assert all(torch.equal(a, b) for a, b in zip(split(0.33), split(0.33), strict=True))
    assert not torch.equal(split(0.33)[0], split(0.33, seed=1)[0])


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_has_all_labels_in_all_parts_and_no_sample_in_two(name: str) -> None:
    data = load(name)
    for inputs, labels in (data.train, data.validation, data.test):
        assert len(inputs) == len(labels)
        assert set(labels.tolist()) == set(range(CLASSES))
    whole = torch.cat([data.train[0], data.validation[0], data.test[0]])
    assert len(whole.unique(dim=0)) == len(whole)
