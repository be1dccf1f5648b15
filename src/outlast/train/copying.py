"""A copy of some of the training state, made while the next step computes.

The state after step k does not change during the forward and backward passes of step k + 1: parameters and
optimizer state are written by the script's own update, after the step's record is there. So the training
thread only notes what there is (`ShareCopy`), goes on to compute, and a thread of its own copies meanwhile.
Before the update the training thread comes back (`settle`), helps with what is left, and is held for no
longer than that.

What a forward pass may change is copied before it begins: whatever the script handed over as `state`, and
modules' own extra state. Buffers are not live tensors here but those that the step began with. And nothing is
believed: a tensor that was written to while it was being copied is known by its version, and makes the whole
copy void.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from outlast import locks
from outlast.errors import CheckpointError
from outlast.mesh.memory import bytes_of
from outlast.state.contents import Image
from outlast.state.image import copy_piece, fresh_memory

PAGE_BYTES = mmap.PAGESIZE


class Place(Protocol):
    """Where a copy is made."""

    def parts(self, sizes: Sequence[int]) -> list[Tensor]:
        """A part for each size."""
        ...


class Room:
    """Memory that copies are made into, used again by the next one if it is large enough. What is in it can
    go to a disk without being copied again, since each part begins a page."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def parts(self, sizes: Sequence[int]) -> list[Tensor]:
        """A part for each size, one after the other, each at the beginning of a page."""
        starts, total = [], 0
        for size in sizes:
            starts.append(total)
            total += -(-size // PAGE_BYTES) * PAGE_BYTES
        if self._memory.numel() < total:
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = torch.frombuffer(fresh_memory(total), dtype=torch.uint8)
        return [self._memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]


class ShareCopy:
    """The ranges `mine` of a state's space of bytes, on their way from live tensors into `room`."""

    def __init__(
        self,
        image: Image,
        tensors: Sequence[Tensor],
        mine: Sequence[range],
        room: Place,
        *,
        lasting: Callable[[Tensor], bool],
    ) -> None:
        """`lasting` says which tensors stay as they are until `settle`; the rest is copied here and now."""
        self.image = image
        self._tensors = tensors
        self._ranges = list(mine)
        self._parts = room.parts([len(piece) for piece in mine])
        self._changed = locks.Monitor("copying")
        self._next = 0
        self._copied = [False] * len(mine)
        self._void = ""
        self._versions = [(tensor, tensor._version) for tensor in tensors if _counts_writes(tensor)]
        self._settled = False
        self.worked_s = 0.0
        """CPU time that copying took, in a thread of its own."""
        fleeting = [
            range(entry.offset, entry.end)
            for entry, tensor in zip(image.entries, tensors, strict=True)
            if entry.size_bytes and not lasting(tensor)
        ]
        for index in [i for i, piece in enumerate(mine) if any(_overlap(piece, one) for one in fleeting)]:
            self._copy(index)
        self._thread = threading.Thread(target=self._work_beside, name="outlast-copy", daemon=True)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._ranges))

    @property
    def void(self) -> str:
        """Why it cannot be used; empty if it can."""
        return self._void

    def start(self) -> None:
        """Copy the rest in a thread of its own."""
        if not all(self._copied):
            self._thread.start()

    def settle(self) -> None:
        """Return when everything is copied: from here on the tensors may change. For the training thread."""
        if self._settled:
            return
        try:
            self._work()
            with self._changed:
                self._changed.wait_for(lambda: all(self._copied) or bool(self._void))
            torn = [tensor for tensor, version in self._versions if tensor._version != version]
            if torn:
                self.give_up(
                    f"{len(torn)} tensors of the training state were changed between two steps' updates, the "
                    f"first of shape {tuple(torn[0].shape)}: change the state after the loop over the shards"
                )
        finally:
            # The live tensors are let go; what is left are the bytes.
            self._tensors, self._versions = (), []
            with self._changed:
                self._settled = True
                self._changed.notify_all()

    def give_up(self, reason: str) -> None:
        with self._changed:
            self._void = self._void or reason
            self._changed.notify_all()

    def parts(self) -> Iterator[tuple[range, memoryview]]:
        """Each range with its bytes, once the whole is settled: before that, hashing and writing would only
        compete with the copying, which the training thread may be waiting for. For whoever writes them."""
        self._confirm()
        for piece, part in zip(self._ranges, self._parts, strict=True):
            yield piece, bytes_of(part)

    def _confirm(self) -> None:
        """Wait until it is known that the copy is of one moment. CheckpointError if it is not."""
        with self._changed:
            self._changed.wait_for(lambda: self._settled or bool(self._void))
            self._refuse_void()

    def _refuse_void(self) -> None:
        if self._void:
            raise CheckpointError(self._void)

    def _work_beside(self) -> None:
        begun_s = time.thread_time()
        self._work()
        self.worked_s = time.thread_time() - begun_s

    def _work(self) -> None:
        """Copy what nobody has begun. In whichever thread has time; both may."""
        while True:
            with self._changed:
                while self._next < len(self._ranges) and self._copied[self._next]:
                    self._next += 1
                if self._next == len(self._ranges) or self._void:
                    return
                index = self._next
                self._next += 1
            try:
                self._copy(index)
            except Exception as error:
                self.give_up(f"the training state could not be copied: {error}")
                return

    def _copy(self, index: int) -> None:
        copy_piece(self.image, self._tensors, self._ranges[index], self._parts[index])
        with self._changed:
            self._copied[index] = True
            self._changed.notify_all()


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _counts_writes(tensor: Tensor) -> bool:
    return not tensor.is_inference()
