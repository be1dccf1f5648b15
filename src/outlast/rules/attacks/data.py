"""Faults in the data."""

from __future__ import annotations

from torch import Tensor


def flip_labels(labels: Tensor, classes: int) -> Tensor:
    """Class k becomes class (classes - 1 - k): a transform of a data set's labels, not of updates.

    Paper: Tolpegin, Truex, Gursoy, Liu: Data Poisoning Attacks Against Federated Learning Systems. ESORICS
    2020.
    """
    return classes - 1 - labels
