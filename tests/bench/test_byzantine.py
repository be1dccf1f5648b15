import argparse
import json
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bench import byzantine
from bench.byzantine_data import load
from bench.byzantine_report import Cell, best_rule, draw_heat_maps, print_tables, worst_attacks
from bench.byzantine_rules import OUTLAST
from bench.byzantine_training import ATTACKS, Run
from bench.byzantine_worker import Task, task_of
from bench.result import Result

TASK = Task(
    library="outlast",
    dataset="digits",
    gamma=0.33,
    rule="multi_krum",
    f=2,
    attack="opt_alie",
    runs=(Run(1, 0.5), Run(2, 0.5)),
    steps=3,
    measured_on="test",
)


def cell(rule: str, attack: str | None, *accuracies: float, dataset: str = "digits", f: int = 2) -> Cell:
    return Cell(
        library="outlast", dataset=dataset, gamma=0.33, rule=rule, f=f, attack=attack, accuracies=accuracies
    )


def cells_of_both() -> list[Cell]:
    return [
        made
        for dataset, lost in (("digits", 0.01), ("mnist1d", 0.05))
        for made in (
            cell("mean", None, 0.9, 0.92, dataset=dataset),
            cell("krum", None, 0.8, 0.8, dataset=dataset),
            cell("mean", "sign_flip", 0.1, 0.1, dataset=dataset),
            cell("mean", "opt_ipm", 0.2, 0.2, dataset=dataset),
            cell("krum", "sign_flip", 0.9, 0.92, dataset=dataset),
            cell("krum", "opt_ipm", 0.91 - lost, 0.91 - lost, dataset=dataset),
        )
    ]


def test_the_worst_attack_is_the_one_that_leaves_least_over_all_seeds() -> None:
    worst = worst_attacks([cell("krum", "opt_ipm", 0.5, 0.7), cell("krum", "sign_flip", 0.1, 0.9)])
    found = worst["digits", 0.33, "krum", 2]
    assert found.attack == "sign_flip"
    assert found.percent == pytest.approx(50)


def test_what_peers_reach_does_not_count_as_ours() -> None:
    assert worst_attacks([cell("krum", "opt_ipm", 0.5)], "byzfl") == {}


def test_the_best_rule_is_the_one_whose_worst_attack_leaves_most() -> None:
    worst = worst_attacks(cells_of_both())
    assert best_rule(worst, "digits", 0.33, 2) == "krum"


def test_the_drop_is_held_against_averaging_over_honest_workers() -> None:
    drops = byzantine.accuracy_drops(cells_of_both())
    assert drops["digits"]["points"] == pytest.approx(1)
    assert drops["mnist1d"]["points"] == pytest.approx(5)
    assert drops["mnist1d"]["rule_without_attack_percent"] == pytest.approx(80)


def test_the_tables_show_the_worst_attack_by_its_short_name() -> None:
    written = StringIO()
    print_tables(cells_of_both(), Console(file=written, width=100))
    shown = written.getvalue()
    assert "mean of honest workers only: 91.0" in shown
    assert "90.0 IPM" in shown
    assert "10.0 SF" in shown


def test_there_is_a_picture_for_each_dataset(tmp_path: Path) -> None:
    paths = draw_heat_maps(cells_of_both(), tmp_path / "new")
    assert [Path(path).name for path in paths] == ["byzantine-digits.png", "byzantine-mnist1d.png"]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_task_survives_its_way_to_a_worker() -> None:
    assert task_of(TASK.as_line()) == TASK


def test_workers_answer_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    torch.save(asdict(load("digits")), tmp_path / "digits.pt")
    short = replace(TASK, runs=(Run(1, 0.5),))
    answers = byzantine.carried_out([TASK, short, TASK], tmp_path)
    assert [len(answer) for answer in answers] == [2, 1, 2]
    assert answers[0] == answers[2]
    assert answers[0][0] == answers[1][0]


def test_a_worker_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="worker"):
        byzantine.carried_out([TASK], tmp_path / "no data here")


def test_the_learning_rate_is_the_one_whose_worst_attack_leaves_most(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last rate is best against most attacks, and useless against one.
    monkeypatch.setattr(
        byzantine,
        "carried_out",
        lambda tasks, data: [[0.5, 0.6, 0.9 if task.attack != "opt_ipm" else 0.1] for task in tasks],
    )
    setting = byzantine.Setting("digits", 0.33, "krum", 100)
    assert byzantine.tuned([setting], Path()) == {setting: byzantine.LEARNING_RATES[1]}
    assert byzantine.tuned([setting], Path(), attacks=(None,)) == {setting: byzantine.LEARNING_RATES[2]}


def test_a_quick_run_measures_what_is_promised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answers(tasks: list[Task], data: Path, python: object = None) -> list[list[float]]:
        assert (data / "mnist1d.pt").exists()
        return [[0.9 if task.attack is None else 0.88] * len(task.runs) for task in tasks]

    monkeypatch.setattr(byzantine, "carried_out", answers)
    options = argparse.Namespace(tiny=False, quick=True, longer=3, no_byzfl=True, pictures=tmp_path)
    result: Result = byzantine.run(options)
    found = json.loads(result.as_json())
    assert found["accuracy_drop_points"] == pytest.approx(2)
    assert found["ok"]
    steps = {f"{name} 0.33": 3 * byzantine.STEPS[name, 0.33] for name in ("digits", "mnist1d")}
    assert found["details"]["steps"] == steps
    assert len(found["details"]["cells"]) == 2 * len(OUTLAST) * (len(ATTACKS) + 1)
