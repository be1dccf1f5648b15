"""`outlast status`: of no run, of one that runs, of one that has ended."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from outlast.errors import UsageError
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
        assert told.stdout.startswith("job  training\n")
        assert "replica 1  training" in told.stdout
        named = json.loads(outlast("status", "jo", "--json").stdout)
        assert (named["version"], named["run"], named["state"]) == (1, "job", "running")
        assert named["view"]["members"] == [0, 1]
        assert (named["wanted"], named["training"]) == (2, 2)
        assert {line["pid"] for line in named["replicas"]} == set(cluster.replica_pids().values())
        assert named["step"] > 0
        assert named["ended"] is None
        by_path = outlast("status", str(cluster.directory.path), "--json")
        assert json.loads(by_path.stdout)["run"] == "job"
        listed = json.loads(outlast("runs", "--json").stdout)
        assert listed["version"] == 1
        assert [(run["run"], run["state"]) for run in listed["runs"]] == [("job", "running")]
        assert outlast("runs", "prune", "--keep", "0", "--older-than", "0").stdout == "0 runs, 0 B freed\n"
        assert cluster.directory.path.exists()
    killed = outlast("status", "job")
    assert killed.returncode == 0
    assert re.fullmatch(r"job: was interrupted: its launcher was killed, .*, at step \d+\n", killed.stdout)
    assert json.loads(outlast("status", "--json").stdout)["state"] == "interrupted"


def test_a_directory_that_is_no_run(outlast: Outlast, home: Path) -> None:
    run = home / "runs" / "odd"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"format": 99}')
    for arguments in (["status"], ["status", "odd"]):
        done = outlast(*arguments)
        assert done.returncode == UsageError.exit_code
        assert "another version of Outlast" in done.stderr
