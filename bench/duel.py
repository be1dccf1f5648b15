"""The replica's program of `bench overhead`: the same training with Outlast and with DDP, in turns.

    outlast run -n 2 bench/duel.py '{"mode": "duel", ...}'

Both sides train the same model on the same batch in memory, with the same loop. A block is some steps of one
side; between two blocks everybody waits for everybody. Pairs of blocks take turns in who goes first, so that
whatever else the machine does weighs on both alike. How long a block took is what the slowest replica needed.

With the mode "ddp" or "outlast" only one side exists in the process, and what is measured is its memory.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import outlast

LAYERS = 4
WARM_UP_PAIRS = 2
STEPS_BEFORE_MEMORY = 5
LEARNING_RATE = 1e-4


def build(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


class Ddp:
    """Plain DistributedDataParallel, as its documentation has it."""

    def __init__(self, width: int, batch: Tensor) -> None:
        self._model = DistributedDataParallel(build(width))
        self._optimizer = adamw(self._model)
        self._batch = batch

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._optimizer.zero_grad()
            self._model(self._batch).square().mean().backward()
            self._optimizer.step()


class Outlast:
    """The same loop with Outlast; `data=None`, so that the shards are just numbers."""

    def __init__(self, width: int, batch: Tensor, total: int) -> None:
        self._model = build(width)
        self._optimizer = adamw(self._model)
        self._batch = batch
        self._total = total
        self.job = outlast.join(model=self._model, optimizer=self._optimizer)
        self._steps: Iterator[outlast.Step] | None = None

    def steps(self, count: int) -> None:
        if self._steps is None:
            self._steps = self.job.steps(self._total)
        for _ in range(count):
            step = next(self._steps)
            for _ in step:
                step.backward(self._model(self._batch).square().mean())
            self._optimizer.step()
            self._optimizer.zero_grad()

    def finish(self) -> None:
        """The last step ends when the next one is asked for, and there is none."""
        if self._steps is not None and next(self._steps, None) is not None:
            raise AssertionError("there were more steps in the job than in the benchmark")


def meet(directory: Path, rank: int, replicas: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{directory / 'meeting'}", rank=rank, world_size=replicas
    )


def over_all(value: float, how: dist.ReduceOp.RedOpType) -> float:
    everybody = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(everybody, op=how)
    return everybody.item()


def block(run: Callable[[int], None], steps: int) -> dict[str, float]:
    """Seconds per step: by the clock for the slowest replica, and CPU time of all replicas together."""
    dist.barrier()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    run(steps)
    passed_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    return {
        "s": over_all(passed_s, dist.ReduceOp.MAX) / steps,
        "cpu_s": over_all(cpu_s, dist.ReduceOp.SUM) / steps,
    }


def batch_of(plan: dict[str, int], rank: int) -> Tensor:
    torch.manual_seed(1 + rank)
    return torch.randn(plan["batch"], plan["width"])


def duel(plan: dict[str, int], directory: Path) -> None:
    pairs = plan["pairs"] + WARM_UP_PAIRS
    # Which replica this is, is known only to Outlast; the batch's contents do not matter for time.
    ours = Outlast(plan["width"], batch_of(plan, 0), pairs * plan["steps"] + 1)
    with ours.job as job:
        # The state is handed to all in the first step; nobody must wait for others in any other way before.
        ours.steps(1)
        meet(directory, job.replica, plan["replicas"])
        ddp = Ddp(plan["width"], batch_of(plan, job.replica))
        found = []
        for pair in range(pairs):
            times = {}
            for name in ("ddp", "outlast") if pair % 2 else ("outlast", "ddp"):
                # To the job, a block of the other side is work beside the steps.
                with job.aside() if name == "ddp" else contextlib.nullcontext():
                    times[name] = block(ddp.steps if name == "ddp" else ours.steps, plan["steps"])
            found.append(times)
        if job.replica == 0:
            tell(directory, job.replica, {"pairs": found[WARM_UP_PAIRS:]})
        ours.finish()
    dist.destroy_process_group()


def peak_outlast(plan: dict[str, int], directory: Path) -> None:
    ours = Outlast(plan["width"], batch_of(plan, 0), plan["steps"] + STEPS_BEFORE_MEMORY)
    with ours.job as job:
        tell(directory, job.replica, {"peak_kb": peak_kb(ours.steps, plan["steps"])})
        ours.finish()


def peak_ddp(plan: dict[str, int], directory: Path) -> None:
    rank = plan["rank"]
    meet(directory, rank, plan["replicas"])
    ddp = Ddp(plan["width"], batch_of(plan, rank))
    tell(directory, rank, {"peak_kb": peak_kb(ddp.steps, plan["steps"])})
    dist.barrier()
    dist.destroy_process_group()


def peak_kb(run: Callable[[int], None], steps: int) -> int:
    """The most memory at a time while training, once everything has been allocated."""
    run(STEPS_BEFORE_MEMORY)
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
    run(steps)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("this kernel does not tell the peak of a process's memory")


def tell(directory: Path, rank: int, found: object) -> None:
    (directory / f"found-{rank}.json").write_text(json.dumps(found))


MODES = {"duel": duel, "outlast": peak_outlast, "ddp": peak_ddp}


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    MODES[plan["mode"]](plan, Path(plan["directory"]))


if __name__ == "__main__":
    main()
