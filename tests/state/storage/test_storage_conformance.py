"""What every storage promises, tried on a real one of each kind."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from storage_places import Place

from outlast.errors import ObjectDamaged, ObjectMissing, StorageUnavailable, UsageError
from outlast.state.storage.seam import Storage, Stored

MIB = 1 << 20


def pattern(seed: int, size_bytes: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def keys_of(storage: Storage, prefix: str = "") -> list[str]:
    return [stored.key for stored in storage.list(prefix)]


def test_nothing_is_there_at_first(storage: Storage) -> None:
    assert list(storage.list("")) == []
    assert list(storage.list("chunks/")) == []
    with pytest.raises(ObjectMissing, match="chunks/ab"):
        storage.get("chunks/ab", 100)
    with pytest.raises(ObjectMissing, match="chunks/ab"):
        storage.read_into("chunks/ab", memoryview(bytearray(1)))
    storage.delete(["chunks/ab"])


def test_what_is_put_is_read_by_another(place: Place, storage: Storage) -> None:
    data = pattern(1, 100_000)
    storage.put("chunks/ab/ab12", data)
    other = place.open()
    assert other.get("chunks/ab/ab12", 100_000) == data
    out = bytearray(100_000)
    other.read_into("chunks/ab/ab12", memoryview(out))
    assert out == data
    assert list(other.list("")) == [Stored("chunks/ab/ab12", 100_000)]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_all_kinds_of_bytes(storage: Storage, kind: type) -> None:
    storage.put("a", kind(b"what is put"))
    assert storage.create("b", kind(b"what is created"))
    assert storage.get("a", 100) == b"what is put"
    assert storage.get("b", 100) == b"what is created"


def test_memory_of_other_types_is_bytes(storage: Storage) -> None:
    floats = memoryview(pattern(2, 64)).cast("d")
    storage.put("a", floats)
    out = memoryview(bytearray(64)).cast("f")
    storage.read_into("a", out)
    assert out.tobytes() == floats.tobytes()


def test_an_empty_object(storage: Storage) -> None:
    storage.put("put", b"")
    assert storage.create("created", b"")
    assert not storage.create("put", b"")
    assert storage.get("put", 0) == b""
    storage.read_into("created", memoryview(bytearray()))
    assert list(storage.list("")) == [Stored("created", 0), Stored("put", 0)]


def test_a_large_object(storage: Storage) -> None:
    data = pattern(3, 64 * MIB)
    storage.put("large", data)
    out = bytearray(len(data))
    storage.read_into("large", memoryview(out))
    assert out == data
    assert storage.get("large", len(data)) == data


def test_a_large_object_is_created_once(storage: Storage) -> None:
    data = pattern(4, 16 * MIB)
    assert storage.create("large", data)
    assert not storage.create("large", data[::-1])
    assert storage.get("large", len(data)) == data


def test_put_replaces(storage: Storage) -> None:
    storage.put("a", b"first, and longer")
    storage.put("a", b"second")
    assert storage.get("a", 100) == b"second"
    assert list(storage.list("")) == [Stored("a", 6)]


def test_create_does_not_replace(storage: Storage) -> None:
    assert storage.create("claims/00000001.json", b"mine")
    assert not storage.create("claims/00000001.json", b"yours")
    assert storage.get("claims/00000001.json", 100) == b"mine"
    storage.put("claims/00000002.json", b"put")
    assert not storage.create("claims/00000002.json", b"created")
    storage.delete(["claims/00000001.json"])
    assert storage.create("claims/00000001.json", b"yours")
    assert storage.get("claims/00000001.json", 100) == b"yours"


def test_keys_come_in_order_and_by_prefix(storage: Storage) -> None:
    # No "a": it would be the folder of another key.
    keys = ["a-b", "a.b", "a0/x", "a/0", "a/b/c", "a/b.c", "a/b-c", "ab/c", "b_/9", "b/10", "b/9"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: storage.put(key, key.encode()), random.Random(5).sample(keys, len(keys))))
    assert list(storage.list("")) == [Stored(key, len(key)) for key in sorted(keys)]
    assert keys_of(storage, "a/") == ["a/0", "a/b-c", "a/b.c", "a/b/c"]
    assert keys_of(storage, "a/b/") == ["a/b/c"]
    assert keys_of(storage, "b/") == ["b/10", "b/9"]
    assert keys_of(storage, "nobody/") == []


def test_a_listing_of_more_than_a_page(place: Place, storage: Storage) -> None:
    # S3's pages are of 1000; those of our HDFS are smaller, since it takes half a second to close a file.
    keys = [f"many/{number:04}" for number in range(30 if place.kind == "hdfs" else 1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: storage.put(key, b"1"), keys))
    assert keys_of(storage, "many/") == keys
    storage.delete(keys)
    assert keys_of(storage) == []


def test_delete(storage: Storage) -> None:
    for key in ("a/1", "a/2", "b"):
        storage.put(key, b"1")
    storage.delete(iter(["a/1", "not/there", "b"]))
    assert keys_of(storage) == ["a/2"]
    storage.delete([])
    storage.delete(["a/2", "a/2"])
    assert keys_of(storage) == []


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/.hidden",
            ".writing/a",
            "A",
            "a b",
            "ä",
        ),
        *("a\n", "a\0", "a\\b", "a%2fb", "a?b", "a#b", "x" * 300, "x/" * 300 + "x"),
    ],
)
def test_bad_keys(storage: Storage, key: str) -> None:
    out = memoryview(bytearray(1))
    for call in (
        lambda: storage.put(key, b"1"),
        lambda: storage.create(key, b"1"),
        lambda: storage.get(key, 1),
        lambda: storage.read_into(key, out),
        lambda: storage.delete([key]),
    ):
        with pytest.raises(UsageError, match="key"):
            call()


@pytest.mark.parametrize("prefix", ["a", "/", "../", "a//", ".writing/", "A/"])
def test_bad_prefixes(storage: Storage, prefix: str) -> None:
    with pytest.raises(UsageError):
        storage.list(prefix)


def test_an_object_larger_than_expected_is_damaged(storage: Storage) -> None:
    storage.put("a", b"12345")
    assert storage.get("a", 5) == b"12345"
    with pytest.raises(ObjectDamaged, match=r"a.*5"):
        storage.get("a", 4)


@pytest.mark.parametrize("length", [0, 4, 6])
def test_an_object_of_another_length_is_damaged(storage: Storage, length: int) -> None:
    storage.put("a", b"12345")
    with pytest.raises(ObjectDamaged, match=r"a.*5"):
        storage.read_into("a", memoryview(bytearray(length)))


def test_of_eight_threads_one_creates(place: Place) -> None:
    storages = [place.open() for _ in range(8)]
    for number in range(2):
        start = threading.Barrier(8)

        def race(
            racer: int, *, key: str = f"claims/{number}", start: threading.Barrier = start
        ) -> tuple[bool, bytes]:
            data = b"racer %d" % racer
            start.wait()
            return storages[racer].create(key, data), data

        with ThreadPoolExecutor(8) as pool:
            ends = list(pool.map(race, range(8)))
        winners = [data for won, data in ends if won]
        assert len(winners) == 1
        assert storages[0].get(f"claims/{number}", 100) == winners[0]


RACE = """
print("ready", flush=True)
sys.stdin.readline()
for number in range(10):
    print(storage.create(f"claims/{number}", b"%d" % os.getpid()), flush=True)
"""


def test_of_eight_processes_one_creates(place: Place) -> None:
    with ExitStack() as stack:
        racers = [stack.enter_context(place.process(RACE)) for _ in range(8)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = {racer.pid: racer.stdout.read().split() for racer in racers if racer.stdout is not None}
    storage = place.open()
    for number in range(10):
        winners = [pid for pid, answers in said.items() if answers[number] == "True"]
        assert len(winners) == 1, said
        assert storage.get(f"claims/{number}", 100) == b"%d" % winners[0]


PUT_FOR_EVER = """
import itertools, random
for number in itertools.count():
    data = random.Random(number).randbytes(8 << 20)
    print(number, flush=True)
    storage.put(f"chunks/{number:04}", data)
"""


def test_kill_9_in_the_middle_of_a_put_leaves_nothing_half(place: Place) -> None:
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    for life in range(6 if place.kind == "files" else 2):
        with place.process(PUT_FOR_EVER) as writer:
            assert writer.stdout is not None
            started = int(writer.stdout.readline())
            for _ in range(moments.randrange(3)):
                started = int(writer.stdout.readline())
            time.sleep(moments.uniform(0, 0.05))
            writer.kill()
            started = max([started, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        storage = place.open()
        found = list(storage.list(""))
        message = f"seed {seed}, life {life}"
        # All that was begun after another one had been put is there, the last one perhaps.
        assert len(found) >= started, message
        for stored in found:
            number = int(stored.key.removeprefix("chunks/"))
            assert stored == Stored(f"chunks/{number:04}", 8 * MIB), message
            assert storage.get(stored.key, 8 * MIB) == pattern(number, 8 * MIB), message
        # And nothing stands in the way of those who come after it.
        storage.put(f"chunks/{started:04}", b"anew")
        assert storage.get(f"chunks/{started:04}", 100) == b"anew"
        storage.delete(keys_of(storage))


def test_readers_see_one_object_or_the_other_while_it_is_replaced(place: Place) -> None:
    storage = place.open()
    versions = [pattern(seed, 300_000) for seed in (6, 7)]
    storage.put("a", versions[0])
    done = threading.Event()

    def write() -> None:
        other = place.open()
        for turn in range(4 if place.kind == "hdfs" else 30):
            other.put("a", versions[turn % 2])
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not done.is_set() and not writing.done():
            try:
                assert storage.get("a", 300_000) in versions
            except StorageUnavailable:
                # Who reads from several places may find one of them moved on; it is then read again.
                assert place.kind != "files"
        writing.result()
