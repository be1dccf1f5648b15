"""Tables and pictures of which rule keeps how much accuracy under its worst attack."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination that was measured, and its accuracy for each seed."""

    library: str
    dataset: str
    gamma: float
    rule: str
    f: int
    attack: str | None
    accuracies: tuple[float, ...]

    @property
    def percent(self) -> float:
        return 100 * fmean(self.accuracies)


@dataclass(frozen=True)
class Worst:
    """What the worst of all attacks leaves, as a mean over seeds."""

    percent: float
    attack: str


Key = tuple[str, float, str, int]
"""Dataset, gamma, rule and f."""


def worst_attacks(cells: Iterable[Cell], library: str = "outlast") -> dict[Key, Worst]:
    found: dict[Key, Worst] = {}
    for cell in cells:
        if cell.attack is None or cell.library != library:
            continue
        key = (cell.dataset, cell.gamma, cell.rule, cell.f)
        if key not in found or cell.percent < found[key].percent:
            found[key] = Worst(cell.percent, cell.attack)
    return found


def unattacked(cells: Iterable[Cell], rule: str) -> dict[tuple[str, float], float]:
    """Accuracy with honest workers only, in per cent, by dataset and gamma."""
    return {
        (cell.dataset, cell.gamma): cell.percent
        for cell in cells
        if cell.attack is None and cell.rule == rule and cell.library == "outlast"
    }


def best_rule(worst: Mapping[Key, Worst], dataset: str, gamma: float, f: int) -> str:
    rules = [
        rule for data, similarity, rule, count in worst if (data, similarity, count) == (dataset, gamma, f)
    ]
    return max(rules, key=lambda rule: worst[dataset, gamma, rule, f].percent)


def print_tables(cells: Sequence[Cell], console: Console) -> None:
    worst, peers = worst_attacks(cells), worst_attacks(cells, "byzfl")
    counts = sorted({f for *_, f in worst})
    for dataset, gamma in dict.fromkeys((dataset, gamma) for dataset, gamma, *_ in worst):
        without = unattacked(cells, "mean").get((dataset, gamma))
        console.print(f"{dataset}, gamma {gamma:g}: % right under the worst attack", highlight=False)
        if without is not None:
            console.print(f"(the mean of honest workers only: {without:.1f})", highlight=False)
        table = Table(show_edge=False)
        table.add_column("rule")
        for f in counts:
            table.add_column(f"f = {f}", justify="right")
        with_peers = any(key[:2] == (dataset, gamma) for key in peers)
        if with_peers:
            table.add_column("ByzFL, f = " + ", ".join(str(f) for f in sorted({f for *_, f in peers})))
        for rule in dict.fromkeys(rule for _, _, rule, _ in worst):
            row = [rule, *(_shown(worst.get((dataset, gamma, rule, f))) for f in counts)]
            if with_peers:
                of_rule = [found for key, found in peers.items() if key[:3] == (dataset, gamma, rule)]
                row.append(", ".join(_shown(found) for found in of_rule))
            table.add_row(*row)
        console.print(table)
        console.print()


def draw_heat_maps(cells: Sequence[Cell], directory: Path) -> list[str]:
    """One picture per dataset, rule by f, with a panel for each gamma. Returns where they are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    worst, paths = worst_attacks(cells), []
    counts = sorted({f for *_, f in worst})
    for dataset in dict.fromkeys(dataset for dataset, *_ in worst):
        mine = {key[1:]: found for key, found in worst.items() if key[0] == dataset}
        gammas = sorted({gamma for gamma, _, _ in mine}, reverse=True)
        names = list(dict.fromkeys(rule for _, rule, _ in mine))
        figure = Figure(figsize=(2 + 3.2 * len(gammas), 1.2 + 0.4 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(gammas), sharey=True, squeeze=False)[0]
        for panel, gamma in zip(panels, gammas, strict=True):
            values = [[mine[gamma, rule, f].percent for f in counts] for rule in names]
            image = panel.imshow(values, vmin=0, vmax=100, cmap="viridis", aspect="auto")
            panel.set_title(f"gamma = {gamma:g}")
            panel.set_xticks(range(len(counts)), [f"f = {f}" for f in counts])
            panel.set_yticks(range(len(names)), names)
            for y, row in enumerate(values):
                for x, value in enumerate(row):
                    colour = "black" if value > 60 else "white"
                    panel.text(x, y, f"{value:.0f}", ha="center", va="center", color=colour)
        figure.colorbar(image, ax=panels, label="% right")
        figure.suptitle(f"{dataset}: accuracy under the worst attack")
        path = directory / f"byzantine-{dataset}.png"
        figure.savefig(path, dpi=120)
        paths.append(str(path))
    return paths


def _shown(found: Worst | None) -> str:
    return "" if found is None else f"{found.percent:.1f} {_SHORT[found.attack]}"


_SHORT = {"sign_flip": "SF", "label_flip": "LF", "opt_alie": "ALIE", "opt_ipm": "IPM"}
