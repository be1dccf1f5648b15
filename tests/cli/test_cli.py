"""The `outlast` command itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from outlast import cli, errors
from patience import PATIENCE_S

Outlast = Any


def test_the_commands_are_all_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("outlast 0.")
    assert cli.main([]) == 2
    told = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command in told
        with pytest.raises(SystemExit) as done:
            cli.main([command, "--help"])
        assert done.value.code == 0
        assert f"outlast {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        cli.main(["no-such-command"])
    assert done.value.code == 2


def test_every_exit_code_is_documented_and_means_one_thing() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.OutlastError)}
    # A peer's bad manners and an eviction never end a command.
    internal = {errors.ProtocolError.exit_code, errors.Fenced.exit_code}
    for code in codes - internal:
        assert f" {code}  " in cli.EXIT_CODES.replace("\n", "  ")
    own = [vars(kind)["exit_code"] for kind in kinds if "exit_code" in vars(kind)]
    assert len(own) == len(set(own))


def test_an_error_is_told_without_a_traceback(outlast: Outlast) -> None:
    done = outlast("run", "nowhere.py")
    assert done.stderr.startswith("outlast: there is no script nowhere.py")
    assert done.stdout == ""


SLOW = """
import importlib.abc, signal, sys, time
# Whoever runs this in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "outlast.cli":
            print("importing", flush=True)
            time.sleep(100)
sys.meta_path.insert(0, Slow())
from outlast.entry import main
sys.exit(main())
"""


def test_ctrl_c_before_anything_is_loaded() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read() == ""


def test_who_has_seen_enough_of_our_output_gets_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "outlast", "sim", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


def test_ctrl_c_is_not_an_error_in_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    assert cli.main(["run", "train.py"]) == 130
