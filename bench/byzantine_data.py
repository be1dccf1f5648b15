"""The data that honest workers learn from, and who holds which part of it.

Both sets come without a download: scikit-learn brings `digits` along, and `mnist1d` is drawn anew by its own
generator, with its own parameters. Sets for validation and test are held by nobody.

Inputs are standardised. The signals of `mnist1d` are shifted at random, and a perceptron that sees them as
they are reads half of them at best, attacked or not. So it sees the maxima of fixed random convolutions: a
small convolutional network whose first layer stays as it was drawn.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

CLASSES = 10
KERNEL_LENGTHS = (5, 7, 9)
KERNEL_DILATIONS = (1, 2, 3, 4)
KERNELS_OF_EACH = 20
FLAT = 0.05
"""Inputs that vary less are as good as constant, such as a picture's corners."""
DATASETS = ("digits", "mnist1d")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load(name: str) -> Dataset:
    inputs, labels, train, validation = {"digits": _digits, "mnist1d": _mnist1d}[name]()
    # The order is the same on every machine and in every run: only what is done with the data differs.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs, labels = inputs[order].float(), labels[order].long()
    ends = (0, train, train + validation, len(labels))
    inputs = (inputs - inputs[:train].mean(0)) / inputs[:train].std(0).clamp(min=FLAT)
    parts = [(inputs[begin:end], labels[begin:end]) for begin, end in pairwise(ends)]
    return Dataset(train=parts[0], validation=parts[1], test=parts[2])


def gamma_similar(labels: Tensor, workers: int, gamma: float, generator: torch.Generator) -> list[Tensor]:
    """Which samples each worker holds: a share gamma of all is dealt out at random, and the rest by label.

    With gamma = 1 everybody's data is alike; with gamma = 0 each has seen one or two labels of ten.
    """
    order = torch.randperm(len(labels), generator=generator)
    alike = int(gamma * len(labels))
    rest = order[alike:]
    by_label = rest[labels[rest].argsort(stable=True)]
    dealt, sorted_ = order[:alike].tensor_split(workers), by_label.tensor_split(workers)
    return [torch.cat(pair) for pair in zip(dealt, sorted_, strict=True)]


def _digits() -> tuple[Tensor, Tensor, int, int]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.from_numpy(digits.data) / 16, torch.from_numpy(digits.target), 1000, 300


def _mnist1d() -> tuple[Tensor, Tensor, int, int]:
    from mnist1d.data import get_dataset_args, make_dataset

    # As large a training set as the published one, and a larger test set, since a point is 10 of 1,000.
    args = get_dataset_args()
    args.num_samples, args.train_split = 8000, 1.0
    made = make_dataset(args)
    return _convolved(torch.from_numpy(made["x"]).float()), torch.from_numpy(made["y"]), 4000, 1000


def _convolved(signals: Tensor) -> Tensor:
    """What random kernels of several lengths and dilations find in each signal, wherever they find it."""
    generator = torch.Generator().manual_seed(0)
    signals = (signals - signals.mean(1, keepdim=True)) / signals.std(1, keepdim=True)
    found = []
    for length in KERNEL_LENGTHS:
        for dilation in KERNEL_DILATIONS:
            kernels = torch.randn(KERNELS_OF_EACH, 1, length, generator=generator)
            kernels -= kernels.mean(2, keepdim=True)
            found.append(F.conv1d(signals[:, None], kernels, padding="same", dilation=dilation).amax(2))
    return torch.cat(found, dim=1)
