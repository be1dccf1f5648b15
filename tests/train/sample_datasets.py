"""Datasets that the tests of data loading share."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import torch


class Noisy:
    """Each sample holds its index, and draws from every generator that user code may draw from."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "noise": (torch.randn(3), [random.random(), float(np.random.rand())]),
            "name": f"sample {index}",
        }


class NoisyMany(Noisy):
    """The same, fetched many at a time."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class Plain:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Unlucky(Plain):
    """One sample raises, or kills whoever asks for it."""

    def __init__(self, length: int, bad: int, what: Exception | int) -> None:
        super().__init__(length)
        self.bad = bad
        self.what = what

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            if isinstance(self.what, Exception):
                raise self.what
            os.kill(os.getpid(), self.what)
            signal.pause()
        return index


class Stubborn(Exception):
    """Cannot be rebuilt from its arguments, as many errors of libraries cannot."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
