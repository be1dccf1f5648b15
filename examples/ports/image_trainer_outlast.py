"""A small convolutional network learns to read handwritten digits of 8 by 8 pixels.

    outlast run -n 2 examples/ports/image_trainer_outlast.py

Needs scikit-learn, for its 1,797 digits.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60, help="how long to train at most (60)")
parser.add_argument(
    "--patience", type=int, default=2, help="epochs without progress until the rate falls (2)"
)
parser.add_argument("--out", default="best-digits", help="where the best model is saved")
args = parser.parse_args()

torch.manual_seed(0)


class Digits(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Each digit a little different whenever it is seen: shifted by up to one pixel, and with noise."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = torch.randint(-1, 2, (2,)).tolist()
        shifted = self.images[index].roll((down, right), dims=(1, 2))
        return shifted + 0.1 * torch.randn(shifted.shape), self.labels[index]


pixels, digits = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(digits)
order = torch.randperm(len(images))
train, validation, test = order[:1200], order[1200:1500], order[1500:]

model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()),
    *(nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10)),
)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.3, patience=args.patience)
data = outlast.Data(Digits(images[train], labels[train]), global_batch=64, seed=0)


@torch.no_grad()
def evaluate(part: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    model.eval()
    guesses = model(images[part])
    model.train()
    right = (guesses.argmax(1) == labels[part]).float().mean().item()
    return F.cross_entropy(guesses, labels[part]).item(), right


with outlast.join(model=model, optimizer=opt, data=data, state={"lr": plateau}, checkpoints=args.out) as job:
    for step in job.steps(args.epochs * data.steps_per_epoch):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        opt.step()
        opt.zero_grad()
        if step.ends_epoch:
            loss, right = evaluate(validation)
            plateau.step(loss)
            if job.chief:
                print(f"epoch {step.epoch}: validation loss {loss:.4f}, {right:.1%} right")
            if loss == plateau.best:
                job.save("best")
            if plateau.get_last_lr()[0] < 1e-4:  # it fell four times, and that is enough
                break

model.load_state_dict(outlast.load(args.out, "best").model)
loss, right = evaluate(test)
if job.chief:
    print(f"the best model reads {right:.1%} of the digits that it has not seen")
