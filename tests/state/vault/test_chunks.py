"""Chunks are written once, read back bit for bit, and never believed when they are not what was written."""

import threading
from collections.abc import Iterator

import pytest
import torch
from checkpoints import claimed, load, manifest_of, save, some_state, written
from memory_storage import Failing, MemoryStorage

from outlast.errors import ObjectDamaged, ObjectMissing, SaveGivenUp, StorageUnavailable
from outlast.state.image import Assembly
from outlast.state.vault.chunks import ChunkWriter, read_chunks, verify_chunks
from outlast.state.vault.compression import compressed, decompress
from outlast.state.vault.crew import work_off
from outlast.state.vault.manifest import Codec, Manifest
from outlast.state.vault.names import chunk_name
from outlast.state.vault.vault import Vault

CODECS: list[Codec] = ["", "zstd-shuffle"]


def saved(codec: Codec = "") -> tuple[Vault, MemoryStorage, Manifest]:
    storage = MemoryStorage()
    vault = Vault(storage)
    return vault, storage, save(vault, claimed(vault), 5, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_a_state_comes_back_bit_for_bit(codec: Codec) -> None:
    vault, _, manifest = saved(codec)
    assert any(chunk.codec == codec for chunk in manifest.chunks)
    _, tensors = some_state(5)
    for one, other in zip(tensors, load(vault, manifest), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_known_is_not_written_again(codec: Codec) -> None:
    vault, storage, first = saved(codec)
    puts = len([call for call, _ in storage.calls if call == "put"])
    image, tensors = some_state(6)
    writer, chunks = written(storage, image, tensors, vault.known_chunks(), codec)
    old = {chunk.hash for chunk in first.chunks}
    new = [chunk for chunk in chunks if chunk.hash not in old]
    assert 0 < len(new) < len(chunks)
    assert writer.written_bytes == sum(chunk.stored_bytes for chunk in new)
    assert writer.skipped_bytes == sum(chunk.size for chunk in chunks if chunk.hash in old)
    assert (writer.written_chunks, writer.skipped_chunks) == (len(new), len(chunks) - len(new))
    assert len([call for call, _ in storage.calls if call == "put"]) == puts + len(new)
    # Known chunks are listed as they are stored, whatever this writer would have made of them.
    assert all(chunk_name(chunk.hash, chunk.codec) in storage.objects for chunk in chunks)


def test_a_known_chunk_is_not_compressed_again() -> None:
    vault, storage, _ = saved("")
    image, tensors = some_state(5)
    writer, chunks = written(storage, image, tensors, vault.known_chunks(), "zstd-shuffle")
    assert writer.written_chunks == 0 and all(chunk.codec == "" for chunk in chunks)


def test_the_same_bytes_twice_in_one_state_are_stored_once() -> None:
    storage = MemoryStorage()
    zeros = memoryview(bytes(1000))
    writer = ChunkWriter(storage, {}, threads=1)
    rows = writer.write((range(i * 1000, (i + 1) * 1000), zeros) for i in range(5))
    assert [row.start for row in rows] == [0, 1000, 2000, 3000, 4000]
    assert len(storage.objects) == writer.written_chunks == 1 and writer.skipped_bytes == 4000


def test_no_more_chunks_than_threads_are_taken_from_a_lazy_list() -> None:
    storage = MemoryStorage()
    taken: list[int] = []
    gate = threading.Semaphore(0)
    storage.before = lambda call, key: gate.acquire() and None

    def parts() -> Iterator[tuple[range, memoryview]]:
        for index in range(6):
            taken.append(index)
            assert len(taken) - len(storage.objects) <= 2
            gate.release()
            yield range(index, index + 1), memoryview(bytes((index,)))

    assert len(ChunkWriter(storage, {}, threads=2).write(parts())) == 6


def test_a_save_can_be_given_up() -> None:
    storage = MemoryStorage()
    cancelled = threading.Event()
    storage.before = lambda call, key: cancelled.set()
    writer = ChunkWriter(storage, {}, threads=2, cancelled=cancelled)
    with pytest.raises(SaveGivenUp):
        writer.write((range(i, i + 1), memoryview(bytes((i,)))) for i in range(100))
    assert len(storage.objects) <= 2


def test_a_put_that_fails_ends_the_save() -> None:
    storage = MemoryStorage()
    Failing(storage, at=3)
    with pytest.raises(StorageUnavailable):
        ChunkWriter(storage, {}, threads=2).write(
            (range(i, i + 1), memoryview(bytes((i,)))) for i in range(100)
        )
    assert len(storage.objects) < 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "damage", ["first bit", "middle bit", "last bit", "cut short", "longer", "empty", "gone"]
)
def test_damage_is_found_and_named(codec: Codec, damage: str) -> None:
    vault, storage, manifest = saved(codec)
    chunk = next(chunk for chunk in manifest.chunks if chunk.codec == codec and chunk.size > 1000)
    name = chunk_name(chunk.hash, chunk.codec)
    data = storage.objects[name]
    match damage:
        case "first bit":
            storage.flip_bit(name, 0)
        case "middle bit":
            storage.flip_bit(name, len(data) // 2)
        case "last bit":
            storage.flip_bit(name)
        case "cut short":
            storage.cut_short(name)
        case "longer":
            storage.objects[name] += b"x"
        case "empty":
            storage.objects[name] = b""
        case "gone":
            del storage.objects[name]
    with pytest.raises(ObjectMissing if damage == "gone" else ObjectDamaged) as found:
        load(vault, manifest)
    assert name in str(found.value) and "the checkpoint of step 5" in str(found.value)
    ((bad, reason),) = verify_chunks(storage, manifest, manifest.chunks)
    assert bad == chunk and name in reason


def test_only_the_chunks_asked_for_are_read() -> None:
    _vault, storage, manifest = saved()
    storage.calls.clear()
    assembly = Assembly(manifest.image, ranges=[range(c.start, c.stop) for c in manifest.chunks])
    last = len(manifest.chunks) - 1
    read_chunks(storage, manifest, assembly, [last])
    assert len(storage.calls) == 1 and last not in assembly.missing()
    assert assembly.tensor(5) == 5


def test_verifying_tells_its_progress() -> None:
    _, storage, manifest = saved()
    told: list[int] = []
    assert verify_chunks(storage, manifest, manifest.chunks, progress=told.append) == []
    assert sum(told) == manifest.image.total_bytes


@pytest.mark.parametrize("size", [1, 3, 4, 1000, 100_001])
@pytest.mark.parametrize("kind", ["floats", "halves", "zeros", "bytes"])
def test_compression_gives_back_what_it_was_given(size: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(size)
    made = torch.randn(size, generator=generator)
    tensor = {
        "floats": made,
        "halves": made.bfloat16(),
        "zeros": torch.zeros(size, dtype=torch.uint8),
        "bytes": torch.arange(size).remainder(7).to(torch.uint8),
    }[kind]
    data = bytes(tensor.view(torch.uint8).numpy())
    packed = compressed(memoryview(data))
    if packed is None:
        assert size < 1000
        return
    out = bytearray(len(data))
    assert decompress(packed, memoryview(out)) and out == data
    assert not decompress(packed, memoryview(bytearray(len(data) + 1)))
    assert not decompress(packed, memoryview(bytearray(len(data) - 1)))
    assert not decompress(b"", memoryview(out)) and not decompress(b"\x09" + packed[1:], memoryview(out))


def test_floats_get_smaller_by_the_shuffle() -> None:
    data = torch.randn(1 << 16).view(torch.uint8).numpy().tobytes()
    packed = compressed(memoryview(data))
    assert packed is not None and packed[0] == 4 and len(packed) < 0.95 * len(data)


def test_noise_is_stored_as_it_is() -> None:
    storage = MemoryStorage()
    noise = torch.randint(0, 256, (5000,), dtype=torch.uint8).numpy().tobytes()
    (row,) = ChunkWriter(storage, {}, codec="zstd-shuffle").write([(range(5000), memoryview(noise))])
    assert row.codec == "" and storage.objects[chunk_name(row.hash, "")] == noise


def test_an_empty_manifest_is_read_without_a_call() -> None:
    vault, storage, _ = saved()
    image, _ = some_state(0)
    claim = vault.read_claim(1)
    empty = manifest_of(claim, 9, type(image)(1, (), 0, b"", b""), [])
    assert vault.commit(empty)
    storage.calls.clear()
    assert load(vault, vault.read_manifest("manifests/00000001-000000000009.json")) == []


def test_a_crew_raises_the_first_error_and_begins_nothing_more() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise KeyError(item)
        done.append(item)

    with pytest.raises(KeyError):
        work_off(range(1000), work, threads=1)
    assert done == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        work_off((1 // (2 - i) for i in range(5)), done.append, threads=3)
