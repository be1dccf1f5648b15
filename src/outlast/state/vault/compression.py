"""Chunks with zstd, after a byte shuffle: optional, and only where it pays.

Floating-point numbers hardly compress, for their low bits are noise. Their signs and exponents do, once they
stand side by side: all first bytes of the elements, then all second ones, and so on. How wide an element is
follows from a sample, not from the dtype, since a chunk may hold several tensors.

A compressed chunk is one byte, the width, and a zstd frame. What comes out is written into memory of a known
size and nowhere else, whatever the frame says about itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from outlast.errors import ConfigError

LEVEL = 1
WIDTHS = (4, 2, 1)
WORTH_IT = 0.95
_SAMPLE_BYTES = 64 << 10


def require_zstd() -> None:
    """ConfigError where there is no zstd, for whoever wants to know before the first save."""
    _zstandard()


def compressed(data: memoryview) -> bytes | None:
    """The compressed form; None if it is hardly smaller."""
    width = _best_width(data)
    packed: bytes = _zstandard().ZstdCompressor(level=LEVEL).compress(_shuffled(data, width))
    if len(packed) + 1 > WORTH_IT * data.nbytes:
        return None
    return bytes((width,)) + packed


def decompress(packed: bytes, out: memoryview) -> bool:
    """Fill `out` with what `packed` holds; False if it does not hold exactly that."""
    width = packed[0] if packed else 0
    if width not in WIDTHS:
        return False
    shuffled = bytearray(out.nbytes)
    zstandard = _zstandard()
    try:
        with zstandard.ZstdDecompressor().stream_reader(memoryview(packed)[1:]) as reader:
            filled = 0
            while filled < len(shuffled):
                count = reader.readinto(memoryview(shuffled)[filled:])
                if not count:
                    return False
                filled += count
            if reader.read(1):
                return False
    except zstandard.ZstdError:
        return False
    _unshuffle(shuffled, width, out)
    return True


def _zstandard() -> Any:
    try:
        return import_module("zstandard")
    except ImportError as error:
        raise ConfigError(
            'Compressed checkpoints need zstandard, which is not installed: pip install "outlast[zstd]".'
        ) from error


def _best_width(data: memoryview) -> int:
    # A sample from the middle, at a multiple of every width.
    start = max(0, data.nbytes - _SAMPLE_BYTES) // 2 // 64 * 64
    sample = bytes(data[start : start + _SAMPLE_BYTES])
    compressor = _zstandard().ZstdCompressor(level=LEVEL)

    def packed_bytes(width: int) -> int:
        # Plane by plane: in a sample this small, zstd would take all of them for one kind of bytes.
        return sum(len(compressor.compress(sample[plane::width])) for plane in range(width))

    return min(WIDTHS, key=packed_bytes)


def _shuffled(data: memoryview, width: int) -> Any:
    """What is left over at the end, less than one element, stays as it is."""
    if width == 1:
        return data
    import torch

    whole = data.nbytes // width * width
    result = bytearray(data.nbytes)
    if whole:
        # torch wants memory that can be written to, though it only reads.
        source = data if not data.readonly else memoryview(bytearray(data))
        elements = torch.frombuffer(source, dtype=torch.uint8, count=whole).view(-1, width)
        torch.frombuffer(result, dtype=torch.uint8, count=whole).view(width, -1).copy_(elements.t())
    result[whole:] = data[whole:]
    return result


def _unshuffle(shuffled: bytearray, width: int, out: memoryview) -> None:
    if width == 1:
        out[:] = shuffled
        return
    import torch

    whole = len(shuffled) // width * width
    if whole:
        planes = torch.frombuffer(shuffled, dtype=torch.uint8, count=whole).view(width, -1)
        torch.frombuffer(out, dtype=torch.uint8, count=whole).view(-1, width).copy_(planes.t())
    out[whole:] = memoryview(shuffled)[whole:]
