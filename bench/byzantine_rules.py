"""The rules that are compared: Outlast's, and ByzFL's of the same names."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from torch import Tensor

from bench.byzantine_training import Aggregator
from outlast import rules

OUTLAST: dict[str, Callable[[int], rules.Rule]] = {
    "mean": lambda f: rules.Mean(),  # noqa: ARG005
    "median": lambda f: rules.Median(),  # noqa: ARG005
    "trimmed_mean": rules.TrimmedMean,
    "geometric_median": lambda f: rules.GeometricMedian(iterations=3),  # noqa: ARG005
    "krum": rules.Krum,
    "multi_krum": rules.MultiKrum,
    "centred_clipping": lambda f: rules.CentredClipping(),  # noqa: ARG005
    "nnm_trimmed_mean": lambda f: rules.NNM(f) | rules.TrimmedMean(f),
    "nnm_multi_krum": lambda f: rules.NNM(f) | rules.MultiKrum(f),
}
BYZFL = [name for name in OUTLAST if name != "mean"]


def aggregator(library: str, name: str, f: int) -> Aggregator:
    return _Outlast(OUTLAST[name](f)) if library == "outlast" else _ByzFL(name, f)


class _Outlast:
    def __init__(self, rule: rules.Rule) -> None:
        self._rule = rule
        self._last: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        self._last = self.foresee(rows)
        return self._last

    def foresee(self, rows: Tensor) -> Tensor:
        centre = self._last if self._rule.needs.centre else None
        result: Tensor = self._rule(rows, centre=centre)
        return result


class _ByzFL:
    """With the parameters that ByzFL has by default, as in its own benchmark."""

    def __init__(self, name: str, f: int) -> None:
        import byzfl

        mix = byzfl.NNM(f) if name.startswith("nnm_") else None
        self._mix: Any = mix or (lambda rows: rows)
        self._rule: Any = {
            "median": lambda: byzfl.Median(),
            "trimmed_mean": lambda: byzfl.TrMean(f),
            "geometric_median": lambda: byzfl.GeometricMedian(),
            "krum": lambda: byzfl.Krum(f),
            "multi_krum": lambda: byzfl.MultiKrum(f),
            "centred_clipping": lambda: byzfl.CenteredClipping(),
        }[name.removeprefix("nnm_")]()

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self._rule(self._mix(rows))
        return result

    def foresee(self, rows: Tensor) -> Tensor:
        # Centred clipping remembers its last result, which a copy of it may do without harm.
        result: Tensor = copy(self._rule)(self._mix(rows))
        return result
