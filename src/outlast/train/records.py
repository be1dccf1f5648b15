"""Records: the results of steps, kept for those who lack them.

A record is immutable from the moment it exists. Whoever sends one keeps it alive by a reference, so its
vector is used again only when the last frame that was made of it has left.
"""

from __future__ import annotations

import weakref

from torch import Tensor

from outlast.mesh.memory import bytes_of
from outlast.protocol.kinds import SHARES, RecordNote
from outlast.train.flats import FlatPool


class Record:
    """The sum of all shards' gradients and buffers, times their weights, and what belongs to it."""

    def __init__(self, step: int, vector: Tensor, note: RecordNote, pool: FlatPool) -> None:
        self.step = step
        self.vector = vector
        self.note = note
        weakref.finalize(self, pool.give_back, vector)

    @property
    def mask(self) -> int:
        return int.from_bytes(self.note.mask, "little")


def share(vector: Tensor, index: int) -> memoryview:
    """One of the `SHARES` parts in which a record travels."""
    size = vector.numel()
    return bytes_of(vector[size * index // SHARES : size * (index + 1) // SHARES])
