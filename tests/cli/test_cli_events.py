"""`outlast events`: of runs that have ended, of runs that go on, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.cli import events as command
from outlast.observe.files import EventFile
from outlast.observe.written import Written
from outlast.protocol import events
from outlast.protocol.events import AnyEvent
from outlast.protocol.views import JobSpec
from outlast.run.home import started_at
from outlast.wire.rundir import RunDirectory, RunFile
from patience import PATIENCE_S

Outlast = Any


def make_run(home: Path, name: str, launcher: int = 0) -> RunDirectory:
    """The directory of a run whose launcher is that process, or is gone."""
    directory = RunDirectory(home / "runs" / name)
    directory.create(
        RunFile(
            spec=JobSpec(name=name, replicas=2, shards=2),
            addresses=("127.0.0.1:9",),
            argv=("train.py",),
            working_directory="/",
            launcher_pid=launcher,
            launcher_started=started_at(launcher) if launcher else 0,
        )
    )
    return directory


def tell(directory: RunDirectory, source: str, *told: tuple[float, AnyEvent]) -> None:
    file = EventFile(directory, source)
    file.write([Written(time=at, monotonic=at, source=source, pid=7, event=event) for at, event in told])
    file.close()


DIED = events.Died(who="replica-1", cause="was killed by SIGKILL")


def test_events_of_all_are_shown_in_the_order_of_time(outlast: Outlast, home: Path) -> None:
    directory = make_run(home, "job-1")
    tell(
        directory,
        "coordinator",
        (1000.25, events.View(number=1, members=(events.Life(0, 1),), cause="the first view")),
        (1003.0, events.Ended(state="failed", reason="a very long story, and " * 10)),
    )
    tell(directory, "agent-0", (1001.5, DIED))
    done = outlast("events", "job", TZ="UTC")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "00:16:40.250 coordinator view 1: members 0.1 (the first view)",
        "00:16:41.500 agent-0     replica-1 died: it was killed by SIGKILL",
    ]
    assert len(lines) == 3
    assert all(len(line) <= 100 for line in lines)
    assert lines[2].endswith("…")

    told = [json.loads(line) for line in outlast("events", "--json").stdout.splitlines()]
    assert [one["event"]["kind"] for one in told] == ["view", "died", "ended"]
    assert told[1] == {
        "version": 1,
        "time": 1001.5,
        "monotonic": 1001.5,
        "source": "agent-0",
        "pid": 7,
        "incarnation": 0,
        "dropped": 0,
        "event": {
            "kind": "died",
            "who": "replica-1",
            "process": 0,
            "incarnation": 0,
            "cause": "was killed by SIGKILL",
            "step": -1,
        },
    }


def test_a_run_without_events_and_one_that_is_not_there(outlast: Outlast, home: Path) -> None:
    make_run(home, "silent")
    assert outlast("events").stdout == ""
    assert outlast("events", "nobody").returncode == 2


def test_what_is_in_a_cause_stays_within_its_line() -> None:
    died = events.Died(who="replica-1", cause="exited\nwith\x1b[2J status 1")
    line = command.as_line(Written(time=0.0, monotonic=0.0, source="agent-0", pid=1, event=died))
    assert line.endswith("replica-1 died: it exited with [2J status 1")


def test_events_that_are_missing_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_run(tmp_path, "job")
    monkeypatch.setenv("OUTLAST_HOME", str(tmp_path))
    file = EventFile(directory, "agent-0")
    file.write([Written(time=1.0, monotonic=1.0, source="agent-0", pid=1, dropped=3, event=DIED)])
    file.close()
    assert command.main([]) == 0
    assert re.search(r"… 3 events are missing here\n.*died", capsys.readouterr().out)


def test_a_run_that_goes_on_is_followed_to_its_end(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        directory = make_run(home, "job", launcher.pid)
        tell(directory, "agent-0", (1000.0, DIED))
        with subprocess.Popen(
            [sys.executable, "-m", "outlast", "events", "--follow", "--json"],
            env={**os.environ, "OUTLAST_HOME": str(home)},
            stdout=subprocess.PIPE,
            text=True,
        ) as following:
            assert following.stdout is not None
            assert json.loads(following.stdout.readline())["event"]["kind"] == "died"
            tell(directory, "launcher", (1002.0, events.Ended(state="finished")))
            assert json.loads(following.stdout.readline())["event"]["kind"] == "ended"
            tell(directory, "agent-0", (1003.0, DIED))
            launcher.communicate(b"\n", timeout=PATIENCE_S)
            assert json.loads(following.stdout.readline())["time"] == 1003.0
            assert following.stdout.readline() == ""
            assert following.wait(PATIENCE_S) == 0
