"""A small network learns to read handwritten digits; a first look at Outlast.

    python examples/digits.py                    # one process
    outlast run -n 4 examples/digits.py          # four, any of which may be killed at any time

Both end with the same weights, bit for bit. Needs scikit-learn, for its 1,797 digits.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400, help="how long to train (400)")
parser.add_argument("--ledger", metavar="DIR", help="write down which samples were used (see outlast audit)")
options = parser.parse_args()

# The bits of a matrix product depend on the number of threads. `outlast run` gives each replica one, so one
# process on its own does the same here, and the results can be compared.
torch.set_num_threads(1)
outlast.seed(0)

images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32) / 16
y = torch.tensor(labels)
train, test = TensorDataset(x[:1500], y[:1500]), (x[1500:], y[1500:])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
# 128 samples in a step, whoever is alive; which ones depends on the seed and the number of the step alone.
data = outlast.Data(train, global_batch=128, seed=0)

# A step's batch is cut into four shards, also where one process computes them all. The results depend on the
# number of shards, and not on the number of replicas.
with outlast.join(model=model, optimizer=opt, data=data, shards=4, ledger=options.ledger) as job:
    for step in job.steps(options.steps):
        for images, labels in step:  # this replica's shards; a few more in a step in which another dies
            step.backward(F.cross_entropy(model(images), labels))
        opt.step()  # the gradients are the same on every replica by now, and so is the update
        opt.zero_grad()
        if job.chief and step.number % 100 == 0:
            print(f"step {step.number}: loss {step.loss:.4f}, {job.members} replicas", flush=True)

    if job.chief:
        with torch.no_grad():
            right = (model(test[0]).argmax(1) == test[1]).float().mean().item()
        print(f"reads {right:.1%} of the digits that it has not seen", flush=True)
        print(f"weights and optimizer: {outlast.state_digest(model, opt)[:16]}", flush=True)
