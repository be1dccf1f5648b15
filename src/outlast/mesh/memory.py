"""A tensor's own memory as bytes: what sockets read from and write to, without a copy in between."""

import ctypes

from torch import Tensor


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, writable; the tensor lives as long as they do."""
    assert tensor.is_contiguous() and tensor.device.type == "cpu", "only contiguous host memory has bytes"
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    array.keep = tensor  # type: ignore[attr-defined]
    return memoryview(array).cast("B")
