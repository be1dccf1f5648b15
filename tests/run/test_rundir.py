"""The run directory: written once, whole, and for its owner alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.errors import ConfigError
from outlast.protocol.views import JobSpec
from outlast.wire.rundir import RunDirectory, RunFile

RUN = RunFile(
    spec=JobSpec(name="job", replicas=4, shards=8),
    addresses=("127.0.0.1:7000",),
    argv=("-m", "train", "--lr", "0.1"),
    working_directory="/somewhere",
    preload=("torch",),
    threads=2,
    detect_within_s=0.5,
    launcher_pid=17,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs" / "job")
    token = directory.create(RUN)
    assert directory.read() == RUN
    assert directory.token() == token
    assert directory.read().timing().detect_within_s == 0.5
    assert sorted(path.name for path in directory.path.iterdir()) == ["run.json", "token"]
    assert directory.path.stat().st_mode & 0o077 == 0
    assert directory.token_file.stat().st_mode & 0o077 == 0
    assert token.hex() not in (directory.path / "run.json").read_text()


def test_the_umask_opens_nothing_to_others(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        RunDirectory(tmp_path / "home" / "runs" / "job").create(RUN)
    finally:
        os.umask(before)
    made = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert len(made) == 5
    assert not any(path.stat().st_mode & 0o077 for path in made)


def test_another_directory_under_the_same_name_is_not_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "job")
    directory.create(RUN)
    with directory.held():
        directory.path.rename(tmp_path / "aside")
        RunDirectory(tmp_path / "job").create(RUN)
        told = RunDirectory(directory.path, directory.identity)
        for read in (directory.read, directory.token, told.read, told.token):
            with pytest.raises(ConfigError, match="is not the directory that this run was started with"):
                read()


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "job").create(RUN)
    with pytest.raises(FileExistsError):
        RunDirectory(tmp_path / "job").create(RUN)


def test_relative_paths_survive_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(Path("job"))
    monkeypatch.chdir("/")
    assert directory.path == tmp_path / "job"
    assert directory.log(3) == tmp_path / "job" / "logs" / "replica-3.log"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b'{"surprise": 1}', b"\xff"])
def test_what_makes_no_sense_is_an_error_that_names_the_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.json"):
        RunDirectory(tmp_path).read()


def test_another_directory_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory(tmp_path).read()
