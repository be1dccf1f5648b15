"""Where a state's space of bytes is cut into chunks, the objects that checkpoints are made of.

A chunk that holds the same bytes as one that is stored already is not stored again. So the cuts follow the
tensors: a large tensor begins a chunk and ends one, and whatever happens to its neighbours leaves its own
chunks as they are. Small tensors share a chunk, for ten thousand tiny objects would take longer than one
large one. The cuts depend on the image alone, so that every member makes the same ones, and this run the
same as the last.
"""

from itertools import pairwise

from outlast.state.contents import PAGE_BYTES, Image

SMALLEST_TARGET_BYTES = 1 << 20
LARGEST_TARGET_BYTES = 64 << 20
CHUNKS_WANTED = 256
MAX_CHUNK_BYTES = 2 * LARGEST_TARGET_BYTES
"""No chunk is larger, whoever made it: what a reader makes room for."""


def chunk_ranges(image: Image) -> list[range]:
    """Adjacent ranges in order that cover the whole space, padding included."""
    target = target_bytes(image.total_bytes)
    starts = [entry.offset for entry in image.entries if entry.size_bytes]
    ranges: list[range] = []
    group = 0
    for start, stop in pairwise([*starts, image.total_bytes]):
        large = stop - start > target // 2
        if start > group and (large or stop - group > target):
            ranges.append(range(group, start))
            group = start
        if large:
            ranges += _parts(range(start, stop), target)
            group = stop
    if group < image.total_bytes:
        ranges.append(range(group, image.total_bytes))
    return ranges


def target_bytes(total_bytes: int) -> int:
    """How large a chunk should be: a power of two, so that a model that grows a little keeps its cuts."""
    wanted = max(1, total_bytes // CHUNKS_WANTED)
    return min(max(1 << (wanted.bit_length() - 1), SMALLEST_TARGET_BYTES), LARGEST_TARGET_BYTES)


def _parts(extent: range, target: int) -> list[range]:
    """A large tensor in parts of about the target's size, none of them a tiny rest. All but the
    last are whole pages, which a disk reads straight to their place; see `storage/direct.py`."""
    count = max(1, round(len(extent) / target))
    cuts = [extent.start + len(extent) * part // count // PAGE_BYTES * PAGE_BYTES for part in range(count)]
    return [range(lo, hi) for lo, hi in pairwise([*cuts, extent.stop])]
