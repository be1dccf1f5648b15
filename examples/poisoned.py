"""One of five replicas turns bad in mid-run: the mean follows it into the abyss, a robust rule does not.

    python examples/poisoned.py                          # both trainings, one after the other, and a picture
    outlast run -n 5 examples/poisoned.py --rule mean    # one of them: lost
    outlast run -n 5 examples/poisoned.py                # the other: not lost

The bad replica sends its gradients backwards and ten times as long. They are finite, and nothing crashes, so
nobody but the rule can tell. The trimmed mean leaves out the largest and the smallest of five in each
coordinate, whoever they are from. Needs scikit-learn, for its 1,797 digits.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import outlast
from outlast import rules

REPLICAS, BAD_REPLICA = 5, 3
RULES = {"mean": rules.Mean(), "trimmed_mean": rules.TrimmedMean(f=1)}
COLOURS = {"mean": "firebrick", "trimmed_mean": "seagreen"}
LOOKS = 20
"""How often the model is tried out on digits that it has not seen."""

Curve = list[tuple[int, float]]


def train(rule: str, steps: int, good_for: int, curve: Path | None) -> None:
    """What each replica does. The bad one does it, too; it only computes something else."""
    torch.set_num_threads(1)
    outlast.seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    data = outlast.Data(TensorDataset(x[:1500], y[:1500]), global_batch=160, seed=0, drop_last=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    bad = False
    with outlast.join(model=model, optimizer=opt, data=data, shards=REPLICAS, rule=RULES[rule]) as job:
        for step in job.steps(steps):
            if job.replica == BAD_REPLICA and step.number > good_for and not bad:
                bad = True
                for parameter in model.parameters():
                    parameter.register_hook(turned_around)
            for images, labels in step:
                step.backward(F.cross_entropy(model(images), labels))
            opt.step()
            opt.zero_grad()
            if job.chief and step.number % max(1, steps // LOOKS) == 0:
                with torch.no_grad():
                    right = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
                print(f"{rule}, step {step.number}: reads {right:.1%}", flush=True)
                if curve is not None:
                    with curve.open("a") as file:
                        print(json.dumps([step.number, right]), file=file)


def turned_around(gradient: torch.Tensor) -> torch.Tensor:
    return rules.attacks.sign_flip(gradient[None], 1, scale=10.0)[0]


def compare(steps: int, good_for: int, picture: Path) -> None:
    """Both trainings, each as five processes of its own."""
    curves: dict[str, Curve] = {}
    with tempfile.TemporaryDirectory(prefix="outlast-poisoned-") as folder:
        for rule in RULES:
            file = Path(folder, rule)
            program = [__file__, "--rule", rule, "--steps", str(steps), "--good-for", str(good_for)]
            launch = [sys.executable, "-m", "outlast", "run", "-n", str(REPLICAS), "--plain"]
            subprocess.run([*launch, *program, "--curve", str(file)], check=True, stdout=subprocess.DEVNULL)
            curves[rule] = [(step, right) for step, right in map(json.loads, file.read_text().splitlines())]
    print(f"replica {BAD_REPLICA} turns bad after step {good_for}")
    print("  step" + "".join(f"{rule:>14}" for rule in curves))
    for points in zip(*curves.values(), strict=True):
        print(f"{points[0][0]:6}" + "".join(f"{right:14.1%}" for _, right in points))
    picture.write_text(drawn(curves, steps, good_for))
    print(f"drawn in {picture}")


def drawn(curves: dict[str, Curve], steps: int, good_for: int) -> str:
    """The curves as an SVG, which any browser shows: right answers over steps."""
    wide, high, edge = 600, 300, 50

    def at(step: float, right: float) -> str:
        return f"{edge + wide * step / steps:.1f},{edge + high * (1 - right):.1f}"

    def text(place: str, words: str, style: str = "") -> str:
        left, top = place.split(",")
        return f'<text x="{left}" y="{top}" {style}>{words}</text>'

    parts = [f'<rect x="{edge}" y="{edge}" width="{wide}" height="{high}" fill="none" stroke="grey"/>']
    parts += [text(at(-0.07 * steps, share), f"{share:.0%}") for share in (0, 0.5, 1)]
    parts += [f'<polyline points="{at(good_for, 0)} {at(good_for, 1)}" stroke="grey" stroke-dasharray="4"/>']
    parts += [text(at(good_for, 1.03), f"replica {BAD_REPLICA} turns bad after step {good_for} of {steps}")]
    for row, (rule, curve) in enumerate(curves.items()):
        line = " ".join(at(step, right) for step, right in curve)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[rule]}" stroke-width="2"/>')
        parts.append(text(at(0.02 * steps, 0.05 + 0.07 * row), rule, f'fill="{COLOURS[rule]}"'))
    size = f'width="{wide + 2 * edge}" height="{high + 2 * edge}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n{body}\n</svg>\n'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Poison a training run, with and without a robust rule.")
    parser.add_argument("--rule", choices=RULES, help="train with this one only (in `outlast run`)")
    parser.add_argument("--steps", type=int, default=300, help="how long to train (300)")
    parser.add_argument("--good-for", type=int, default=100, help="steps before a replica turns bad (100)")
    parser.add_argument("--curve", type=Path, metavar="FILE", help="where to write the accuracies down")
    parser.add_argument("--picture", type=Path, default=Path("poisoned.svg"), help="(%(default)s)")
    options = parser.parse_args()
    if options.rule is not None or "OUTLAST_RUN" in os.environ:
        train(options.rule or "trimmed_mean", options.steps, options.good_for, options.curve)
    else:
        compare(options.steps, options.good_for, options.picture)
