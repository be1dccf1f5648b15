"""What only disks can do to us: kills in the middle, full and read-only disks, links, and power cuts."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_places import Place

from outlast.errors import ObjectMissing, StorageDenied, StorageFull, StorageUnavailable
from outlast.state.storage.files import Files


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def drafts(root: Path) -> list[str]:
    folder = root / ".writing"
    return os.listdir(folder) if folder.exists() else []


def test_nothing_is_created_before_the_first_write(tmp_path: Path) -> None:
    storage = Files(tmp_path / "a" / "b")
    assert list(storage.list("")) == []
    storage.delete(["a"])
    with pytest.raises(ObjectMissing):
        storage.get("a", 1)
    assert list(tmp_path.iterdir()) == []


STOP_BEFORE_THE_MOVE = """
real = os.fsync
def fsync(file):
    if ".writing/" in os.readlink(f"/proc/self/fd/{file}"):
        print("written", flush=True)
        signal.pause()
    real(file)
os.fsync = fsync
storage.METHOD("chunks/ab", b"x" * 1000)
"""


@pytest.mark.parametrize("method", ["put", "create"])
def test_what_dead_writers_leave_is_swept_and_what_living_ones_write_is_not(
    tmp_path: Path, method: str
) -> None:
    place = Place("files", str(tmp_path))
    with place.process(STOP_BEFORE_THE_MOVE.replace("METHOD", method)) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        assert len(drafts(tmp_path)) == 1
        other = place.open()
        assert list(other.list("")) == []
        # The first write and every delete sweep, and must not harm it.
        other.put("first", b"1")
        other.delete(["first"])
        assert len(drafts(tmp_path)) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert list(other.list("")) == []
        assert len(drafts(tmp_path)) == 1
        other.delete(["nothing"])
        assert drafts(tmp_path) == []


def test_opening_for_writing_sweeps(tmp_path: Path) -> None:
    (tmp_path / ".writing").mkdir()
    (tmp_path / ".writing" / "0123").write_bytes(b"half")
    storage = Files(tmp_path)
    assert list(storage.list("")) == []
    assert drafts(tmp_path) == ["0123"]
    storage.put("a", b"1")
    assert drafts(tmp_path) == []


def test_sweepers_and_writers_at_the_same_time(tmp_path: Path) -> None:
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            Files(tmp_path).delete([])

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        storage = Files(tmp_path)
        for number in range(200):
            storage.put(f"a/{number}", b"%d" % number)
            assert storage.create(f"b/{number}", b"%d" % number)
    finally:
        done.set()
        thread.join()
    assert len(list(storage.list(""))) == 400
    assert drafts(tmp_path) == []


def test_failed_writes_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Files(tmp_path)
    storage.put("a/b", b"before")

    def broken(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(StorageUnavailable, match=r"a/b.*Input/output error"):
        storage.put("a/b", b"after")
    monkeypatch.undo()
    assert storage.get("a/b", 10) == b"before"
    assert drafts(tmp_path) == []


def test_all_that_a_name_needs_is_durable_before_a_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    root = tmp_path / "new" / "root"
    fsync, replace, link = os.fsync, os.replace, os.link

    def spy_fsync(file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        done.append(("sync", ".writing/…" if path.parent.name == ".writing" else str(path)))
        fsync(file)

    def spy_replace(old: str, new: str) -> None:
        done.append(("move", new))
        replace(old, new)

    def spy_link(old: str, new: str, **options: bool) -> None:
        done.append(("move", new))
        link(old, new, **options)

    monkeypatch.setattr("os.fsync", spy_fsync)
    monkeypatch.setattr("os.replace", spy_replace)
    monkeypatch.setattr("os.link", spy_link)
    storage = Files(root)
    storage.put("chunks/ab/cd", b"1")
    above = [("sync", str(path)) for path in (tmp_path, root.parent, root, root / "chunks")]
    moved = done.index(("move", str(root / "chunks/ab/cd")))
    assert set(above) <= set(done[:moved])
    assert done[moved - 1] == ("sync", ".writing/…")
    assert done[moved + 1 :] == [("sync", str(root / "chunks/ab"))]
    done.clear()
    assert storage.create("chunks/ab/ef", b"1")
    file, moved_to, folder = (
        ("sync", ".writing/…"),
        ("move", str(root / "chunks/ab/ef")),
        str(root / "chunks/ab"),
    )
    assert done == [file, moved_to, ("sync", folder)]
    done.clear()
    # What made another one lose must not be lost, whoever made it.
    assert not Files(root).create("chunks/ab/ef", b"2")
    assert done == [("sync", folder)]


def test_folders_that_vanish_are_made_anew(tmp_path: Path) -> None:
    storage = Files(tmp_path / "root")
    storage.put("a/b", b"1")
    shutil.rmtree(tmp_path / "root")
    storage.put("a/b", b"2")
    assert storage.get("a/b", 1) == b"2"


def test_links_are_neither_followed_nor_listed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    storage = Files(root)
    storage.put("a", b"1")
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    assert [stored.key for stored in storage.list("")] == ["a"]
    with pytest.raises(StorageDenied):
        storage.get("file", 100)
    storage.put("file", b"replaced")
    assert (outside / "secret").read_bytes() == b"secret"
    assert storage.get("file", 100) == b"replaced"
    storage.delete(["file"])
    # The root itself may be a link.
    (tmp_path / "link").symlink_to(root)
    assert Files(tmp_path / "link").get("a", 1) == b"1"


def test_something_in_the_way(tmp_path: Path) -> None:
    storage = Files(tmp_path)
    storage.put("a/b", b"1")
    for call in (
        lambda: storage.put("a", b"1"),
        lambda: storage.create("a", b"1"),
        lambda: storage.put("a/b/c", b"1"),
    ):
        with pytest.raises(StorageDenied, match="move it away"):
            call()
    with pytest.raises(ObjectMissing):
        storage.get("a", 1)
    with pytest.raises(ObjectMissing):
        storage.get("a/b/c", 1)
    storage.delete(["a/b/c"])
    assert drafts(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount(folder, "size=4m")
    try:
        yield folder
    finally:
        subprocess.run([tool("umount"), "--lazy", str(folder)], check=True)


def mount(folder: Path, options: str) -> None:
    done = subprocess.run(
        [tool("mount"), "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"this root may not mount either: {done.stderr}")


@needs_root
def test_a_full_disk(small_disk: Path) -> None:
    storage = Files(small_disk)
    storage.put("a", b"x" * (3 << 20))
    for call in (lambda: storage.put("b", b"y" * (3 << 20)), lambda: storage.create("b", b"y" * (3 << 20))):
        with pytest.raises(StorageFull, match=r"/b.*No space left.*Free some space"):
            call()
    assert drafts(small_disk) == []
    assert [stored.key for stored in storage.list("")] == ["a"]
    assert storage.get("a", 3 << 20) == b"x" * (3 << 20)
    storage.delete(["a"])
    storage.put("b", b"y" * (3 << 20))


@needs_root
def test_a_read_only_disk(small_disk: Path) -> None:
    Files(small_disk).put("chunks/a", b"1")
    subprocess.run([tool("mount"), "-o", "remount,ro", str(small_disk)], check=True)
    storage = Files(small_disk)
    calls = (
        lambda: storage.put("b", b"1"),
        lambda: storage.create("b", b"1"),
        lambda: storage.delete(["chunks/a"]),
    )
    for call in calls:
        with pytest.raises(StorageDenied, match=r"Read-only.*choose another folder"):
            call()
    assert storage.get("chunks/a", 1) == b"1"
    assert [stored.key for stored in storage.list("")] == ["chunks/a"]
    assert not storage.create("chunks/a", b"2")


PUT_AS_NOBODY = """
from outlast.errors import StorageDenied
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    storage.put("a", b"1")
except StorageDenied as error:
    print(error, flush=True)
"""


def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o500)
    with Place("files", str(folder)).process(PUT_AS_NOBODY) as child:
        assert child.stdout is not None
        assert "Permission denied" in child.stdout.readline()
