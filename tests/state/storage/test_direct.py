"""Files that are written without the page cache hold the same bytes as any others."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.state.storage import direct
from outlast.state.storage.direct import WORTH_IT_BYTES, read_around_cache, write_around_cache
from outlast.state.storage.files import Files


@pytest.fixture
def memory() -> Iterator[memoryview]:
    """More than is worth it, not a whole number of pages, beginning a page."""
    size = WORTH_IT_BYTES + 3 * mmap.PAGESIZE + 77
    with mmap.mmap(-1, size) as space:
        space.write(os.urandom(size))
        view = memoryview(space)
        yield view
        view.release()


def written(path: Path, data: memoryview) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        return write_around_cache(file, data)
    finally:
        os.close(file)


def test_an_object_is_what_was_put_whatever_its_end_and_its_place_in_memory(
    tmp_path: Path, memory: memoryview
) -> None:
    files = Files(tmp_path)
    for number, data in enumerate([memory, memory[:-77], memory[1:], bytes(memory), memory[:100]]):
        files.put(f"x/{number}", data)
        assert files.get(f"x/{number}", len(data)) == bytes(data)


def test_whole_pages_go_that_way_and_the_rest_does_not(tmp_path: Path, memory: memoryview) -> None:
    done = written(tmp_path / "x", memory)
    if done == 0:
        pytest.skip("this disk cannot be written to without the page cache")
    assert done == len(memory) - 77
    assert (tmp_path / "x").read_bytes() == bytes(memory[:done])


def test_what_is_small_or_begins_no_page_goes_the_usual_way(tmp_path: Path, memory: memoryview) -> None:
    assert written(tmp_path / "a", memory[1:]) == 0
    assert written(tmp_path / "b", memory[: mmap.PAGESIZE]) == 0
    assert written(tmp_path / "c", memoryview(bytes(memory))) == 0


def test_a_disk_that_cannot_is_written_to_the_usual_way(
    tmp_path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def refusing(file: int, data: memoryview) -> int:
        if direct.fcntl.fcntl(file, direct.fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return write(file, data)

    monkeypatch.setattr(os, "write", refusing)
    files = Files(tmp_path)
    files.put("x/0", memory)
    assert files.get("x/0", len(memory)) == bytes(memory)


def test_what_is_read_is_what_was_written_whatever_its_end_and_its_place_in_memory(
    tmp_path: Path, memory: memoryview
) -> None:
    files = Files(tmp_path)
    files.put("x/0", memory)
    for offset in (0, 1, mmap.PAGESIZE - 64):
        with mmap.mmap(-1, len(memory) + offset) as space, memoryview(space)[offset:] as out:
            files.read_into("x/0", out)
            assert out == memory


def read(path: Path, out: memoryview) -> int:
    file = os.open(path, os.O_RDONLY)
    try:
        return read_around_cache(file, out)
    finally:
        os.close(file)


def test_what_begins_no_page_is_read_around_the_cache_as_well(tmp_path: Path, memory: memoryview) -> None:
    (tmp_path / "x").write_bytes(memory)
    with mmap.mmap(-1, len(memory) + 1) as space:
        with memoryview(space)[:-1] as out:
            done = read(tmp_path / "x", out)
        if done == 0:
            pytest.skip("this disk cannot be read without the page cache")
        assert done == len(memory) - 77
        with memoryview(space)[1:] as out:
            assert read(tmp_path / "x", out) == len(memory)
            assert out == memory


def test_a_file_that_is_too_short_is_read_to_its_end(tmp_path: Path, memory: memoryview) -> None:
    (tmp_path / "x").write_bytes(memory[: WORTH_IT_BYTES // 2 + 5])
    for offset in (0, 1):
        with mmap.mmap(-1, len(memory) + offset) as space, memoryview(space)[offset:] as out:
            assert read(tmp_path / "x", out) in (0, WORTH_IT_BYTES // 2 + 5)


def test_a_disk_that_cannot_is_read_the_usual_way(
    tmp_path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = direct.fcntl.fcntl

    def refusing(file: int, command: int, *arguments: int) -> int:
        if command == direct.fcntl.F_SETFL and arguments[0] & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return setting(file, command, *arguments)

    files = Files(tmp_path)
    files.put("x/0", memory)
    monkeypatch.setattr(direct.fcntl, "fcntl", refusing)
    assert files.get("x/0", len(memory)) == bytes(memory)


def test_a_full_disk_is_told(tmp_path: Path, memory: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        written(tmp_path / "x", memory)
