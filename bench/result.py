"""What a benchmark found, as one JSON object for machines and as a table for people."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

SIGNIFICANT_DIGITS = 4


Figure = float | Mapping[str, float]
"""A number, or one for each of several things that were measured alike, by name."""


@dataclass(kw_only=True)
class Result:
    """`figures` are the worst over all configurations that were measured; `details` tell them apart."""

    name: str
    figures: Mapping[str, Figure]
    bounds: Mapping[str, Figure] = field(default_factory=dict)
    """Figure → the largest value that keeps the promise."""
    floors: Mapping[str, Figure] = field(default_factory=dict)
    """Figure → the smallest value that keeps the promise."""
    intervals: dict[str, list[float]] = field(default_factory=dict)
    """How sure figures are: the low and the high end."""
    details: dict[str, Any] = field(default_factory=dict)

    def within(self, figure: str) -> bool:
        return all(verdict.ok for verdict in self._verdicts() if verdict.figure == figure)

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self._verdicts())

    def as_dict(self) -> dict[str, Any]:
        bounds: dict[str, Any] = {}
        for verdict in self._verdicts():
            place = bounds if verdict.key is None else bounds.setdefault(verdict.figure, {})
            place[verdict.figure if verdict.key is None else verdict.key] = {
                "bound": verdict.bound,
                "measured": verdict.measured,
                "ok": verdict.ok,
            }
        whole = {**self.figures, **self.intervals, "ok": self.ok, "bounds": bounds, "details": self.details}
        rounded: dict[str, Any] = _rounded(whole)
        return rounded

    def as_json(self) -> str:
        return json.dumps({"benchmark": self.name, **self.as_dict()})

    def print_table(self, console: Console) -> None:
        table = Table(title=self.name, title_justify="left", show_edge=False)
        table.add_column("figure")
        table.add_column("measured", justify="right")
        table.add_column("bound", justify="right")
        table.add_column("")
        verdicts = {(verdict.figure, verdict.key): verdict for verdict in self._verdicts()}
        for figure, key, value in _each(self.figures):
            verdict = verdicts.get((figure, key))
            name = figure if key is None else f"{figure}.{key}"
            if verdict is None:
                table.add_row(name, _shown(value), "", "")
            else:
                limit = ("≥ " if verdict.is_floor else "") + _shown(verdict.bound)
                table.add_row(name, _shown(value), limit, "[green]ok" if verdict.ok else "[red]missed")
        console.print(table)
        console.print()

    def _verdicts(self) -> "list[_Verdict]":
        values = {(figure, key): value for figure, key, value in _each(self.figures)}
        return [
            _Verdict(figure, key, bound, values[figure, key], is_floor)
            for limits, is_floor in ((self.bounds, False), (self.floors, True))
            for figure, key, bound in _each(limits)
        ]


@dataclass(frozen=True)
class _Verdict:
    figure: str
    key: str | None
    bound: float
    measured: float
    is_floor: bool

    @property
    def ok(self) -> bool:
        return self.measured >= self.bound if self.is_floor else self.measured <= self.bound


def _each(figures: Mapping[str, Figure]) -> Iterator[tuple[str, str | None, float]]:
    for figure, value in figures.items():
        if isinstance(value, Mapping):
            yield from ((figure, key, inner) for key, inner in value.items())
        else:
            yield figure, None, value


def _shown(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10**SIGNIFICANT_DIGITS else f"{value:.{SIGNIFICANT_DIGITS}g}"


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(_shown(value))
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list():
            return [_rounded(inner) for inner in value]
    return value
