"""The log's file: what a crash leaves is repaired, what no crash leaves is refused and left alone."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_faults import PowerCutDisk

from outlast.coordinator.store.frames import MARKER, decode_log, encode_frame, encode_header
from outlast.coordinator.store.log import Log, Recovered
from outlast.coordinator.store.records import Change, Kept, State, Transaction, encode_record
from outlast.errors import StoreDamaged, StoreError, StoreLocked

SALT = bytes(range(16))


@contextmanager
def opened(directory: Path) -> Iterator[tuple[Log, Recovered]]:
    log, recovered = Log.open(directory, PowerCutDisk(directory))
    try:
        yield log, recovered
    finally:
        log.close()


def change(revision: int) -> tuple[Change, ...]:
    return (Change(f"key{revision}", b"value%d" % revision),)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with five transactions in it."""
    directory = tmp_path / "store"
    with opened(directory) as (log, _):
        for revision in range(1, 6):
            log.append(revision, change(revision))
    return directory


def expected(count: int) -> list[Transaction]:
    return [Transaction(change(revision)) for revision in range(1, count + 1)]


def frame_bounds(data: bytes) -> list[tuple[int, int]]:
    """Where each frame begins and ends, the one with the first state included."""
    return [(frame.start, frame.end) for frame in decode_log(data, Path("log"))[1]]


def test_what_was_appended_is_there_after_a_reopen(directory: Path) -> None:
    with opened(directory) as (_, recovered):
        assert recovered == Recovered(0, State(), expected(5), 0)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path / "new" / "store"):
            modes = {
                path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
                for path in (tmp_path / "new").rglob("*")
            }
    finally:
        os.umask(before)
    assert modes == {"new/store": 0o700, "new/store/log": 0o600, "new/store/lock": 0o600}


def test_a_log_cut_anywhere_in_its_last_two_records_keeps_all_before_the_cut(directory: Path) -> None:
    path = directory / "log"
    whole = path.read_bytes()
    bounds = frame_bounds(whole)
    for size_bytes in range(bounds[-2][0], len(whole)):
        path.write_bytes(whole[:size_bytes])
        complete = sum(end <= size_bytes for _, end in bounds)
        with opened(directory) as (log, recovered):
            assert recovered.transactions == expected(complete - 1)
            assert recovered.dropped_bytes == size_bytes - bounds[complete - 1][1]
            log.append(complete, change(complete))
        with opened(directory) as (_, recovered):
            assert recovered.transactions == expected(complete)
            assert recovered.dropped_bytes == 0


def test_any_wrong_byte_in_the_last_record_makes_it_a_torn_tail(directory: Path) -> None:
    path = directory / "log"
    whole = path.read_bytes()
    start, end = frame_bounds(whole)[-1]
    for offset in range(start, end):
        path.write_bytes(flipped(whole, offset))
        with opened(directory) as (_, recovered):
            assert recovered.transactions == expected(4)
            assert recovered.dropped_bytes == end - start


def test_any_wrong_byte_before_the_last_record_is_damage(directory: Path) -> None:
    """The header, the first state, and every record with a good one behind it."""
    path = directory / "log"
    whole = path.read_bytes()
    bounds = frame_bounds(whole)
    for offset in range(bounds[-1][0]):
        data = flipped(whole, offset)
        path.write_bytes(data)
        with pytest.raises(StoreDamaged) as caught:
            Log.open(directory)
        frame = max((start for start, _ in bounds if start <= offset), default=None)
        if frame is not None:
            assert f"{path} is damaged at byte {frame}:" in str(caught.value)
        assert "move" in str(caught.value)
        assert path.read_bytes() == data


def flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0x40]) + data[offset + 1 :]


def test_a_log_without_its_first_state_is_damage_and_not_an_empty_store(directory: Path) -> None:
    path = directory / "log"
    whole = path.read_bytes()
    for size_bytes in range(frame_bounds(whole)[0][1]):
        path.write_bytes(whole[:size_bytes])
        with pytest.raises(StoreDamaged):
            Log.open(directory)


@pytest.mark.parametrize(
    "tail",
    [bytes(5000), MARKER, MARKER * 2000, b"\xff" * 300],
    ids=["zeros", "a marker", "many markers", "ones"],
)
def test_a_tail_of_garbage_is_cut_off(directory: Path, tail: bytes) -> None:
    with (directory / "log").open("ab") as file:
        file.write(tail)
    with opened(directory) as (_, recovered):
        assert recovered.transactions == expected(5)
        assert recovered.dropped_bytes == len(tail)


def test_a_torn_record_that_carries_another_log_is_still_just_torn(directory: Path, tmp_path: Path) -> None:
    path = directory / "log"
    other = tmp_path / "other"
    with opened(other) as (log, _):
        for revision in range(1, 9):
            log.append(revision, change(revision))
    with opened(directory) as (log, _):
        log.append(6, (Change("backup", (other / "log").read_bytes()),))
    path.write_bytes(path.read_bytes()[:-1])
    with opened(directory) as (_, recovered):
        assert recovered.transactions == expected(5)


def write_log(directory: Path, *records: tuple[int, bytes]) -> None:
    directory.mkdir()
    frames = b"".join(encode_frame(SALT, revision, payload) for revision, payload in records)
    (directory / "log").write_bytes(encode_header(SALT) + frames)


STATE = encode_record(State())
ONE = encode_record(Transaction(change(1)))


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([(0, STATE), (1, ONE), (3, ONE)], "revision 3 follows revision 1"),
        ([(0, STATE), (1, ONE), (1, ONE)], "revision 1 follows revision 1"),
        ([(0, ONE)], "instead of a state"),
        ([(0, STATE), (1, STATE)], "where a transaction belongs"),
        ([(0, STATE), (1, b"\xc1")], "the record is not"),
        ([(0, STATE), (1, ONE[:-1])], "the record is not"),
    ],
)
def test_records_that_no_log_could_hold_are_damage(
    tmp_path: Path, records: list[tuple[int, bytes]], says: str
) -> None:
    write_log(tmp_path / "store", *records)
    with pytest.raises(StoreDamaged, match=says):
        Log.open(tmp_path / "store")


def test_a_newer_format_is_refused_with_its_number(directory: Path) -> None:
    path = directory / "log"
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match=r"format 2.*up to 1.*newer Outlast"):
        Log.open(directory)
    assert path.read_bytes() == data


def test_the_format_is_pinned(tmp_path: Path) -> None:
    """Logs written by version 1 of the format must stay readable: these bytes are one of them."""
    directory = tmp_path / "store"
    directory.mkdir()
    (directory / "log").write_bytes(bytes.fromhex(PINNED))
    with opened(directory) as (_, recovered):
        kept = Kept("a", b"1", created=3, modified=5, lease=0)
        assert recovered == Recovered(5, State((kept,)), [Transaction((Change("b", b"2", 7),))], 0)
    assert (directory / "log").read_bytes() == bytes.fromhex(PINNED)


PINNED = (
    "894f55544c41535401000000000102030405060708090a0b0c0d0e0fb08ba7ecf5524543050000000000000011000000"
    "ae8a8e8892a573746174659195a161c40131030500f5524543060000000000000015000000312bf77f92ab7472616e73"
    "616374696f6e9193a162c4013207"
)


def test_a_compacted_log_holds_the_same_and_goes_on(directory: Path) -> None:
    kept = tuple(Kept(f"key{i}", b"", i, i) for i in range(1, 6))
    with opened(directory) as (log, _):
        before_bytes = log.size_bytes
        log.compact(5, kept)
        assert log.size_bytes == (directory / "log").stat().st_size < before_bytes
        log.append(6, change(6))
    with opened(directory) as (log, recovered):
        assert recovered == Recovered(5, State(kept), [Transaction(change(6))], 0)
        assert sorted(path.name for path in directory.iterdir()) == ["lock", "log"]
    assert stat.S_IMODE((directory / "log").stat().st_mode) == 0o600


def test_what_an_interrupted_compaction_left_is_removed(directory: Path) -> None:
    (directory / "log.new").write_bytes(b"half a log")
    with opened(directory) as (_, recovered):
        assert recovered.transactions == expected(5)
    assert not (directory / "log.new").exists()


def test_a_second_opener_is_told_who_has_the_store(directory: Path) -> None:
    with opened(directory), pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        Log.open(directory)
    with opened(directory):
        pass


def test_a_refused_log_gives_the_lock_back(directory: Path) -> None:
    path = directory / "log"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(StoreDamaged):
        Log.open(directory)
    path.write_bytes(whole)
    with opened(directory) as (_, recovered):
        assert recovered.transactions == expected(5)


def test_a_directory_that_may_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    # Permissions mean nothing to root, so root becomes nobody for the moment.
    user = os.geteuid()
    tmp_path.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        for directory in (tmp_path, tmp_path / "store"):
            with pytest.raises(StoreError, match=r"may not be written.*another directory"):
                Log.open(directory)
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)


def test_a_file_in_place_of_the_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    for directory in (tmp_path / "store", tmp_path / "store" / "below"):
        with pytest.raises(StoreError, match="Not a directory"):
            Log.open(directory)


def test_a_closed_log_refuses(directory: Path) -> None:
    with opened(directory) as (log, _):
        log.close()
        with pytest.raises(StoreError, match="closed"):
            log.append(6, change(6))
        with pytest.raises(StoreError, match="closed"):
            log.compact(5, ())
