"""Where each tensor of a training state lies in one space of bytes, and how that space moves in pieces.

A snapshot of ten thousand small tensors should not be ten thousand messages, and one of two huge tensors
should not be two. So all tensors are laid out one after the other in a virtual space of bytes, each at a
multiple of 64, and the space is cut into pieces of equal size without regard to where tensors begin. A piece
is what travels, what is striped over members and what is asked for again. Nobody allocates the space on the
sending side: `copy_piece` fills one piece straight from the live tensors. On the receiving side an `Assembly`
is that space: bytes are received into their final place, and the tensors are views into it.

The `Image` is the table of contents. It says everything but the bytes, and two members that hold the same
state make the same image, down to the last byte of its encoding. A decoded image is checked until nothing is
left to trust: the layout must be the one that `describe` would have made.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from outlast.errors import ConfigError, ProtocolError
from outlast.state.nodes import DTYPES, MAX_PLAIN_BYTES, malformed

VERSION = 1
ALIGNMENT_BYTES = 64
"""A cache line; also a multiple of every element size, without which a view by dtype is not allowed."""

PIECE_BYTES = 8 << 20
MAX_TOTAL_BYTES = 1 << 46
MAX_IMAGE_BYTES = 2 * MAX_PLAIN_BYTES
MAX_DIMENSIONS = 64


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


def describe(names: Sequence[str], tensors: Sequence[Tensor], plain: bytes, structure: bytes) -> Image:
    """Lay out `tensors`, which are only looked at, in the order given."""
    parts = [
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in zip(names, tensors, strict=True)
    ]
    entries = _laid_out(parts)
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
    if image.version != VERSION:
        raise ProtocolError(f"the image has version {image.version}; this program reads version {VERSION}")
    for entry in image.entries:
        _check(entry)
    layout = _laid_out([(entry.name, entry.dtype, entry.shape) for entry in image.entries])
    if image.entries != layout or image.total_bytes != _total_bytes(layout):
        raise ProtocolError("the image's offsets are not those that its tensors have")
    if image.total_bytes > MAX_TOTAL_BYTES:
        raise ProtocolError(f"an image of {image.total_bytes} bytes is over the limit of {MAX_TOTAL_BYTES}")
    return image


def pieces(total_bytes: int, piece_bytes: int = PIECE_BYTES) -> list[range]:
    """The ranges of bytes that travel by themselves; all of them have `piece_bytes`, except for the last."""
    if piece_bytes < 1:
        raise ConfigError(f"piece_bytes = {piece_bytes}: a piece needs at least one byte.")
    return [range(lo, min(lo + piece_bytes, total_bytes)) for lo in range(0, total_bytes, piece_bytes)]


def copy_piece(image: Image, tensors: Sequence[Tensor], piece: range, out: memoryview | Tensor) -> None:
    """Fill `out`, which has the length of `piece`, with the bytes of that range; padding is zero.

    Contiguous tensors in host memory are copied once, straight to their place. Of others, only the rows that
    the piece touches are made contiguous or brought over from their device.
    """
    target = out if isinstance(out, Tensor) else _as_tensor(out)
    if target.numel() != len(piece) or target.dtype != torch.uint8:
        raise ValueError(f"a piece of {len(piece)} bytes needs room for as many, not for {target.numel()}")
    if len(tensors) != len(image.entries):
        raise ValueError(f"the image has {len(image.entries)} tensors, not {len(tensors)}")
    done = piece.start
    first = max(0, bisect_right(image.entries, piece.start, key=lambda entry: entry.offset) - 1)
    for index in range(first, len(image.entries)):
        entry = image.entries[index]
        if entry.offset >= piece.stop:
            break
        lo, hi = max(entry.offset, piece.start), min(entry.end, piece.stop)
        if lo >= hi:
            continue
        if done < lo:
            target[done - piece.start : lo - piece.start].zero_()
        source = _bytes_of(tensors[index], entry, lo - entry.offset, hi - entry.offset)
        target[lo - piece.start : hi - piece.start].copy_(source)
        done = hi
    target[done - piece.start :].zero_()


class Assembly:
    """The receiver's side of an image: one space of bytes that pieces are received into, in any order.

    Different threads may fill different slots and note them; noting one twice is harmless.
    """

    def __init__(self, image: Image, piece_bytes: int = PIECE_BYTES) -> None:
        self.image = image
        self.pieces = pieces(image.total_bytes, piece_bytes)
        self._arrived = bytearray(len(self.pieces))
        self._space = _anonymous_memory(max(1, image.total_bytes))
        self._flat = torch.frombuffer(self._space, dtype=torch.uint8)

    def slot(self, index: int) -> memoryview:
        """Where the bytes of a piece belong: receive into it, then `note` the piece."""
        piece = self.pieces[index]
        return memoryview(self._space)[piece.start : piece.stop]

    def note(self, index: int) -> None:
        """The slot of this piece is filled."""
        self._arrived[index] = 1

    def missing(self) -> list[int]:
        return [index for index, arrived in enumerate(self._arrived) if not arrived]

    @property
    def complete(self) -> bool:
        return 0 not in self._arrived

    def tensors(self) -> list[Tensor]:
        """All tensors, as views into the space: nothing is copied, and they keep the space alive."""
        if not self.complete:
            raise ValueError(f"the pieces {self.missing()[:8]} … have not arrived yet")
        return [
            self._flat[entry.offset : entry.end].view(DTYPES[entry.dtype]).view(entry.shape)
            if entry.size_bytes
            else torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
            for entry in self.image.entries
        ]


_decoder = msgspec.msgpack.Decoder(Image)


def _laid_out(parts: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[Entry, ...]:
    entries = []
    offset = 0
    for name, dtype, shape in parts:
        size_bytes = math.prod(shape) * DTYPES[dtype].itemsize
        entries.append(Entry(name, dtype, shape, offset, size_bytes))
        offset = _aligned(offset + size_bytes)
    return tuple(entries)


def _total_bytes(entries: tuple[Entry, ...]) -> int:
    return _aligned(entries[-1].end) if entries else 0


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _check(entry: Entry) -> None:
    """What `_laid_out` and torch take for granted. Empty tensors are measured, too, by their strides."""
    if entry.dtype not in DTYPES:
        raise ProtocolError(f"this torch cannot hold a tensor of dtype {entry.dtype[:40]!r}")
    if len(entry.shape) > MAX_DIMENSIONS or min(entry.shape, default=0) < 0:
        raise ProtocolError("the image has a tensor of an impossible shape")
    if math.prod(max(1, size) for size in entry.shape) > MAX_TOTAL_BYTES:
        raise ProtocolError("the image has a tensor of an impossible size")


def _bytes_of(tensor: Tensor, entry: Entry, lo: int, hi: int) -> Tensor:
    """The bytes from `lo` to `hi` of a tensor's values in their logical order, on the CPU."""
    if str(tensor.dtype) != f"torch.{entry.dtype}" or tuple(tensor.shape) != entry.shape:
        raise ValueError(f"{entry.name} is {tensor.dtype} {tuple(tensor.shape)} now, unlike in its image")
    rows = tensor.detach()
    if rows.is_contiguous():
        rows = rows.view(-1)
    elif rows.dim() == 0:
        rows = rows.reshape(1)
    row_bytes = entry.size_bytes // rows.shape[0]
    first, last = lo // row_bytes, -(-hi // row_bytes)
    part = rows[first:last]
    if part.is_conj() or part.is_neg():
        # The sign is in a flag, which a view as bytes would lose.
        part = part.resolve_conj().resolve_neg()
    part = part.cpu().contiguous().view(-1)
    if part.stride(0) != 1:
        # A single element is contiguous by any stride, but can be seen as bytes by one only.
        part = part.clone(memory_format=torch.contiguous_format)
    return part.view(torch.uint8)[lo - first * row_bytes : hi - first * row_bytes]


def _as_tensor(out: memoryview) -> Tensor:
    if out.readonly:
        raise ValueError("a piece cannot be copied into read-only memory")
    # Torch does not take a buffer without bytes.
    return torch.frombuffer(out, dtype=torch.uint8) if out.nbytes else torch.empty(0, dtype=torch.uint8)


def _anonymous_memory(size_bytes: int) -> mmap.mmap:
    """Fresh memory that is aligned to pages, comes from the system page by page as it is first written to,
    and can be had both as a memoryview and as a tensor. Private, or forked children would write into it."""
    try:
        return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"The training state has {size_bytes / 2**30:.1f} GiB, and this machine cannot give as much "
            f"memory ({error}). Replicas need room for the state twice while they join."
        ) from error


def _digest(value: object) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(value), digest_size=32).hexdigest()
