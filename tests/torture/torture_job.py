"""The script that is tortured: a small model with noisy data, and a trace of every loss it has seen.

Each life of a replica writes a file of its own into `--traces`: after how many steps it joined, then a line
with number and loss of every step, to the last bit, and the digest of its state at the end. A script that is
to fail does so once (`--exits raise@30:1`: replica 1, at step 30 or soon after), which a file remembers.

With `--each-digest`, as one quiet process, it writes down the digest after every step: what a run of any
length has to end with.
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import outlast

SAMPLES = 99


class Planned(RuntimeError):
    """The exception that a schedule asks for."""


class Noisy(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Each look at a sample draws from two generators."""

    def __init__(self) -> None:
        self._x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self._x[index]
        sign = -1.0 if random.random() < 0.1 else 1.0
        return x * sign + torch.randn(16) * 0.1, int(x.sum() > 0)


class Net(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 256)
        # Over 16 values of a sample, so that a shard may have a single one.
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x).view(-1, 16, 16)).relu().flatten(1)
        return self.last(self.drop(hidden))


class Exits:
    """The ends that this replica is to bring about by itself, each once in the whole run."""

    def __init__(self, wanted: list[str], replica: int, folder: Path) -> None:
        self._folder = folder
        self._mine: list[tuple[str, int]] = []
        for word in wanted:
            how, _, place = word.partition("@")
            step, _, whose = place.partition(":")
            if int(whose) == replica:
                self._mine.append((how, int(step)))

    def come_to(self, step: int) -> None:
        for how, at in self._mine:
            if step >= at and self._first(f"exited-{at}"):
                print(f"PLANNED {how} at step {step}", flush=True)
                match how:
                    case "os._exit(0)":
                        os._exit(0)
                    case "os._exit(3)":
                        os._exit(3)
                    case "sys.exit(0)":
                        sys.exit(0)
                    case "sys.exit(3)":
                        sys.exit(3)
                raise Planned(f"as planned, at step {step}")

    def _first(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--shards", type=int, required=True)
    arguments.add_argument("--traces", type=Path, required=True)
    arguments.add_argument("--norm", action="store_true")
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--verify", default="auto")
    arguments.add_argument("--checkpoints")
    arguments.add_argument("--every", type=int, default=10)
    arguments.add_argument("--ledger")
    arguments.add_argument("--pace", type=float, default=0.0, help="seconds that a shard takes at least")
    arguments.add_argument("--exits", nargs="*", default=[], metavar="HOW@STEP:REPLICA")
    arguments.add_argument("--each-digest", action="store_true")
    options = arguments.parse_args()

    outlast.seed(3)
    model = Net(options.norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 15, 0.95)
    data = outlast.Data(Noisy(), global_batch=24, seed=7, num_workers=options.workers)
    with outlast.join(
        model=model,
        optimizer=optimizer,
        data=data,
        state={"schedule": schedule},
        shards=options.shards,
        verify=None if options.verify == "None" else options.verify,
        checkpoints=options.checkpoints,
        every=options.every,
        ledger=options.ledger,
    ) as job:
        exits = Exits(options.exits, job.replica, options.traces)
        # The kernel gives a number of a process to another one some day, but hardly within a run.
        with (options.traces / f"{job.replica}-{os.getpid()}.trace").open("a", buffering=1) as trace:
            print("joined", job.steps_done, file=trace)
            for step in job.steps(options.steps):
                for x, y in step:
                    time.sleep(options.pace)
                    exits.come_to(step.number)
                    step.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                print("loss", step.number, step.loss.hex(), file=trace)
                if options.each_digest:
                    print("digest", step.number, outlast.state_digest(model, optimizer), file=trace)
    print("DIGEST", outlast.state_digest(model, optimizer), flush=True)


if __name__ == "__main__":
    main()
