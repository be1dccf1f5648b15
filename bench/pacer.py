"""The replica's program of `bench recovery` and `bench rejoin`: trains, and writes down when each step ended.

    outlast run -n 3 bench/pacer.py '{"directory": "/tmp/x", "width": 64, "layers": 2, "sleep_s": 0.03}'

A line for each step that this process has completed, optimizer included: the machine's monotonic clock, the
process, the step, how many shards of it were computed here (none by a learner), and how many members the job
had. Another kind of line tells that the state of the others has come. While there is a file `hold` in the
directory, a process that starts does not join. Meanwhile it can be asked, with a file `copy` that says how
many bytes, to receive them through a plain socket.
"""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TextIO

import torch
from torch import nn

import outlast
from bench.plaincopy import receive
from outlast.wire.handover import handover

ENDLESS = 1_000_000_000
LOOK_EVERY_S = 0.02


class StateArrivals(logging.Handler):
    """Hears the library say that a snapshot has come: its size and how long it was on its way."""

    def __init__(self, trace: TextIO) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("the state of") and isinstance(record.args, tuple):
            size_bytes, took_s = record.args
            write(self._trace, {"size_bytes": size_bytes, "took_s": took_s})
        elif record.levelno >= logging.WARNING:
            print(record.getMessage(), file=sys.stderr, flush=True)


def write(trace: TextIO, entry: dict[str, object]) -> None:
    trace.write(json.dumps({"at_ns": time.monotonic_ns(), "pid": os.getpid(), **entry}) + "\n")


def main() -> None:
    plan = json.loads(sys.argv[1])
    directory = Path(plan["directory"])
    hand = handover()
    assert hand is not None, "run it with `outlast run`"
    trace = (directory / f"replica-{hand.replica}.steps").open("a", buffering=1)
    # The package's logger, since which module says it is nobody's business but the library's.
    library = logging.getLogger("outlast.train")
    library.addHandler(StateArrivals(trace))
    library.setLevel(logging.INFO)
    while (directory / "hold").exists():
        if (directory / "copy").exists():
            size_bytes = int((directory / "copy").read_text())
            (directory / "copy").unlink()
            write(trace, {"plain_s": receive(size_bytes)})
        time.sleep(LOOK_EVERY_S)

    torch.manual_seed(0)
    width = plan["width"]
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(plan["layers"])])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(plan.get("batch", 4), width)
    write(trace, {"joining": True})
    with outlast.join(model=model, optimizer=optimizer) as job:
        for step in job.steps(ENDLESS):
            shards = 0
            for _ in step:
                step.backward(model(batch).square().mean())
                time.sleep(plan["sleep_s"])
                shards += 1
            members = job.members
            optimizer.step()
            optimizer.zero_grad()
            write(trace, {"step": step.number, "shards": shards, "members": members})


if __name__ == "__main__":
    main()
