"""`outlast run`: what is asked for, and what is wrong with it, without starting anything that lasts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from outlast.cli.run import _parser, preloads, split
from outlast.errors import AddressInUse, ScriptNotFound, UsageError

Outlast = Any


@pytest.mark.parametrize(
    ("argv", "own", "program"),
    [
        ("train.py", "", "train.py"),
        ("-n 4 train.py -n 5 --name x", "-n 4", "train.py -n 5 --name x"),
        ("-n4 train.py", "-n4", "train.py"),
        ("--replicas=4 train.py", "--replicas=4", "train.py"),
        ("--name a --plain train.py --plain", "--name a --plain", "train.py --plain"),
        ("-n 2 -m package.train --help", "-n 2", "-m package.train --help"),
        ("-n 2 -- -odd.py", "-n 2", "-odd.py"),
        ("--plain", "--plain", ""),
        ("-n", "-n", ""),
        ("", "", ""),
    ],
)
def test_our_options_end_where_the_program_begins(argv: str, own: str, program: str) -> None:
    assert split(argv.split(), _parser()) == (own.split(), program.split())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", ["torch"]),
        ("import os, torch.nn as nn", ["torch"]),
        ("def train():\n    from torch.optim import Adam", ["torch"]),
        ("from . import torch", []),
        ("import torchvision", []),
        ("# import torch", []),
        ("import torch syntax error", []),
        ("\0", []),
    ],
)
def test_torch_is_preloaded_if_the_script_imports_it(
    source: str, expected: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert preloads(script) == expected


def test_what_cannot_be_read_preloads_nothing(tmp_path: Path) -> None:
    assert preloads(None) == []
    assert preloads(tmp_path / "nowhere.py") == []
    assert preloads(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--no-such-flag", "train.py"], "--no-such-flag"),
        (
            ["-n", "2", "--lr", "0.1", "train.py", "x"],
            "--lr is no option of outlast run. Options of the script",
        ),
        (["-n", "2", "--lr", "0.1", "train.py", "x"], "outlast run -n 2 train.py --lr 0.1 x"),
        (["--lr=0.1", "train.py"], "outlast run train.py --lr=0.1"),
        (["--min-replica", "2", "train.py"], "Did you mean --min-replicas?"),
        (["-n", "many", "train.py"], "many"),
        (["-n", "0", "train.py"], "-n is 0"),
        (["-n", "1", "--agents", "2", "train.py"], "--agents is 2"),
        (["--coordinators", "0", "train.py"], "--coordinators is 0"),
        (["--coordinators", "3", "train.py"], "several of them need a store that they share"),
        (["--store", "etcd://host/p", "train.py"], "'host' in the store 'etcd://host/p' is no host"),
        (["--store", "redis://host:1/prefix", "train.py"], "is none that Outlast knows"),
        (["--threads", "0", "train.py"], "--threads is 0"),
        (["--shards", "0", "train.py"], "--shards is 0"),
        (["-n", "2", "--min-replicas", "3", "train.py"], "--min-replicas"),
        (["-n", "2", "--min-replicas", "0", "train.py"], "--min-replicas"),
        (["--detect-within", "0.001", "train.py"], "is 0.001, but must lie between"),
        (["--detect-within", "nan", "train.py"], "is nan, but must lie between"),
        (["--name", "../elsewhere", "train.py"], "--name is '../elsewhere'"),
        (["--listen", "0.0.0.0:0", "train.py"], "127.0.0.1"),
        (["--listen", "7000", "train.py"], "host:port"),
        (["-m"], "-m needs a module"),
        ([], "nothing to run"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(
    arguments: list[str], word: str, outlast: Outlast, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "train.py").touch()
    done = outlast("run", *arguments)
    assert done.returncode == UsageError.exit_code
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(home.glob("runs/*"))


@pytest.mark.parametrize("arguments", [["nowhere.py"], ["."], ["-m", "no_such_module"], ["-m", "no.such"]])
def test_a_program_that_is_not_there_is_3(arguments: list[str], outlast: Outlast, home: Path) -> None:
    done = outlast("run", *arguments)
    assert done.returncode == ScriptNotFound.exit_code
    assert "Traceback" not in done.stderr
    assert not home.exists()


def test_a_port_that_is_taken_is_5(outlast: Outlast, tmp_path: Path, home: Path) -> None:
    (tmp_path / "train.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = outlast("run", "--listen", address, "train.py")
    assert done.returncode == AddressInUse.exit_code
    assert address in done.stderr
    assert not home.exists()


def test_a_home_that_cannot_be_written_is_8(outlast: Outlast, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = outlast("run", "train.py", OUTLAST_HOME=str(tmp_path / "train.py"))
    assert done.returncode == 8
    assert "cannot be written" in done.stderr
    assert "OUTLAST_HOME" in done.stderr


def test_a_syntax_error_is_the_scripts_own(outlast: Outlast, tmp_path: Path, home: Path) -> None:
    (tmp_path / "train.py").write_text("def broken(:\n")
    done = outlast("run", "-n", "2", "--name", "job", "train.py")
    assert done.returncode == 4
    assert "SyntaxError: invalid syntax" in done.stderr
    assert "outlast: failed after" in done.stderr

    again = outlast("run", "--name", "job", "train.py")
    assert again.returncode == 2
    assert "there is a run 'job' already" in again.stderr
    assert str(home / "runs" / "job") in again.stderr
