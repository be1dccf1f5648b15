"""`outlast runs`, `status` and `logs` of runs that have ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from outlast.run import ended
from outlast.wire.rundir import RunDirectory
from patience import PATIENCE_S

Outlast = Any

SCRIPT = """
import os, runpy, sys
me = os.environ["OUTLAST_REPLICA"]
for number in range(int(sys.argv[1])):
    print(f"line {number} of {me}")
if sys.argv[2:]:
    sys.exit(sys.argv[2])
sys.argv = ["standin", "--steps", "5"]
runpy.run_module("outlast.testing.standin", run_name="__main__")
"""


def test_runs_that_have_ended_are_listed_shown_and_pruned(
    outlast: Outlast, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert "there is no run" in outlast("runs").stdout
    assert outlast("run", "-n", "2", "--name", "good-1", "train.py", "3").returncode == 0
    assert outlast("run", "--name", "good-2", "train.py", "30000").returncode == 0
    assert outlast("run", "--name", "bad", "train.py", "1", "no luck").returncode == 4

    listed = json.loads(outlast("runs", "--json").stdout)["runs"]
    assert [(run["run"], run["state"], run["exit_code"]) for run in listed] == [
        ("bad", "failed", 4),
        ("good-2", "finished", 0),
        ("good-1", "finished", 0),
    ]
    table = outlast("runs").stdout.splitlines()
    assert table[0].split() == ["RUN", "OUTCOME", "STARTED", "SIZE", "COMMAND"]
    assert re.fullmatch(r"good-1 +finished +\d+ \w+ ago +[\d.]+ kB +\S*/train.py 3", table[3].strip())

    told = outlast("status", "bad").stdout.splitlines()
    assert re.fullmatch(r"bad: ended \d+ s ago", told[0])
    assert re.fullmatch(r"failed after .*, before its first step", told[1])
    assert told[3] == "see `outlast logs bad --replica 0`"
    ending = json.loads(outlast("status", "bad", "--json").stdout)
    assert (ending["state"], ending["ended"]["exit_code"]) == ("failed", 4)
    assert outlast("status", "good").returncode == 2, "there are two"

    both = outlast("logs", "good-1").stdout.splitlines()
    assert [line for line in both if "line" in line] == [
        f"[{me}] line {number} of {me}" for me in (0, 1) for number in range(3)
    ]
    one = outlast("logs", "good-1", "--replica", "1", "--follow").stdout.splitlines()
    assert one[:3] == [f"line {number} of 1" for number in range(3)]
    assert outlast("logs", "good-1", "--replica", "2").returncode == 2
    head(home)

    prune = ("runs", "prune", "--keep", "1")
    assert re.search(
        r"would remove good-1 .*\n2 runs, .* would be freed", outlast(*prune, "--dry-run").stdout
    )
    assert len(list(home.glob("runs/*"))) == 3
    done = outlast(*prune)
    assert re.fullmatch(
        r"removed good-2 \(finished, .*\)\nremoved good-1 .*\n2 runs, .* freed\n", done.stdout
    )
    assert [path.name for path in home.glob("runs/*")] == ["bad"]
    assert outlast("runs", "prune").stdout == "0 runs, 0 B freed\n", "it is not old"
    age(RunDirectory(home / "runs" / "bad"), days=31)
    assert "removed bad" in outlast("runs", "prune").stdout


def head(home: Path) -> None:
    """Who reads only the first lines of much."""
    with subprocess.Popen(
        [sys.executable, "-m", "outlast", "logs", "good-2"],
        env={**os.environ, "OUTLAST_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "[0] line 0 of 0\n"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""


def age(directory: RunDirectory, days: float) -> None:
    ending = ended.read(directory)
    assert ending is not None
    ended.write(directory, msgspec.structs.replace(ending, ended_at=time.time() - days * 86400))


def test_what_cannot_be_read_is_listed_and_left_alone(outlast: Outlast, home: Path) -> None:
    odd = home / "runs" / "odd"
    odd.mkdir(parents=True)
    (odd / "run.json").write_text('{"format": 99}')
    assert "odd  cannot be read" in outlast("runs").stdout
    assert outlast("runs", "prune", "--keep", "0", "--older-than", "0").stdout == "0 runs, 0 B freed\n"
    assert odd.exists()
    assert outlast("runs", "prune", "--keep", "-1").returncode == 2
