"""A small convolutional network learns to read handwritten digits of 8 by 8 pixels.

    python examples/ports/image_trainer.py

Needs scikit-learn, for its 1,797 digits.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

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
data = torch.utils.data.DataLoader(Digits(images[train], labels[train]), batch_size=64, shuffle=True)


@torch.no_grad()
def evaluate(part: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    model.eval()
    guesses = model(images[part])
    model.train()
    right = (guesses.argmax(1) == labels[part]).float().mean().item()
    return F.cross_entropy(guesses, labels[part]).item(), right


for epoch in range(args.epochs):
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    loss, right = evaluate(validation)
    plateau.step(loss)
    print(f"epoch {epoch}: validation loss {loss:.4f}, {right:.1%} right")
    if loss == plateau.best:
        torch.save(model.state_dict(), args.out)
    if plateau.get_last_lr()[0] < 1e-4:  # it fell four times, and that is enough
        break

model.load_state_dict(torch.load(args.out))
loss, right = evaluate(test)
print(f"the best model reads {right:.1%} of the digits that it has not seen")
