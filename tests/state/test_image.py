"""Tensors laid out in bytes: every dtype, every cut, every strange stride."""

import mmap
import warnings

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outlast.errors import ConfigError, ProtocolError
from outlast.state.contents import ITEM_BYTES, Entry, Image, decode_image, encode_image, pieces
from outlast.state.dtypes import DTYPES
from outlast.state.image import Assembly, copy_piece, describe


def image_of(tensors: list[Tensor]) -> Image:
    return describe([f"t{index}" for index in range(len(tensors))], tensors, b"", b"")


def moved(tensors: list[Tensor], piece_bytes: int = 100) -> list[Tensor]:
    """Through an encoded image and single pieces, the last one first, into an assembly."""
    image = decode_image(encode_image(image_of(tensors)))
    assembly = Assembly(image, piece_bytes)
    for index in reversed(range(len(assembly.pieces))):
        copy_piece(image, tensors, assembly.pieces[index], assembly.slot(index))
        assembly.note(index)
    assert assembly.complete
    return assembly.tensors()


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).tolist())


def noise(dtype: torch.dtype, *shape: int) -> Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.arange(count, dtype=torch.int64).mul(37).remainder(251).to(torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    return raw.view(dtype).view(shape)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_arrives_bit_for_bit(name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        sent = [noise(DTYPES[name], *shape) for shape in [(7, 9), (), (0,), (3, 0, 2), (1,), (5, 3, 2)]]
        received = moved(sent)
    for a, b in zip(sent, received, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def test_the_dtypes_are_all_that_torch_can_copy() -> None:
    assert {torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.uint64} <= set(DTYPES.values())


def test_the_table_of_sizes_is_torchs() -> None:
    assert {name: ITEM_BYTES[name] for name in DTYPES} == {n: d.itemsize for n, d in DTYPES.items()}


strange = {
    "transposed": noise(torch.float32, 13, 7).t(),
    "strided": noise(torch.int16, 40, 3)[::3, 1:],
    "channels last": noise(torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": noise(torch.float64, 1, 5).expand(4, 5),
    "permuted": noise(torch.uint8, 3, 5, 7).permute(2, 0, 1),
    "conjugated": noise(torch.complex64, 6).view(6).nan_to_num().conj(),
    "imaginary part of a conjugate": torch.tensor([1 + 2j, 3 + 4j]).conj().imag,
    "one row": noise(torch.float32, 1, 300)[:, ::2],
    "a parameter": torch.nn.Parameter(torch.ones(3, 3)),
    "a point in the middle": noise(torch.int32, 9)[4],
}


@pytest.mark.parametrize("name", strange)
@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1000])
def test_any_strides_arrive_in_logical_order(name: str, piece_bytes: int) -> None:
    sent = [noise(torch.uint8, 3), strange[name], noise(torch.uint8, 5)]
    for a, b in zip(sent, moved(sent, piece_bytes), strict=True):
        assert a.shape == b.shape and bits(a) == bits(b)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["uint8", "float32", "int64"]), st.integers(0, 60)), max_size=8),
    st.integers(1, 300),
)
def test_any_cut_gives_the_same_tensors(shapes: list[tuple[str, int]], piece_bytes: int) -> None:
    sent = [noise(DTYPES[dtype], size) for dtype, size in shapes]
    assert [bits(t) for t in moved(sent, piece_bytes)] == [bits(t) for t in sent]


def test_padding_is_zero_whatever_was_there_before() -> None:
    tensors = [noise(torch.uint8, 3) + 1, noise(torch.uint8, 70) + 1]
    image = image_of(tensors)
    out = torch.full((image.total_bytes,), 255, dtype=torch.uint8)
    copy_piece(image, tensors, range(image.total_bytes), out)
    assert image.total_bytes == 192 and image.entries[1].offset == 64
    assert not out[3:64].any() and not out[134:].any()
    middle = torch.full((20,), 255, dtype=torch.uint8)
    copy_piece(image, tensors, range(10, 30), middle)
    assert not middle.any()


def test_pieces_cover_the_space_once() -> None:
    assert pieces(0) == []
    assert pieces(10, 4) == [range(4), range(4, 8), range(8, 10)]
    assert pieces(8 << 20) == [range(8 << 20)]
    with pytest.raises(ConfigError, match="piece_bytes = 0"):
        pieces(1, 0)


def test_an_assembly_knows_what_is_missing() -> None:
    tensors = [noise(torch.float32, 100)]
    assembly = Assembly(image_of(tensors), 128)
    assert assembly.missing() == [0, 1, 2, 3] and not assembly.complete
    assembly.note(2)
    assembly.note(2)
    assert assembly.missing() == [0, 1, 3]
    with pytest.raises(ValueError, match="have not arrived"):
        assembly.tensors()
    for index in assembly.missing():
        assembly.note(index)
    assert assembly.complete


def test_an_assembly_takes_ranges_and_gives_single_tensors() -> None:
    tensors = [
        noise(torch.uint8, 100),
        noise(torch.float32, 0),
        noise(torch.uint8, 60),
        noise(torch.int16, 9),
    ]
    image = image_of(tensors)
    assembly = Assembly(image, ranges=[range(64), range(64, 192), range(192, 256)])
    assert [list(assembly.pieces_of(index)) for index in range(4)] == [[0, 1], [], [1], [2]]
    for index in (0, 2):
        copy_piece(image, tensors, assembly.pieces[index], assembly.slot(index))
        assembly.note(index)
    assert torch.equal(assembly.tensor(3), tensors[3])
    assert assembly.tensor(1).shape == (0,)
    with pytest.raises(ValueError, match=r"\[1\] of t0"):
        assembly.tensor(0)
    for ranges in ([range(64), range(128, 256)], [range(64)], [range(64, 256)], []):
        with pytest.raises(ValueError, match="adjacent"):
            Assembly(image, ranges=ranges)


def test_a_dtype_that_this_torch_lacks_is_a_protocol_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DTYPES, "uint16")
    with pytest.raises(ProtocolError, match="uint16"):
        Assembly(image_of([torch.zeros(3, dtype=torch.uint16)]))


def test_tensors_of_an_assembly_are_views_that_outlive_it() -> None:
    tensors = [noise(torch.float32, 100)]
    image = image_of(tensors)
    assembly = Assembly(image)
    slot = assembly.slot(0)
    copy_piece(image, tensors, range(image.total_bytes), slot)
    assembly.note(0)
    (view,) = assembly.tensors()
    slot[0:4] = b"\0\0\0\0"
    assert view[0] == 0
    del assembly, slot
    assert torch.equal(view[1:], tensors[0][1:])


def test_a_state_without_tensors_is_complete_at_once() -> None:
    assembly = Assembly(image_of([]))
    assert assembly.complete and assembly.tensors() == []


def test_memory_that_the_machine_cannot_give_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ConfigError, match="GiB"):
        Assembly(image_of([torch.zeros(4)]))


def test_copying_into_the_wrong_place_is_refused() -> None:
    tensors = [noise(torch.uint8, 3)]
    image = image_of(tensors)
    with pytest.raises(ValueError, match="room"):
        copy_piece(image, tensors, range(64), memoryview(bytearray(63)))
    with pytest.raises(ValueError, match="read-only"):
        copy_piece(image, tensors, range(64), memoryview(bytes(64)))
    with pytest.raises(ValueError, match="unlike in its image"):
        copy_piece(image, [noise(torch.uint8, 4)], range(64), memoryview(bytearray(64)))
    with pytest.raises(ValueError, match="1 tensors"):
        copy_piece(image, [], range(64), memoryview(bytearray(64)))


def test_digests_tell_structure_from_values() -> None:
    one, other = [torch.zeros(3)], [torch.ones(3)]
    a = describe(["w"], one, b"plain", b"structure")
    b = describe(["w"], other, b"other", b"structure")
    assert a.digest_of_structure == b.digest_of_structure and a.digest != b.digest
    assert a.digest_of_structure != describe(["w"], one, b"plain", b"else").digest_of_structure
    assert a.digest_of_structure != describe(["v"], one, b"plain", b"structure").digest_of_structure
    assert decode_image(encode_image(a)).digest == a.digest


def tampered(**changes: object) -> bytes:
    image = image_of([noise(torch.float32, 4, 4), noise(torch.uint8, 5)])
    fields = {name: getattr(image, name) for name in image.__struct_fields__}
    return msgspec.msgpack.encode({"type": "outlast-image", **fields, **changes})


def test_large_tensors_begin_a_page_and_images_from_before_that_are_read() -> None:
    tensors = [noise(torch.uint8, 5), noise(torch.uint8, 1 << 18), noise(torch.uint8, 5)]
    image = image_of(tensors)
    assert [entry.offset for entry in image.entries] == [0, 4096, 4096 + (1 << 18)]
    first = [
        Entry(e.name, e.dtype, e.shape, at, e.size_bytes)
        for e, at in zip(image.entries, [0, 64, 64 + (1 << 18)], strict=True)
    ]
    older = msgspec.structs.replace(image, version=1, entries=tuple(first), total_bytes=128 + (1 << 18))
    assembly = Assembly(decode_image(encode_image(older)), 1 << 20)
    copy_piece(older, tensors, assembly.pieces[0], assembly.slot(0))
    assembly.note(0)
    assert all(map(torch.equal, assembly.tensors(), tensors))
    with pytest.raises(ProtocolError, match="offsets"):
        decode_image(encode_image(msgspec.structs.replace(image, version=1)))


BIG = 1 << 62


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 3},
        {"total_bytes": 64},
        {"total_bytes": -1},
        {"entries": ()},
        {"entries": (Entry("a", "float33", (4,), 0, 16),), "total_bytes": 64},
        {"entries": (Entry("a", "float32", (4,), 1, 16),), "total_bytes": 64},
        {"entries": (Entry("a", "float32", (4,), 0, 20),), "total_bytes": 64},
        {"entries": (Entry("a", "float32", (-1, -4), 0, 16),), "total_bytes": 64},
        {"entries": (Entry("a", "uint8", (BIG,), 0, BIG),), "total_bytes": BIG},
        {"entries": (Entry("a", "uint8", (0, BIG, BIG), 0, 0),), "total_bytes": 0},
        {"entries": (Entry("a", "uint8", (1,) * 65, 0, 1),), "total_bytes": 64},
        {
            "entries": tuple(Entry("a", "uint8", (1 << 45,), i << 45, 1 << 45) for i in range(3)),
            "total_bytes": 3 << 45,
        },
        {"plain": "text"},
        {"surprise": 1},
        {"type": "other"},
    ],
)
def test_an_image_that_does_not_add_up_is_a_protocol_error(changes: dict[str, object]) -> None:
    assert decode_image(tampered())
    with pytest.raises(ProtocolError):
        decode_image(tampered(**changes))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_image_is_readable_or_a_protocol_error(data: st.DataObject) -> None:
    damaged = bytearray(tampered())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = decode_image(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except ProtocolError:
        return
    if image.total_bytes < 1 << 20:
        assembly = Assembly(image)
        for index in assembly.missing():
            assembly.note(index)
        assert len(assembly.tensors()) == len(image.entries)


def test_images_are_bounded_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.state.contents.MAX_IMAGE_BYTES", 50)
    with pytest.raises(ConfigError, match="fewer and larger"):
        encode_image(image_of([torch.zeros(1)] * 9))
    with pytest.raises(ProtocolError, match="limit"):
        decode_image(bytes(51))
