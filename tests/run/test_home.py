"""Where runs are kept, and which one is meant."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from outlast.errors import UsageError
from outlast.protocol.views import JobSpec
from outlast.run.home import alive, find_run, fresh_name, home, started_at
from outlast.wire.rundir import RunDirectory, RunFile


def make_run(base: Path, name: str, *, launcher_pid: int = 0, age_s: float = 0.0) -> RunDirectory:
    run = RunFile(
        spec=JobSpec(name=name, replicas=1, shards=1),
        addresses=("127.0.0.1:1",),
        argv=("train.py",),
        working_directory="/",
        launcher_pid=launcher_pid,
        launcher_started=started_at(launcher_pid),
    )
    directory = RunDirectory(base / "runs" / name)
    directory.create(run)
    written = time.time() - age_s
    os.utime(directory.path / "run.json", (written, written))
    return directory


def test_home_is_the_users_to_choose() -> None:
    assert home({"OUTLAST_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert home({"XDG_STATE_HOME": "/b"}) == Path("/b/outlast")
    assert home({"XDG_STATE_HOME": ""}) == Path.home() / ".local/state/outlast"


def test_the_newest_run_is_meant_unless_an_older_one_is_alive(tmp_path: Path) -> None:
    make_run(tmp_path, "old", age_s=20)
    make_run(tmp_path, "new", age_s=10)
    assert find_run(None, tmp_path).name == "new"
    make_run(tmp_path, "older", age_s=30, launcher_pid=os.getpid())
    assert find_run(None, tmp_path).name == "older"
    (tmp_path / "runs" / "older" / "run.json").write_text("{")
    assert find_run(None, tmp_path).name == "older", "the newest by now, though nobody can read it"


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    made = make_run(tmp_path, "job")
    assert find_run("job", tmp_path).path == made.path
    assert find_run(str(made.path), tmp_path / "elsewhere").path == made.path
    for name in ("ob", "job/..", "", "/"):
        with pytest.raises(UsageError, match="there is no run"):
            find_run(name, tmp_path)
    with pytest.raises(UsageError, match="there is no run yet"):
        find_run(None, tmp_path / "elsewhere")


def test_the_beginning_of_a_name_is_enough_if_it_is_one_runs_alone(tmp_path: Path) -> None:
    for name in ("digits-1-ab", "digits-2-cd", "digits-2"):
        make_run(tmp_path, name)
    assert find_run("digits-1", tmp_path).name == "digits-1-ab"
    assert find_run("digits-2", tmp_path).name == "digits-2", "a whole name is meant as such"
    with pytest.raises(UsageError, match=r"may be any of .*digits-2-cd") as error:
        find_run("digits-", tmp_path)
    assert "digits-1-ab" in str(error.value)


def test_a_run_is_alive_while_its_launcher_is(tmp_path: Path) -> None:
    assert alive(make_run(tmp_path, "mine", launcher_pid=os.getpid()).read())
    assert not alive(make_run(tmp_path, "gone", launcher_pid=1 << 22).read())
    assert not alive(make_run(tmp_path, "kernel", launcher_pid=0).read())


def test_a_run_is_not_alive_because_somebody_else_has_its_launchers_number(tmp_path: Path) -> None:
    run = make_run(tmp_path, "mine", launcher_pid=os.getpid()).read()
    assert not alive(msgspec.structs.replace(run, launcher_started=run.launcher_started - 1))


def test_names_are_readable_and_no_two_are_equal() -> None:
    names = {fresh_name("/some/where/my train!.py") for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("my-train-20") for name in names)
    assert fresh_name("….py").startswith("run-")
    assert len(fresh_name("x" * 500)) < 80


def test_a_process_that_has_ended_and_was_not_buried_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert started_at(child.pid) > 0
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert started_at(child.pid) == 0
