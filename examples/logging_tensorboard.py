"""Curves for TensorBoard that have each step once, whoever is killed: no point doubled, and none missing.

    outlast run -n 3 examples/logging_tensorboard.py --curves curves    # kill -9 any of them
    tensorboard --logdir curves

Needs tensorboardX. With tensorboard itself it is the same: Event is in tensorboard.compat.proto.event_pb2,
and add_scalar and flush of torch.utils.tensorboard.SummaryWriter do what the EventsWriter does here. (The
SummaryWriter of tensorboardX does not: its flush leaves behind what is still in its queue.)
"""

import argparse
import os
import struct
import time
from collections import deque
from pathlib import Path

import torch
import torch.nn.functional as F
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from torch import nn
from torch.utils.data import TensorDataset

import outlast


class Curves:
    """Every replica remembers the newest points; whoever is chief writes those that are not on disk yet.

    The chief may die between a step and its point. Then the next one finds on disk which point was the last,
    and goes on from there. A step that is done again has its point already, with the same value.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._recent: deque[tuple[int, dict[str, float]]] = deque(maxlen=1000)
        self._writer: EventsWriter | None = None
        self._written = 0

    def add(self, step: int, **values: float) -> None:
        self._recent.append((step, values))

    def write(self, *, chief: bool) -> None:
        if not chief:
            self._writer = None  # Another one writes now; should it be this one again, it looks again.
            return
        if self._writer is None:
            self._written = self._last_on_disk()
            # A file of its own: nobody goes on with what another one was killed writing.
            self._writer = EventsWriter(str(self._folder / "events"), f".{os.getpid()}-{self._written}")
        for step, values in self._recent:
            if step > self._written:
                scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                self._writer.write_event(
                    Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
                )
                self._written = step
        self._writer.flush()

    def _last_on_disk(self) -> int:
        last = 0
        for file in self._folder.glob("events.*"):
            data, at = file.read_bytes(), 0
            while at + 12 <= len(data):
                (size,) = struct.unpack_from(
                    "<Q", data, at
                )  # A length, its checksum, the event, its checksum.
                if at + 16 + size > len(data):
                    break  # It was killed while it wrote this one.
                last = max(last, Event.FromString(data[at + 12 : at + 12 + size]).step)
                at += 16 + size
        return last


parser = argparse.ArgumentParser()
parser.add_argument("--curves", default="curves", metavar="DIR")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a shard takes longer, to watch it")
options = parser.parse_args()
outlast.seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(512, 16)
data = outlast.Data(TensorDataset(x, x.square().mean(1, keepdim=True)), global_batch=64, seed=0)
curves = Curves(options.curves)

with outlast.join(model=model, optimizer=opt, data=data) as job:
    for step in job.steps(options.steps):
        for inputs, targets in step:
            time.sleep(options.pace)
            step.backward(F.mse_loss(model(inputs), targets))
        opt.step()
        opt.zero_grad()
        curves.add(step.number, loss=step.loss)  # on every replica: any of them may be the next chief
        curves.write(chief=job.chief)
    curves.write(chief=job.chief)  # the chief may have died in the last step
