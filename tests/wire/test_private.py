"""What others could swap is refused, and what we make is for us alone."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import ConfigError
from outlast.wire import private

SOMEBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can see, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="outlast-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_what_we_make_is_ours_alone_whatever_the_umask(place: Path) -> None:
    private.make_directory(place / "home" / "runs" / "job", own=3)
    private.make_below(place / "home" / "runs" / "job" / "agents" / "agent-0")
    private.write_file(place / "home" / "runs" / "job" / "run.json", b"{}")
    made = sorted((place / "home").rglob("*"))
    assert [mode(path) for path in (place / "home", *made)] == [0o700] * 5 + [0o600]


@pytest.mark.parametrize("loose", [0o777, 0o770, 0o757, 0o720])
@pytest.mark.parametrize("which", ["home", "home/runs"])
def test_a_home_that_others_may_write_to_is_refused_with_what_to_run(
    place: Path, which: str, loose: int
) -> None:
    (place / "home" / "runs").mkdir(parents=True)
    (place / which).chmod(loose)
    with pytest.raises(ConfigError, match=f"`chmod go-w {place / which}`"):
        private.make_directory(place / "home" / "runs" / "job", own=3)
    assert not (place / "home" / "runs" / "job").exists()


def test_one_command_mends_all(place: Path) -> None:
    (place / "home" / "runs").mkdir(parents=True)
    for path in (place / "home", place / "home" / "runs"):
        path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"`chmod go-w {place / 'home'} {place / 'home' / 'runs'}`"):
        private.make_directory(place / "home" / "runs" / "job", own=3)


def test_nothing_is_made_below_what_others_may_write_to(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(ConfigError, match=f"`chmod go-w {place}`"):
        private.make_directory(place / "home" / "runs" / "job", own=3)
    assert not (place / "home").exists()


def test_a_sticky_directory_on_the_way_is_all_right(place: Path) -> None:
    place.chmod(0o1777)
    private.make_directory(place / "home" / "runs" / "job", own=3)
    os.close(private.open_directory(place / "home" / "runs" / "job"))
    (place / "home" / "runs" / "job").chmod(0o1777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        private.open_directory(place / "home" / "runs" / "job")


@as_root
@pytest.mark.parametrize("which", ["home", "home/runs", "home/runs/job"])
def test_what_belongs_to_somebody_else_is_refused(place: Path, which: str) -> None:
    private.make_directory(place / "home" / "runs" / "job", own=3)
    os.chown(place / which, SOMEBODY, SOMEBODY)
    with pytest.raises(ConfigError, match=rf"{place / which} belongs to another user \(id {SOMEBODY}\)"):
        private.open_directory(place / "home" / "runs" / "job")


def test_links_on_the_way_are_followed(place: Path) -> None:
    private.make_directory(place / "there" / "runs" / "job", own=3)
    (place / "far").symlink_to(place / "there")
    (place / "near").symlink_to("far")
    (place / "there" / "again").symlink_to("../near/runs")
    fd = private.open_directory(place / "near" / "again" / "job")
    assert os.path.samestat(os.fstat(fd), (place / "there" / "runs" / "job").stat())
    os.close(fd)


def test_a_link_is_not_followed_past_the_rules(place: Path) -> None:
    (place / "there" / "runs").mkdir(parents=True)
    (place / "there").chmod(0o777)
    (place / "home").symlink_to("there/runs")
    with pytest.raises(ConfigError, match=f"chmod go-w {place / 'there'}"):
        private.open_directory(place / "home")
    (place / "round").symlink_to("round")
    with pytest.raises(ConfigError, match="too many symbolic links"):
        private.open_directory(place / "round")


@as_root
def test_somebody_elses_link_in_a_sticky_directory_is_refused(place: Path) -> None:
    place.chmod(0o1777)
    private.make_directory(place / "there")
    (place / "home").symlink_to("there")
    os.chown(place / "home", SOMEBODY, SOMEBODY, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to another user"):
        private.open_directory(place / "home")


def test_a_directory_is_known_again_but_no_other_one_is_taken_for_it(place: Path) -> None:
    private.make_directory(place / "job")
    held = private.open_directory(place / "job")
    known = private.identity(held)
    os.close(private.open_same_directory(place / "job", known))
    (place / "job").rename(place / "aside")
    with pytest.raises(ConfigError, match="is not the directory that this run was started with"):
        private.open_same_directory(place / "job", known)
    (place / "job").mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="is not the directory that this run was started with"):
        private.open_same_directory(place / "job", known)
    os.close(held)


def test_a_file_is_read_from_the_open_directory_and_proven_ours(place: Path) -> None:
    private.write_file(place / "file", b"ours")
    fd = private.open_directory(place)
    assert private.read_file(fd, place / "file") == b"ours"
    (place / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        private.read_file(fd, place / "link")
    os.mkfifo(place / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        private.read_file(fd, place / "pipe")
    (place / "file").chmod(0o606)
    with pytest.raises(ConfigError, match="chmod go-w"):
        private.read_file(fd, place / "file")
    os.close(fd)


def test_nothing_is_left_of_a_file_that_cannot_be_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    private.write_file(place / "a", b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        private.write_file(place / "a", b"after", durable=True)
    assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [("a", b"before")]


@as_root
def test_a_file_of_somebody_else_is_not_read(place: Path) -> None:
    private.write_file(place / "file", b"theirs")
    os.chown(place / "file", SOMEBODY, SOMEBODY)
    fd = private.open_directory(place)
    with pytest.raises(ConfigError, match="belongs to another user"):
        private.read_file(fd, place / "file")
    os.close(fd)
