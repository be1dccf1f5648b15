"""The Gram matrix of a slice: all that a geometric rule needs to know about its rows.

Distances, norms, nearest neighbours, means and clipped means of n rows follow from the n by n inner
products of the rows, seen from any fixed point. These matrices are additive: those of the slices of one
vector sum up to that of the whole. So a rule that compares whole contributions can be computed by members
that each see a slice, and what they exchange is n² numbers.

Precision decides about whom to believe, so it is not left to chance. Inner products of whole rows lose what
tells rows apart when those differ by little (trained weights differ in the fourth digit), or when one of
them is enormous. So for each slice a look at a few coordinates chooses the point to see the rows from: the
origin, if rows differ by as much as they are long, else the most central row. Products are taken in
float32, block by block, and added in float64. Each block is then checked: if most rows lie so far from that
point that float32 could not tell them apart, or if anything overflowed or vanished, the block is done again
in float64, seen from its own most central row. Nobody can spoil that with less than half of the rows.

Rows that are not finite have a Gram matrix that is not: NaN in their own row and column, and nowhere else.

The matrix depends on the values and on where the slice begins and ends, and on nothing else: blocks are
fixed, and products run on one thread, since libraries divide them differently among more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor

Rows = Tensor | Sequence[Tensor]
"""The rows of a slice: an (n, d) tensor, or n vectors of the same length and dtype."""

BLOCK = 1 << 16
SMALLEST_FAST_BLOCK = 1 << 12
"""Below, float64 costs nothing that anybody would notice."""
EXACT_BLOCK = 1 << 13
LENGTH_BLOCK = 1 << 16
BLOCKS_PER_CHECK = 64
PROBES = 64
ALIGNED_BYTES = 64

NEAR = {torch.float32: 1 / 16, torch.float64: 1e-8}
"""Rows nearer to each other than this share of their (squared) distance to the point they are seen from are
lost.
"""
RANGE = {torch.float32: (1e-24, 1e30), torch.float64: (1e-250, 1e250)}
"""Squared lengths out of this range have overflowed or vanished on the way, or may have."""


def gram(rows: Rows, landmarks: Sequence[Tensor | None] = ()) -> Tensor:
    """Inner products of all rows, and of landmarks after them (None is the origin), as one float64 matrix."""
    size = len(rows) + len(landmarks)
    total = torch.zeros(size, size, dtype=torch.float64)
    dtype = _working_dtype(rows)
    with one_thread():
        seen_from = _choose_point(rows)
        space = workspace(len(rows), min(BLOCK, rows[0].numel()), dtype)
        blocks: list[slice] = []
        products: list[Tensor] = []
        for block in _blocks(rows[0].numel()):
            if block.stop - block.start < SMALLEST_FAST_BLOCK:
                total += _exact_product(rows, landmarks, block)
                continue
            blocks.append(block)
            products.append(_product(*_points(rows, landmarks, block, space, seen_from)))
            if len(blocks) == BLOCKS_PER_CHECK:
                total += _checked(rows, landmarks, blocks, products)
                blocks, products = [], []
        if blocks:
            total += _checked(rows, landmarks, blocks, products)
    return total


def lengths(rows: Rows, landmark: Tensor | None) -> Tensor:
    """Squared distances to one landmark, as the Gram matrix of what is seen from there, without the products.

    That is all that clipping needs, and costs one pass over the rows instead of n.
    """
    n, d = len(rows), rows[0].numel()
    total = torch.zeros(n + 1, dtype=torch.float64)
    dtype = torch.float64 if rows[0].dtype == torch.float64 else torch.float32
    least, most = RANGE[dtype]
    with one_thread():
        space = workspace(n, min(LENGTH_BLOCK, d), dtype)
        for block in _blocks(d, LENGTH_BLOCK):
            points = _away(rows, landmark, block, space)
            squares = torch.linalg.vector_norm(points, dim=1).double().square()
            for k, square in enumerate(squares.tolist()):
                if not least <= square <= most and bool(points[k].any()):
                    exact = points[k].double()
                    squares[k] = torch.linalg.vector_norm(exact).square()
            total[:n] += squares
    return torch.diag(total)


def _away(rows: Rows, landmark: Tensor | None, block: slice, space: Tensor) -> Tensor:
    """One block of rows, seen from a landmark."""
    if landmark is None and is_ready(rows, space.dtype):
        return rows[:, block]
    points = space[:, : block.stop - block.start]
    if landmark is not None and isinstance(rows, Tensor) and rows.dtype == space.dtype:
        return torch.sub(rows[:, block], landmark[block].to(space.dtype), out=points)
    load(rows, block, points)
    if landmark is not None:
        points -= landmark[block].to(space.dtype)
    return points


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on the calling thread alone. Other threads have settings of their own."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """What matrix products of such rows are computed in."""
    # Who has allowed float32 products to be taken in 16 bits did not have these in mind.
    fast = dtype != torch.float64 and torch.get_float32_matmul_precision() == "highest"
    return torch.float32 if fast else torch.float64


def is_ready(rows: Rows, dtype: torch.dtype) -> TypeGuard[Tensor]:
    """Whether a product can read these rows where they are.

    Libraries sum in another order where rows are not aligned; so all rows are, or they are copied.
    """
    if not isinstance(rows, Tensor) or rows.dtype != dtype or rows.stride(1) != 1:
        return False
    return rows.data_ptr() % ALIGNED_BYTES == 0 and rows.stride(0) * rows.element_size() % ALIGNED_BYTES == 0


def workspace(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Memory for so many rows, each of them aligned."""
    spare = -width % ALIGNED_BYTES
    return torch.empty(rows, width + spare, dtype=dtype)[:, :width]


def load(rows: Rows, block: slice, into: Tensor) -> None:
    """Copies one block of all rows, converting them."""
    if isinstance(rows, Tensor):
        into.copy_(rows[:, block])
    else:
        for row, place in zip(rows, into, strict=True):
            place.copy_(row[block])


def _working_dtype(rows: Rows) -> torch.dtype:
    return product_dtype(rows[0].dtype)


def _blocks(d: int, size: int = BLOCK) -> Iterator[slice]:
    for begin in range(0, d, size):
        yield slice(begin, min(begin + size, d))


def _points(
    rows: Rows, landmarks: Sequence[Tensor | None], block: slice, space: Tensor, seen_from: int | None
) -> tuple[Tensor, list[Tensor | None]]:
    """One block of rows and landmarks, seen from a row (None: from the origin); in `space`, if need be."""
    dtype = space.dtype
    marks = [None if mark is None else mark[block].to(dtype, copy=True) for mark in landmarks]
    if seen_from is None and is_ready(rows, dtype):
        return rows[:, block], marks
    points = space[:, : block.stop - block.start]
    if seen_from is None:
        load(rows, block, points)
        return points, marks
    here = rows[seen_from][block].to(dtype)
    if isinstance(rows, Tensor) and rows.dtype == dtype:
        torch.sub(rows[:, block], here, out=points)
    else:
        load(rows, block, points)
        points -= here
    return points, [-here if mark is None else mark - here for mark in marks]


def _product(points: Tensor, marks: list[Tensor | None]) -> Tensor:
    """Inner products of rows and landmarks. A landmark that is None is all zeros, and costs nothing."""
    n = len(points)
    product = torch.zeros(n + len(marks), n + len(marks), dtype=points.dtype)
    product[:n, :n] = points @ points.T
    for k, mark in enumerate(marks, start=n):
        if mark is not None:
            product[k, :n] = product[:n, k] = points @ mark
            for other, another in enumerate(marks, start=n):
                if another is not None:
                    product[k, other] = mark @ another
    return product


def _choose_point(rows: Rows) -> int | None:
    d = rows[0].numel()
    if d < SMALLEST_FAST_BLOCK:
        return None
    probes = torch.arange(PROBES) * (d - 1) // (PROBES - 1)
    sample = rows[:, probes] if isinstance(rows, Tensor) else torch.stack([row[probes] for row in rows])
    sample = sample.double()
    product = sample @ sample.T
    if _is_sound(product[None], len(rows), torch.float32).item():
        return None
    return _most_central(product)


def _checked(
    rows: Rows, landmarks: Sequence[Tensor | None], blocks: list[slice], products: list[Tensor]
) -> Tensor:
    """The sum of the blocks' products, after those have been done again that float32 was not enough for."""
    stacked = torch.stack(products)
    sound = _is_sound(stacked, len(rows), stacked.dtype)
    total = torch.zeros(stacked.shape[1:], dtype=torch.float64)
    for block, product, good in zip(blocks, stacked.double(), sound.tolist(), strict=True):
        total += product if good else _exact_product(rows, landmarks, block)
    return total


def _is_sound(products: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Which of the (k, n, n) products tell apart what a majority of the rows can be told apart by."""
    products = products[:, :n, :n].double()
    lengths = products.diagonal(dim1=1, dim2=2)
    finite = products.isfinite().flatten(1).all(1)
    middle = n // 2
    away = lengths.nan_to_num(nan=torch.inf).sort(1).values[:, middle]
    between = distances(products).nan_to_num(nan=torch.inf).sort(2).values[:, :, middle].amin(1)
    least, most = RANGE[dtype]
    in_range = (away >= least) & (lengths.amax(1) <= most)
    return finite & in_range & (between >= NEAR[dtype] * away)


def distances(gram: Tensor) -> Tensor:
    """Squared distances between all rows."""
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    return (lengths[..., :, None] + lengths[..., None, :] - 2 * gram).clamp_(min=0)


def _most_central(product: Tensor) -> int:
    """The row that has half of the others nearest: with a majority of good rows, one that is among them."""
    nearest_half = distances(product).nan_to_num(nan=torch.inf).sort(1).values[:, len(product) // 2]
    return int(nearest_half.argmin())


def _exact_product(rows: Rows, landmarks: Sequence[Tensor | None], block: slice) -> Tensor:
    """One block in float64, seen from its own most central row."""
    size = len(rows) + len(landmarks)
    parts = [
        slice(block.start + part.start, block.start + part.stop)
        for part in _blocks(block.stop - block.start, EXACT_BLOCK)
    ]
    total = torch.zeros(size, size, dtype=torch.float64)
    space = workspace(len(rows), EXACT_BLOCK, torch.float64)
    for part in parts:
        points, marks = _points(rows, landmarks, part, space, None)
        if not points.any() and all(mark is None for mark in marks):
            continue
        central = _most_central(points @ points.T)
        total += _product(*_points(rows, landmarks, part, space, central))
    return total
