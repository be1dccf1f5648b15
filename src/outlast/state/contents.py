"""The table of contents of a training state: what each tensor is, and where it lies in one space of bytes.

A snapshot of ten thousand small tensors should not be ten thousand messages, and one of two huge tensors
should not be two. So all tensors are laid out one after the other in a virtual space of bytes, each at a
multiple of 64, and what moves or is stored are ranges of that space. A large tensor begins a page, so that a
disk can read it straight to its place (in images of version 1, which are still read, it did not).

The `Image` says everything but the bytes, and two members that hold the same state make the same image, down
to the last byte of its encoding. A decoded image is checked until nothing is left to trust: the layout must
be the one that `image.describe` would have made. Nothing here needs torch, so that a command that lists
checkpoints does not wait for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import msgspec

from outlast.errors import ConfigError, ProtocolError
from outlast.state.nodes import MAX_PLAIN_BYTES, malformed

VERSION = 2
VERSIONS = (1, 2)
"""Those that are read."""
ALIGNMENT_BYTES = 64
"""A cache line; also a multiple of every element size, without which a view by dtype is not allowed."""
PAGE_BYTES = 4 << 10
LARGE_BYTES = 256 << 10
"""Tensors of so many bytes begin a page."""

PIECE_BYTES = 8 << 20
MAX_TOTAL_BYTES = 1 << 46
MAX_IMAGE_BYTES = 2 * MAX_PLAIN_BYTES
MAX_DIMENSIONS = 64

ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
}
"""The dtypes that a tensor of the state may have, by torch's names for them, and the size of an element."""


class Entry(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One tensor: what it is called, what it is, and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class Image(msgspec.Struct, tag="outlast-image", frozen=True, forbid_unknown_fields=True):
    """The table of contents of a training state; see the top of this file."""

    version: int
    entries: tuple[Entry, ...]
    total_bytes: int
    plain: bytes
    """The state without its tensors, as `nodes.encode` made it."""
    structure: bytes
    """What a program must have in common with this state to load it, as `structure` made it."""

    @property
    def digest_of_structure(self) -> str:
        """The same for two states that differ in values only: those of tensors, and plain ones."""
        return _digest((self.version, self.entries, self.structure))

    @property
    def digest(self) -> str:
        """The same for all members that can serve pieces of one snapshot: all but the tensors' bytes."""
        return _digest(self)


def lay_out(parts: Sequence[tuple[str, str, tuple[int, ...]]], plain: bytes, structure: bytes) -> Image:
    """The image of tensors that have these names, dtypes and shapes, in the order given."""
    entries = _laid_out(parts, VERSION)
    return Image(VERSION, entries, _total_bytes(entries), plain, structure)


def encode_image(image: Image) -> bytes:
    encoded = msgspec.msgpack.encode(image)
    if len(encoded) > MAX_IMAGE_BYTES:
        raise ConfigError(
            f"The description of the state's {len(image.entries)} tensors has {len(encoded)} bytes, over the "
            f"limit of {MAX_IMAGE_BYTES}. Keep fewer and larger tensors in what you hand over as state."
        )
    return encoded


def decode_image(encoded: bytes) -> Image:
    """The image, or ProtocolError."""
    if len(encoded) > MAX_IMAGE_BYTES:
        raise ProtocolError(f"an image of {len(encoded)} bytes is over the limit of {MAX_IMAGE_BYTES}")
    try:
        image = _decoder.decode(encoded)
    except Exception as error:
        # As everywhere that strangers' bytes are decoded, no error of another type may escape.
        raise malformed("image", error) from error
    check_image(image)
    return image


def check_image(image: Image) -> None:
    """Raises ProtocolError for an image that no `describe` can have made."""
    if image.version not in VERSIONS:
        raise ProtocolError(f"the image has version {image.version}; this program reads versions {VERSIONS}")
    for entry in image.entries:
        _check(entry)
    layout = _laid_out([(entry.name, entry.dtype, entry.shape) for entry in image.entries], image.version)
    if image.entries != layout or image.total_bytes != _total_bytes(layout):
        raise ProtocolError("the image's offsets are not those that its tensors have")
    if image.total_bytes > MAX_TOTAL_BYTES:
        raise ProtocolError(f"an image of {image.total_bytes} bytes is over the limit of {MAX_TOTAL_BYTES}")


def pieces(total_bytes: int, piece_bytes: int = PIECE_BYTES) -> list[range]:
    """The ranges of bytes that travel by themselves; all of them have `piece_bytes`, except for the last."""
    if piece_bytes < 1:
        raise ConfigError(f"piece_bytes = {piece_bytes}: a piece needs at least one byte.")
    return [range(lo, min(lo + piece_bytes, total_bytes)) for lo in range(0, total_bytes, piece_bytes)]


_decoder = msgspec.msgpack.Decoder(Image)


def _laid_out(parts: Sequence[tuple[str, str, tuple[int, ...]]], version: int) -> tuple[Entry, ...]:
    entries = []
    end = 0
    for name, dtype, shape in parts:
        size_bytes = math.prod(shape) * ITEM_BYTES[dtype]
        begins_page = version > 1 and size_bytes >= LARGE_BYTES
        offset = _aligned(end, PAGE_BYTES if begins_page else ALIGNMENT_BYTES)
        entries.append(Entry(name, dtype, shape, offset, size_bytes))
        end = offset + size_bytes
    return tuple(entries)


def _total_bytes(entries: tuple[Entry, ...]) -> int:
    return _aligned(entries[-1].end) if entries else 0


def _aligned(offset: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    return -(-offset // alignment_bytes) * alignment_bytes


def _check(entry: Entry) -> None:
    """What `_laid_out` and torch take for granted. Empty tensors are measured, too, by their strides."""
    if entry.dtype not in ITEM_BYTES:
        raise ProtocolError(f"there is no dtype {entry.dtype[:40]!r}")
    if len(entry.shape) > MAX_DIMENSIONS or min(entry.shape, default=0) < 0:
        raise ProtocolError("the image has a tensor of an impossible shape")
    if math.prod(max(1, size) for size in entry.shape) > MAX_TOTAL_BYTES:
        raise ProtocolError("the image has a tensor of an impossible size")


def _digest(value: object) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=32).hexdigest()
