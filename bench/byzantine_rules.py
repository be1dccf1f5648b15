"""The rules that are compared: Outlast's, and ByzFL's of the same names."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor

from bench.byzantine_training import Aggregator
from outlast import rules

OUTLAST: dict[str, Callable[[int], rules.Rule]] = {
    "mean": lambda f: rules.Mean(),  # noqa: ARG005
    "median": lambda f: rules.Median(),  # noqa: ARG005
    "trimmed_mean": rules.TrimmedMean,
    "geometric_median": lambda f: rules.GeometricMedian(iterations=3),  # noqa: ARG005
    "multi_krum": rules.MultiKrum,
    "centred_clipping": lambda f: rules.CentredClipping(),  # noqa: ARG005
    "nnm_trimmed_mean": lambda f: rules.NNM(f) | rules.TrimmedMean(f),
    "clip_nnm_trimmed_mean": lambda f: rules.ClipNorms() | rules.NNM(f) | rules.TrimmedMean(f),
}
BYZFL = [name for name in OUTLAST if name != "mean"]


def aggregator(library: str, name: str, f: int, runs: int) -> Aggregator:
    return _Outlast(OUTLAST[name](f), runs) if library == "outlast" else _ByzFL(name, f, runs)


class _Outlast:
    def __init__(self, rule: rules.Rule, runs: int) -> None:
        self._rule = rule
        self._last: list[Tensor | None] = [None] * runs

    def __call__(self, rows: Tensor) -> Tensor:
        runs, n, d = rows.shape
        if not self._rule.needs.anything:
            # Coordinates do not know which run they belong to.
            side_by_side: Tensor = self._rule(rows.transpose(0, 1).reshape(n, runs * d))
            return side_by_side.view(runs, d)
        results = [self.foresee(run, own) for run, own in enumerate(rows)]
        self._last = list(results)
        return torch.stack(results)

    def foresee(self, run: int, rows: Tensor) -> Tensor:
        centre = self._last[run] if self._rule.needs.centre else None
        result: Tensor = self._rule(rows, centre=centre)
        return result


class _ByzFL:
    """With the parameters that ByzFL has by default, as in its own benchmark."""

    def __init__(self, name: str, f: int, runs: int) -> None:
        import byzfl

        self._stages: list[Any] = []
        if name.startswith("clip_"):
            self._stages.append(byzfl.ARC(f))
        if "nnm_" in name:
            self._stages.append(byzfl.NNM(f))
        rule: Callable[[], Any] = {
            "median": lambda: byzfl.Median(),
            "trimmed_mean": lambda: byzfl.TrMean(f),
            "geometric_median": lambda: byzfl.GeometricMedian(),
            "multi_krum": lambda: byzfl.MultiKrum(f),
            "centred_clipping": lambda: byzfl.CenteredClipping(),
        }[name.removeprefix("clip_").removeprefix("nnm_")]
        self._rules = [rule() for _ in range(runs)]

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.stack([rule(self._staged(own)) for rule, own in zip(self._rules, rows, strict=True)])

    def foresee(self, run: int, rows: Tensor) -> Tensor:
        # Centred clipping remembers its last result, which a copy of it may do without harm.
        result: Tensor = copy(self._rules[run])(self._staged(rows))
        return result

    def _staged(self, rows: Tensor) -> Tensor:
        for stage in self._stages:
            rows = stage(rows)
        return rows
