"""What attackers cost in accuracy: training under the worst of four attacks, by rule and attackers.

The protocol of ByzFL's benchmark: 10 honest workers who send momentum (0.9; batches of 25, weight decay
1e-4), f = 1 to 4 attackers beside them, data that is spread evenly (gamma = 1) or two thirds of it sorted by
label (gamma = 0.33), and the worst of sign flip, label flip, and ALIE and IPM at the strength that harms the
rule at hand most. Here on scikit-learn's `digits` and on `mnist1d`, with a small perceptron.

- `accuracy_drop_points`: the mean of honest workers alone, minus the best rule under its worst attack, at
  f = 2 and gamma = 0.33, in points of test accuracy, for the dataset where that is more. The best rule is the
  one that keeps most accuracy; means over all seeds.

All trainings on a dataset and gamma have the same number of steps, and accuracy is that of the last. Each
rule has the learning rate that serves it best under its worst attack at f = 2, on validation data and with a
seed of its own; averaging has the one that serves it best without attack, out of the same rates. Strengths
are searched anew every 20 steps, with 12 trials. ByzFL's rules run in their own venv, as they come, at f = 2
and gamma = 0.33, with the learning rates of ours.

Accuracies by rule go to standard error, and pictures of them to --pictures. All of it should take less than
ten minutes on two idle cores; --quick is f = 2 and gamma = 0.33 only, about a third of that. Rules that are
under attack learn slowly: --longer shows what is left with more time.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.byzantine_data import DATASETS, load
from bench.byzantine_report import Cell, best_rule, draw_heat_maps, print_tables, unattacked, worst_attacks
from bench.byzantine_rules import BYZFL, OUTLAST
from bench.byzantine_training import ATTACKS, Run
from bench.byzantine_worker import Task
from bench.result import Result

STEPS = {("digits", 1.0): 100, ("digits", 0.33): 300, ("mnist1d", 1.0): 100, ("mnist1d", 0.33): 300}
"""Data that is spread evenly is learnt sooner."""
GAMMAS = (1.0, 0.33)
COUNTS = (1, 2, 3, 4)
LEARNING_RATES = (0.5, 1.0, 2.0)
SEEDS = (1, 2, 3)
TUNING_SEED = 0
PROMISED_GAMMA, PROMISED_F = 0.33, 2
BOUND_POINTS = 3.0
TINY_STEPS = 2
TINY_RULES = ("mean", "trimmed_mean")
PACKAGES = ("matplotlib", "mnist1d", "sklearn")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Setting:
    """What a learning rate is chosen for."""

    dataset: str
    gamma: float
    rule: str
    steps: int

    def task(
        self,
        f: int,
        attack: str | None,
        runs: tuple[Run, ...],
        *,
        library: str = "outlast",
        measured_on: str = "test",
    ) -> Task:
        return Task(
            library=library,
            dataset=self.dataset,
            gamma=self.gamma,
            rule=self.rule,
            f=f,
            attack=attack,
            runs=runs,
            steps=self.steps,
            measured_on=measured_on,
        )

    def __str__(self) -> str:
        return f"{self.dataset} {self.gamma:g} {self.rule}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="f = 2 and gamma = 0.33 only")
    parser.add_argument(
        "--pictures", type=Path, default=Path("build"), help="where heat maps go (%(default)s)"
    )
    parser.add_argument(
        "--longer", type=int, default=1, metavar="N", help="train N times as many steps (%(default)s)"
    )
    parser.add_argument("--no-byzfl", action="store_true", help="train with Outlast's own rules only")


def run(options: argparse.Namespace) -> Result:
    begin = time.perf_counter()
    # Told now, and not when all is trained and only the pictures are left to be drawn.
    for package in PACKAGES:
        import_module(package)
    quick = options.quick or options.tiny
    gammas, counts = ((PROMISED_GAMMA,), (PROMISED_F,)) if quick else (GAMMAS, COUNTS)
    settings = [
        Setting(dataset, gamma, rule, TINY_STEPS if options.tiny else STEPS[dataset, gamma] * options.longer)
        for dataset in DATASETS
        for gamma in gammas
        for rule in (TINY_RULES if options.tiny else OUTLAST)
    ]
    with tempfile.TemporaryDirectory(prefix="outlast-byzantine-") as name:
        data = Path(name)
        for dataset in DATASETS:
            torch.save(asdict(load(dataset)), data / f"{dataset}.pt")
        # What attackers cost is held against averaging at its best; under attack nothing helps it.
        averaging = [setting for setting in settings if setting.rule == "mean"]
        robust = [setting for setting in settings if setting.rule != "mean"]
        rates = tuned(robust, data) | tuned(averaging, data, attacks=(None,))
        alone = [each.task(PROMISED_F, None, _seeded(rates[each])) for each in settings]
        attacked = [
            setting.task(f, attack, _seeded(rates[setting]))
            for setting in settings
            for f in counts
            for attack in ATTACKS
        ]
        cells = measured([*alone, *attacked], data)
        if not (options.no_byzfl or options.tiny):
            subprocess.run([str(ROOT / "scripts" / "peers")], check=True, stdout=subprocess.DEVNULL)
            cells += measured(
                [
                    setting.task(PROMISED_F, attack, _seeded(rates[setting]), library="byzfl")
                    for setting in settings
                    if setting.gamma == PROMISED_GAMMA and setting.rule in BYZFL
                    for attack in ATTACKS
                ],
                data,
                ROOT / ".venv-peers" / "bin" / "python",
            )
    print_tables(cells, Console(stderr=True))
    drops = accuracy_drops(cells)
    return Result(
        name="byzantine",
        figures={"accuracy_drop_points": max(drop["points"] for drop in drops.values())},
        bounds={"accuracy_drop_points": BOUND_POINTS},
        details={
            "drop": drops,
            "seeds": len(SEEDS),
            "steps": {f"{each.dataset} {each.gamma:g}": each.steps for each in settings},
            "learning_rates": {str(setting): rate for setting, rate in rates.items()},
            "cells": [_detail(cell) for cell in cells],
            "pictures": draw_heat_maps(cells, options.pictures),
            "took_s": time.perf_counter() - begin,
        },
    )


def tuned(
    settings: Sequence[Setting], data: Path, attacks: Sequence[str | None] = ATTACKS
) -> dict[Setting, float]:
    """For each setting the learning rate whose worst attack leaves most, on data for validation."""
    runs = tuple(Run(TUNING_SEED, rate) for rate in LEARNING_RATES)
    tasks = [
        setting.task(PROMISED_F, attack, runs, measured_on="validation")
        for setting in settings
        for attack in attacks
    ]
    answers = carried_out(tasks, data)
    rates = {}
    for place, setting in enumerate(settings):
        of_setting = answers[place * len(attacks) : (place + 1) * len(attacks)]
        left = [min(accuracies) for accuracies in zip(*of_setting, strict=True)]
        rates[setting] = LEARNING_RATES[left.index(max(left))]
    return rates


def measured(tasks: Sequence[Task], data: Path, python: Path = Path(sys.executable)) -> list[Cell]:
    return [
        Cell(
            library=task.library,
            dataset=task.dataset,
            gamma=task.gamma,
            rule=task.rule,
            f=task.f,
            attack=task.attack,
            accuracies=tuple(accuracies),
        )
        for task, accuracies in zip(tasks, carried_out(tasks, data, python), strict=True)
    ]


def accuracy_drops(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """By dataset, what the best rule loses to its worst attack where that is promised to be little."""
    worst, without = worst_attacks(cells), unattacked(cells, "mean")
    drops = {}
    for dataset in DATASETS:
        rule = best_rule(worst, dataset, PROMISED_GAMMA, PROMISED_F)
        left = worst[dataset, PROMISED_GAMMA, rule, PROMISED_F]
        honest = without[dataset, PROMISED_GAMMA]
        drops[dataset] = {
            "points": honest - left.percent,
            "rule": rule,
            "attack": left.attack,
            "percent": left.percent,
            "mean_of_honest_percent": honest,
            "rule_without_attack_percent": unattacked(cells, rule)[dataset, PROMISED_GAMMA],
        }
    return drops


def carried_out(tasks: Sequence[Task], data: Path, python: Path = Path(sys.executable)) -> list[list[float]]:
    """The answers of one worker process per core, in the order of the tasks."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)
    answers: dict[int, list[float]] = {}

    def serve(worker: "subprocess.Popen[str]") -> None:
        assert worker.stdin is not None and worker.stdout is not None
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            worker.stdin.write(tasks[number].as_line())
            worker.stdin.flush()
            answer = worker.stdout.readline()
            if not answer:
                return
            answers[number] = json.loads(answer)

    workers = [_worker(data, python) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            with worker:
                pass
    if len(answers) < len(tasks):
        raise RuntimeError("a worker of the benchmark failed; see above")
    return [answers[number] for number in range(len(tasks))]


def _worker(data: Path, python: Path) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return subprocess.Popen(
        [str(python), "-m", "bench.byzantine_worker", str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def _seeded(rate: float) -> tuple[Run, ...]:
    return tuple(Run(seed, rate) for seed in SEEDS)


def _detail(cell: Cell) -> dict[str, Any]:
    accuracies = [100 * accuracy for accuracy in cell.accuracies]
    return {**asdict(cell), "accuracies": accuracies, "percent": cell.percent}
