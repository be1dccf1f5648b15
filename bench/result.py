"""What a benchmark found, as one JSON object for machines and as a table for people."""

import json
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

SIGNIFICANT_DIGITS = 4


@dataclass(kw_only=True)
class Result:
    """`figures` are the worst over all configurations that were measured; `details` tell them apart."""

    name: str
    figures: dict[str, float]
    bounds: dict[str, float] = field(default_factory=dict)
    """Figure → the largest value that keeps the promise."""
    floors: dict[str, float] = field(default_factory=dict)
    """Figure → the smallest value that keeps the promise."""
    intervals: dict[str, list[float]] = field(default_factory=dict)
    """How sure figures are: the low and the high end."""
    details: dict[str, Any] = field(default_factory=dict)

    def within(self, figure: str) -> bool:
        value = self.figures[figure]
        return value <= self.bounds.get(figure, value) and value >= self.floors.get(figure, value)

    @property
    def ok(self) -> bool:
        return all(self.within(figure) for figure in (*self.bounds, *self.floors))

    def as_dict(self) -> dict[str, Any]:
        bounds = {
            figure: {"bound": bound, "measured": self.figures[figure], "ok": self.within(figure)}
            for figure, bound in {**self.bounds, **self.floors}.items()
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
        for figure, value in self.figures.items():
            bound = self._bound_shown(figure)
            verdict = "" if not bound else "[green]ok" if self.within(figure) else "[red]missed"
            table.add_row(figure, _shown(value), bound, verdict)
        console.print(table)
        console.print()

    def _bound_shown(self, figure: str) -> str:
        if figure in self.floors:
            return f"≥ {_shown(self.floors[figure])}"
        return _shown(self.bounds[figure]) if figure in self.bounds else ""


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
