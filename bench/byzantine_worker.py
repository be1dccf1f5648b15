"""One process of the Byzantine benchmark: trains as it is told on standard input, in one thread.

Each line is a task in JSON, and its answer the accuracies in JSON, one per run. The process runs in Outlast's
venv, or for ByzFL's rules in the peers' own: there is torch in both, and all else comes as an argument, the
directory with the data.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import MagicMock

import torch

from bench.byzantine_data import Dataset
from bench.byzantine_rules import aggregator
from bench.byzantine_training import Run, accuracy, train


@dataclass(frozen=True, kw_only=True)
class Task:
    library: str
    dataset: str
    gamma: float
    rule: str
    f: int
    attack: str | None
    """None: there are no attackers, though the rule expects f."""
    runs: tuple[Run, ...]
    steps: int
    measured_on: str

    def as_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def task_of(line: str) -> Task:
    fields = json.loads(line)
    fields["runs"] = tuple(Run(**run) for run in fields["runs"])
    return Task(**fields)


def do(task: Task, dataset: Dataset) -> list[float]:
    params = train(
        dataset.train,
        task.runs,
        aggregator(task.library, task.rule, task.f, len(task.runs)),
        gamma=task.gamma,
        attack=task.attack,
        attackers=0 if task.attack is None else task.f,
        steps=task.steps,
    )
    return accuracy(params, dataset.test if task.measured_on == "test" else dataset.validation)


def main() -> None:
    # ByzFL imports these for its experiments. There is no torchvision for this torch, and nothing here draws.
    for name in ("torchvision", "matplotlib", "matplotlib.pyplot", "seaborn"):
        sys.modules[name] = MagicMock()
    torch.set_num_threads(1)
    datasets: dict[str, Dataset] = {}
    for line in sys.stdin:
        task = task_of(line)
        if task.dataset not in datasets:
            parts = torch.load(Path(sys.argv[1]) / f"{task.dataset}.pt", weights_only=True)
            datasets[task.dataset] = Dataset(**parts)
        print(json.dumps(do(task, datasets[task.dataset])), flush=True)


if __name__ == "__main__":
    main()
