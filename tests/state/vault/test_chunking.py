"""Chunks cover the space, are of a sensible size, and change only with the tensors that they hold."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.state.contents import PAGE_BYTES, Image, lay_out
from outlast.state.training import TrainingState
from outlast.state.vault.chunking import MAX_CHUNK_BYTES, chunk_ranges, target_bytes

MIB = 1 << 20


def image_of(*sizes_bytes: int) -> Image:
    return lay_out([(f"t{i}", "uint8", (size,)) for i, size in enumerate(sizes_bytes)], b"", b"")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 200), st.integers(0, 5 * MIB), st.integers(0, 1 << 34)), max_size=40)
)
def test_chunks_cover_the_space_once_and_large_tensors_have_their_own(sizes: list[int]) -> None:
    image = image_of(*sizes)
    ranges = chunk_ranges(image)
    assert [0, *(r.stop for r in ranges)] == [*(r.start for r in ranges), image.total_bytes]
    target = target_bytes(image.total_bytes)
    assert all(0 < len(r) <= min(1.5 * target + PAGE_BYTES, MAX_CHUNK_BYTES) for r in ranges)
    cuts = {r.start for r in ranges} | {image.total_bytes}
    filled = [entry for entry in image.entries if entry.size_bytes]
    ends = [*(entry.offset for entry in filled), image.total_bytes][1:]
    for entry, end in zip(filled, ends, strict=True):
        if end - entry.offset > target // 2:
            assert {entry.offset, end} <= cuts
    # Of two neighbours that hold small tensors only, together they would be too large.
    small = [r for r in ranges if len(r) <= target // 2]
    for one, other in pairwise(small):
        assert one.stop != other.start or len(one) + len(other) > target


def test_the_target_is_a_power_of_two_within_bounds() -> None:
    assert [target_bytes(size) for size in (0, 1, 512 * MIB, 700 * MIB, 1 << 40)] == [
        *(MIB, MIB, 2 * MIB, 2 * MIB, 64 * MIB)
    ]


def test_a_state_without_tensors_has_no_chunks() -> None:
    assert chunk_ranges(image_of()) == [] == chunk_ranges(image_of(0, 0))


def test_a_tenth_of_the_parameters_changes_hardly_more_than_a_tenth_of_the_bytes() -> None:
    """As in fine-tuning the last layers: 512 MiB of weights, and as much again for each of Adam's moments."""
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(32)))
    names = list(model.state_dict())
    kinds = ("model", "exp_avg", "exp_avg_sq")
    parts = [("model", name) for name in names]
    parts += [(kind, name) for name in names for kind in kinds[1:]]
    image = lay_out(
        [(f"{kind}[{name}]", "float32", tuple(model.state_dict()[name].shape)) for kind, name in parts],
        b"",
        b"",
    )
    changed_names = names[-6:]
    changed = [e for e, (_, name) in zip(image.entries, parts, strict=True) if name in changed_names]
    assert sum(e.size_bytes for e in changed) >= 0.09 * image.total_bytes
    touched = [r for r in chunk_ranges(image) if any(e.offset < r.stop and r.start < e.end for e in changed)]
    assert sum(map(len, touched)) <= 0.15 * image.total_bytes


def test_the_cuts_of_a_training_state_are_those_of_its_image() -> None:
    model = torch.nn.Linear(300, 300)
    image, _ = TrainingState(model, {"main": torch.optim.AdamW(model.parameters())}).capture()
    assert chunk_ranges(image) == chunk_ranges(image) == [range(image.total_bytes)]
