"""How the space of bytes that a training state is laid out in moves, piece by piece.

`contents` says where each tensor lies. Here are the bytes themselves. The space is cut into pieces without
regard to where tensors begin. A piece is what travels, what is striped over members and what is asked for
again. Nobody allocates the space on the sending side: `copy_piece` fills one piece straight from the live
tensors. On the receiving side an `Assembly` is that space: bytes are received into their final place, and the
tensors are views into it.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

from outlast.errors import ConfigError, ProtocolError
from outlast.state.contents import PIECE_BYTES, Entry, Image, lay_out, pieces
from outlast.state.dtypes import DTYPES
from outlast.state.large_pages import prefer_large_pages

LARGE_PAGES_FROM_BYTES = 4 << 20


def describe(names: Sequence[str], tensors: Sequence[Tensor], plain: bytes, structure: bytes) -> Image:
    """Lay out `tensors`, which are only looked at, in the order given."""
    parts = [
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in zip(names, tensors, strict=True)
    ]
    return lay_out(parts, plain, structure)


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

    The pieces are of equal size, or the `ranges` given, which must be adjacent and cover the space. Different
    threads may fill different slots and note them; noting one twice is harmless.
    """

    def __init__(
        self, image: Image, piece_bytes: int = PIECE_BYTES, *, ranges: Sequence[range] | None = None
    ) -> None:
        unknown = {entry.dtype for entry in image.entries} - DTYPES.keys()
        if unknown:
            raise ProtocolError(f"this torch cannot hold tensors of dtype {', '.join(sorted(unknown))}")
        self.image = image
        self.pieces = pieces(image.total_bytes, piece_bytes) if ranges is None else list(ranges)
        if [0, *(piece.stop for piece in self.pieces)] != [
            *(piece.start for piece in self.pieces),
            image.total_bytes,
        ]:
            raise ValueError("the ranges are not adjacent, or do not cover the space")
        self._arrived = bytearray(len(self.pieces))
        self._space = fresh_memory(max(1, image.total_bytes))
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
        return tensors_in(self._flat, self.image)

    def tensor(self, index: int) -> Tensor:
        """One tensor, for which only the pieces that it lies in must have arrived."""
        entry = self.image.entries[index]
        absent = [piece for piece in self.pieces_of(index) if not self._arrived[piece]]
        if absent:
            raise ValueError(f"the pieces {absent[:8]} of {entry.name} have not arrived yet")
        return _view(self._flat, entry)

    def pieces_of(self, index: int) -> range:
        """The numbers of the pieces that a tensor lies in."""
        entry = self.image.entries[index]
        if not entry.size_bytes:
            return range(0)
        first = bisect_right(self.pieces, entry.offset, key=lambda piece: piece.start) - 1
        last = bisect_right(self.pieces, entry.end - 1, key=lambda piece: piece.start) - 1
        return range(first, last + 1)


def tensors_in(flat: Tensor, image: Image) -> list[Tensor]:
    """All tensors of an image whose space begins with `flat`, as views into it."""
    return [_view(flat, entry) for entry in image.entries]


def _view(flat: Tensor, entry: Entry) -> Tensor:
    dtype = DTYPES[entry.dtype]
    if not entry.size_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return flat[entry.offset : entry.end].view(dtype).view(entry.shape)


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


def fresh_memory(size_bytes: int) -> mmap.mmap:
    """Memory that is aligned to pages, comes from the system as it is first written to, in large pages where
    there are any, and can be had both as a memoryview and as a tensor. Private, or forked children would
    write into it."""
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"The training state has {size_bytes / 2**30:.1f} GiB, and this machine cannot give as much "
            f"memory ({error}). Replicas need room for the state twice while they join."
        ) from error
    if size_bytes >= LARGE_PAGES_FROM_BYTES:
        prefer_large_pages(memory)
    return memory
