"""How a batch travels from a worker to the trainer.

`torch.multiprocessing` sends a tensor by sharing its memory: nothing is copied, but for each tensor the
trainer dials the worker and is handed a file descriptor, which takes most of a millisecond and one of the
trainer's descriptors. For a large tensor that is a bargain. A small one is copied through the pipe here, in
a few microseconds, which matters since it is the training loop that waits.

This is only ever used between a process and the child that it forked from itself; it makes and rebuilds any
Python object, which is nothing to do with bytes from elsewhere.
"""

from __future__ import annotations

import ctypes
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

# Imported for what it does: it teaches ForkingPickler to share the memory of tensors.
import torch.multiprocessing

SMALL_BYTES = 1 << 16
"""Up to here a copy is cheaper than a descriptor, and a few of them fit into a pipe that nobody reads yet."""


class _Packer(ForkingPickler):
    def reducer_override(self, obj: Any) -> Any:
        """Asked for each object in turn; NotImplemented leaves it to what is usual for its kind."""
        if type(obj) is not torch.Tensor or not _is_small_and_plain(obj):
            return NotImplemented
        content = ctypes.string_at(obj.data_ptr(), obj.nbytes)
        return _rebuild, (content, obj.dtype, tuple(obj.shape))


def pack(message: object) -> memoryview:
    return memoryview(_Packer.dumps(message))


def unpack(packed: bytes | memoryview) -> Any:
    return ForkingPickler.loads(packed)


def _is_small_and_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and 0 < tensor.nbytes <= SMALL_BYTES
        and tensor.is_contiguous()
        # Parts of one memory stay connected with each other. One that is the whole of it travels alone, so
        # its connection with parts of it, in the same batch, is lost: equal values, separate memory.
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _rebuild(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    # By way of a bytearray, because the tensor is the user's, to be written to.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).view(shape)
