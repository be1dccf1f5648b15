"""Training with workers of whom some lie: distributed SGD as ByzFL's benchmark does it.

Every honest worker sends the momentum of its gradients. The attackers see all of them, and answer. A rule
makes one update of both, and the server takes a step. The model is a perceptron with one hidden layer.

Several such trainings run at once, with different seeds or learning rates, so that the gradients of all
their workers are a few batched products. What each worker sees depends on the seed alone: different rules
and attacks are compared on the same samples in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from bench.byzantine_data import CLASSES, gamma_similar
from outlast.rules import attacks
from outlast.rules.attacks.optimised import worst_strength

HONEST = 10
HIDDEN = 48
BATCH = 25
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
SEARCH_EVERY_STEPS = 20
SEARCH_EVALUATIONS = 12
ATTACKS = ("sign_flip", "label_flip", "opt_alie", "opt_ipm")
_STRENGTHENED: dict[str, Callable[..., Tensor]] = {"opt_alie": attacks.alie, "opt_ipm": attacks.ipm}


class Aggregator(Protocol):
    """The rule of several trainings, with what it remembers of each."""

    def __call__(self, rows: Tensor) -> Tensor:
        """(runs, contributions, parameters) → (runs, parameters)."""
        ...

    def foresee(self, run: int, rows: Tensor) -> Tensor:
        """What a call would give to one run, without remembering it: attackers try things out."""
        ...


@dataclass(frozen=True)
class Run:
    """What tells trainings apart that run at once."""

    seed: int
    lr: float


def train(
    samples: tuple[Tensor, Tensor],
    runs: Sequence[Run],
    aggregator: Aggregator,
    *,
    gamma: float,
    attack: str | None,
    attackers: int,
    steps: int,
) -> Tensor:
    """The trained parameters, a row for each run. They are NaN where a training diverged."""
    inputs, labels = samples
    params = torch.stack([initial(inputs.shape[1], run.seed) for run in runs])
    batches = torch.stack([_batches(labels, gamma, run.seed, steps) for run in runs])
    lr = torch.tensor([run.lr for run in runs])[:, None]
    momenta = params.new_zeros(len(runs), HONEST, params.shape[1])
    mislabelled = torch.zeros_like(momenta)
    strengths = [0.0] * len(runs)
    for step in range(steps):
        chosen = batches[:, step]
        seen, right = inputs[chosen], labels[chosen]
        momenta.lerp_(gradients(params, seen, right), 1 - MOMENTUM)
        if attack == "label_flip":
            wrong = attacks.flip_labels(right, CLASSES)
            mislabelled.lerp_(gradients(params, seen, wrong), 1 - MOMENTUM)
        alive = momenta.isfinite().flatten(1).all(1)
        if attack in _STRENGTHENED and step % SEARCH_EVERY_STEPS == 0:
            for k in alive.nonzero().flatten().tolist():
                strengths[k] = _search(attack, momenta[k], attackers, partial(aggregator.foresee, k))
        lies = [
            _lies(attack, *of_run, attackers) for of_run in zip(momenta, mislabelled, strengths, strict=True)
        ]
        rows = torch.cat([momenta, torch.stack(lies)], dim=1)
        # A training that has diverged has nothing to rule on.
        updates = aggregator(rows.where(alive[:, None, None], 0.0)).where(alive[:, None], torch.nan)
        params -= lr * (1 - step / steps) * (updates + WEIGHT_DECAY * params)
    return params


def accuracy(params: Tensor, samples: tuple[Tensor, Tensor]) -> list[float]:
    """The share of samples that each run's model gets right. One that diverged knows nothing."""
    inputs, labels = samples
    _, logits = _forward(params, inputs.expand(len(params), *inputs.shape))
    right = (logits.argmax(-1) == labels).double().mean(-1)
    alive = params.isfinite().all(-1)
    return torch.where(alive, right, 1 / CLASSES).tolist()


def initial(width: int, seed: int) -> Tensor:
    """Parameters as torch draws them for linear layers, in one flat row."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(width, width * HIDDEN), (width, HIDDEN), (HIDDEN, HIDDEN * CLASSES), (HIDDEN, CLASSES)]
    return torch.cat([(torch.rand(n, generator=generator) * 2 - 1) / fan_in**0.5 for fan_in, n in sizes])


def gradients(params: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of the mean cross-entropy, for (runs, workers, batch) samples: (runs, workers, parameters)."""
    runs, workers, batch, width = inputs.shape
    hidden, logits = _forward(params, inputs.view(runs, workers * batch, width))
    _, _, second, _ = _layers(params, width)
    error = logits.softmax(-1)
    at_label = labels.view(runs, workers * batch, 1)
    error.scatter_add_(-1, at_label, torch.full_like(at_label, -1, dtype=error.dtype))
    error /= batch
    back = (error @ second.mT) * (hidden > 0)
    inputs, hidden, error, back = (
        part.reshape(runs * workers, batch, -1) for part in (inputs, hidden, error, back)
    )
    parts = (inputs.mT @ back, back.sum(1), hidden.mT @ error, error.sum(1))
    return torch.cat([part.reshape(runs, workers, -1) for part in parts], dim=-1)


def _forward(params: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    first, first_bias, second, second_bias = _layers(params, inputs.shape[-1])
    hidden = torch.baddbmm(first_bias, inputs, first).relu_()
    return hidden, torch.baddbmm(second_bias, hidden, second)


def _layers(params: Tensor, width: int) -> tuple[Tensor, ...]:
    shapes = [(width, HIDDEN), (1, HIDDEN), (HIDDEN, CLASSES), (1, CLASSES)]
    parts = params.split_with_sizes([rows * columns for rows, columns in shapes], dim=-1)
    return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))


def _batches(labels: Tensor, gamma: float, seed: int, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    held = gamma_similar(labels, HONEST, gamma, generator)
    drawn = [part[torch.randint(len(part), (steps, BATCH), generator=generator)] for part in held]
    return torch.stack(drawn, dim=1)


def _search(attack: str, honest: Tensor, attackers: int, rule: Callable[[Tensor], Tensor]) -> float:
    def lies(strength: float) -> Tensor:
        return _STRENGTHENED[attack](honest, attackers, strength=strength)

    return worst_strength(honest, lies, rule=rule, evaluations=SEARCH_EVALUATIONS)


def _lies(attack: str | None, honest: Tensor, mislabelled: Tensor, strength: float, count: int) -> Tensor:
    if attack is None:
        return honest[:0]
    if attack == "label_flip":
        return mislabelled.mean(0).expand(count, -1)
    if attack == "sign_flip":
        return attacks.sign_flip(honest, count)
    return _STRENGTHENED[attack](honest, count, strength=strength)
