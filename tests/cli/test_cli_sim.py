"""`outlast sim`: what is said of seeds that hold, and of those that break a promise."""

from typing import Any

import pytest

from outlast.cli import sim
from outlast.sim.simulation import Verdict
from outlast.sim.sweep import Tally


def broken(seed: int) -> Verdict:
    zeros = dict.fromkeys(("views", "steps", "left_out", "charges", "commits", "resumes", "returns"), 0)
    return Verdict(seed=seed, violation=f"no. {seed}", story=f"of {seed}", back_after_s=0.0, **zeros)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many violations the sweep was to look for; there are two."""
    asked: list[int] = []

    def sweep(*_: Any, most: int) -> tuple[Tally, list[Verdict]]:
        asked.append(most)
        return Tally(seeds=9), [broken(8), broken(3)][:most]

    monkeypatch.setattr(sim, "sweep", sweep)
    return asked


def test_seeds_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--seeds", "2"]) == 0
    assert "2 seeds, " in (said := capsys.readouterr().out) and "every promise held" in said


def test_the_first_that_breaks_a_promise_ends_it(
    asked: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim.main(["--seeds", "9"]) == 1
    assert asked == [1]
    assert capsys.readouterr().out.splitlines() == [
        "of 8",
        "",
        "seed 8: no. 8",
        "1 of 9 seeds broke a promise",
        "replay one with: outlast sim --seed 8",
    ]


def test_who_keeps_going_is_told_of_all(asked: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--seeds", "9", "--keep-going"]) == 1
    assert asked == [9]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "of 3", "the story of one of them"
    assert said[2:4] == ["seed 3: no. 3", "seed 8: no. 8"]
