import argparse
import json
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

import bench.__main__ as command
from bench.__main__ import BENCHMARKS, asked_for, described, main, parser
from bench.plaincopy import receive
from bench.result import Result


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_measures_and_can_be_asked_for_json(name: str) -> None:
    assert described(name).partition("\n")[0].endswith(".")
    assert parser([name]).parse_args([name, "--json"]).json


def test_all_benchmarks_can_run_in_one_command() -> None:
    assert parser(asked_for(["all"])).parse_args(["all"]).name == "all"


def test_who_asks_for_one_gets_one_and_who_asks_for_help_none() -> None:
    assert asked_for(["detect", "--json"]) == ("detect",)
    assert asked_for(["all", "--json"]) == BENCHMARKS
    assert asked_for(["--help"]) == asked_for([]) == asked_for(["no such thing"]) == ()


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`pretend(detect=error)`: all benchmarks find nothing, except for those that fail like this."""

    def pretend(**failing: Exception) -> None:
        for name in BENCHMARKS:
            module = ModuleType(f"bench.{name}")

            def run(options: argparse.Namespace, name: str = name) -> Result:
                if name in failing:
                    raise failing[name]
                return Result(name=name, figures={"figure": 1.0})

            module.__dict__.update(run=run, add_options=lambda parser: None)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(command.signal, "signal", lambda *_: None)

    return pretend


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'sklearn'", name="sklearn"), KeyError(2)]
)
def test_one_that_fails_keeps_no_other_from_running(
    error: Exception, pretend: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(detect=error)
    assert main(["all", "--json"]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert tuple(found) == BENCHMARKS
    assert found.pop("detect")["failed"].startswith(type(error).__name__)
    assert all(one["figure"] == 1.0 for one in found.values())
    assert "detect" in said.err


def test_one_that_fails_alone_prints_no_figures(
    pretend: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(detect=KeyError(2))
    assert main(["detect", "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "KeyError: 2" in said.err
    assert main(["failover", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["benchmark"] == "failover"


def test_a_plain_copy_takes_some_time() -> None:
    assert receive(1_000_000) > 0
