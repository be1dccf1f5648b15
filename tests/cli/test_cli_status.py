"""`outlast status`: of no run, of one that runs, of one that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outlast.errors import CoordinatorLost, UsageError
from outlast.testing.cluster import LocalCluster

Outlast = Any


def test_there_is_no_run(outlast: Outlast) -> None:
    done = outlast("status")
    assert done.returncode == UsageError.exit_code
    assert "there is no run yet" in done.stderr
    done = outlast("status", "ghost")
    assert done.returncode == UsageError.exit_code
    assert "'ghost'" in done.stderr


def test_a_run_that_lives_and_one_that_has_ended(outlast: Outlast, home: Path) -> None:
    home.mkdir()
    with LocalCluster(2, ["-m", "outlast.testing.standin", "--steps", "1000000"], home=home) as cluster:
        cluster.wait_for_members({0, 1})
        cluster.wait_for_steps(0, 1)
        told = outlast("status")
        assert told.returncode == 0
        assert "job  view 1" in told.stdout
        assert "replica 1" in told.stdout
        named = json.loads(outlast("status", "job", "--json").stdout)
        assert named["job"] == "job"
        assert [member["replica"] for member in named["view"]["members"]] == [0, 1]
        assert {pulse["pid"] for pulse in named["pulses"]} == set(cluster.replica_pids().values())
        by_path = outlast("status", str(cluster.directory.path), "--json")
        assert json.loads(by_path.stdout)["job"] == "job"
    ended = outlast("status", "job")
    assert ended.returncode == CoordinatorLost.exit_code
    assert "it has ended" in ended.stderr
    assert outlast("status").returncode == CoordinatorLost.exit_code


def test_a_directory_that_is_no_run(outlast: Outlast, home: Path) -> None:
    run = home / "runs" / "odd"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"format": 99}')
    for arguments in (["status"], ["status", "odd"]):
        done = outlast(*arguments)
        assert done.returncode == UsageError.exit_code
        assert "another version of Outlast" in done.stderr
