"""A script that saves its state by name, may end before its total, and says what it has done."""

import argparse
import time

import torch
from torch import nn

import outlast
from outlast.state.digest import state_digest
from outlast.testing.crash import crash_by_plan

arguments = argparse.ArgumentParser()
arguments.add_argument("url")
arguments.add_argument("--steps", type=int, default=60)
arguments.add_argument("--every", type=int, default=5, help="save after every so many steps")
arguments.add_argument("--ends", type=int, default=0, help="leave the loop after this step")
arguments.add_argument("--decay", type=float, default=0.0)
arguments.add_argument("--pace", type=float, default=0.03)
arguments.add_argument("--crash", default="")
arguments.add_argument("--alone", action="store_true", help="the chief saves alone, which is a mistake")
options = arguments.parse_args()

crash_by_plan(options.crash)
outlast.seed(3)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=options.decay)
with outlast.join(
    model=model, optimizer=optimizer, shards=3, checkpoints=options.url, every=7, keep_last=1
) as job:
    print("ID", job.id, flush=True)
    for step in job.steps(options.steps):
        for _ in step:
            time.sleep(options.pace)
            step.backward(model(torch.randn(2, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step.number % options.every == 0 and (job.chief or not options.alone):
            print("STATE", step.number, state_digest(model, optimizer), flush=True)
            job.save("best")
        if step.number == options.ends:
            break
print("LEFT AT", job.steps_done, flush=True)
