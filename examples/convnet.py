"""A convolutional network with what such networks have: BatchNorm, dropout, augmentation, a schedule.

    python examples/convnet.py                   # one process
    outlast run -n 4 examples/convnet.py         # four: the same bits, whatever happens to them

None of these needs a special version here. Each shard starts from the step's own running statistics, and what
the shards made of them is averaged; whatever is random is seeded for each sample and each shard anew.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400, help="how long to train (400)")
options = parser.parse_args()

torch.set_num_threads(1)  # as many as `outlast run` gives to each replica, so that the bits can be compared
outlast.seed(0)


class Shifted(Dataset[tuple[Tensor, int]]):
    """Digits, each moved by up to a pixel. A sample's randomness depends on (seed, pass, sample) alone, so a
    replica that has to take over a shard sees it moved in the same way."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return self.images[index].roll((down, right), (-2, -1)), int(self.labels[index])


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


pixels, digits = load_digits(return_X_y=True)
x, y = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
data = outlast.Data(Shifted(x[:1500], y[:1500]), global_batch=64, seed=0)

model = nn.Sequential(
    block(1, 16),
    block(16, 32),
    nn.MaxPool2d(2),
    block(32, 32),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(512, 10),
)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=max(options.steps, 2))

# The schedule's position is part of the training state: a replica that comes back gets it with the weights.
with outlast.join(model=model, optimizer=opt, data=data, state={"schedule": schedule}, shards=4) as job:
    for step in job.steps(options.steps):
        for images, labels in step:
            step.backward(F.cross_entropy(model(images), labels, label_smoothing=0.1))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        schedule.step()
        if job.chief and step.number % 50 == 0:
            rate = schedule.get_last_lr()[0]
            print(f"step {step.number}: loss {step.loss:.4f}, learning rate {rate:.4f}", flush=True)

    if job.chief:
        model.eval()
        with torch.no_grad():
            right = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
        print(f"reads {right:.1%} of the digits that it has not seen", flush=True)
        print(f"weights, statistics and optimizer: {outlast.state_digest(model, opt)[:16]}", flush=True)
