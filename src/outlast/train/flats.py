"""The flat vectors of one replica: taken, shared for a while, and used again.

A flat vector is as large as the model, so how many there are decides how much memory a replica needs, and
allocating one in every step would cost more than filling it. But one that is still on its way to a peer must
not be written to. So each has a number of holders: `take` makes the first, whoever sends from it adds itself
with `hold`, and when the last of them has called `give_back`, it is free for the next `take`.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class Lease:
    """Somebody reads from a vector; when this is gone, nobody does."""

    __slots__ = ("_flat", "_pool")

    def __init__(self, pool: FlatPool, flat: Tensor) -> None:
        self._pool = pool
        self._flat = flat

    def __del__(self) -> None:
        self._pool.give_back(self._flat)


class FlatPool:
    """Any thread may call anything."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._size = size
        self._dtype = dtype
        # A finalizer may give a vector back at any time, also in the middle of another call.
        self._lock = threading.RLock()
        self._holders: dict[int, int] = {}
        # Last in, first out: the one used most recently is the one most likely to be in the cache.
        self._free: list[Tensor] = []
        self.allocated = 0

    def take(self) -> Tensor:
        """A free vector with arbitrary content."""
        with self._lock:
            if self._free:
                flat = self._free.pop()
            else:
                flat = torch.empty(self._size, dtype=self._dtype)
                self.allocated += 1
            self._holders[id(flat)] = 1
            return flat

    def hold(self, flat: Tensor) -> None:
        """Keep a vector from being used again until one more `give_back`."""
        with self._lock:
            self._holders[id(flat)] += 1

    def lease(self, flat: Tensor) -> Lease:
        """Hold a vector for as long as the lease exists: for a frame that is sent from it."""
        self.hold(flat)
        return Lease(self, flat)

    def give_back(self, flat: Tensor) -> None:
        with self._lock:
            left = self._holders[id(flat)] - 1
            if left:
                self._holders[id(flat)] = left
            else:
                del self._holders[id(flat)]
                self._free.append(flat)
