"""A scene as it is drawn in a terminal: a bar, a few lines, and a line per replica, in 80 columns."""

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from outlast.run.scene import Scene

BAR_COLUMNS = 40


def render(scene: Scene) -> Group:
    """Text of a job is never taken for markup, and no line is broken in two."""
    stage = f"{scene.stage}: {scene.detail}" if scene.detail else scene.stage
    parts: list[RenderableType] = [_line((scene.run, "bold"), ("  ", ""), (stage, _stage_style(scene)))]
    if scene.total:
        parts.append(_bar(scene))
    elif scene.step:
        parts.append(_line((scene.steps(), "")))
    told = scene.progress()
    if scene.training or scene.step:
        told.append(scene.members())
    if told:
        parts.append(_line((" · ".join(told), "")))
    if scene.checkpoint:
        parts.append(_line((f"checkpoint: {scene.checkpoint}", "")))
    if scene.fault:
        parts.append(_line((f"last fault: {scene.fault}", "yellow")))
    parts += [_line((trouble, "yellow")) for trouble in scene.troubles]
    if scene.replicas:
        parts.append(_replicas(scene))
    return Group(*parts)


def _stage_style(scene: Scene) -> str:
    if scene.stage.startswith("failed"):
        return "red"
    return "green" if scene.trains or scene.stage == "finished" else "cyan"


def _bar(scene: Scene) -> Table:
    done = min(scene.step, scene.total)
    row = Table.grid(padding=(0, 2))
    row.add_row(
        ProgressBar(total=scene.total, completed=done, width=BAR_COLUMNS),
        Text(f"{scene.step:,} of {scene.total:,}"),
        Text(f"{100 * done // scene.total}%"),
    )
    return row


def _replicas(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True, overflow="ellipsis")
    for line in scene.replicas:
        table.add_row(
            f"  replica {line.replica}",
            Text(line.does, style="green" if line.good else "yellow"),
            f"step {line.step:,}" if line.step is not None else "",
            f"pid {line.pid}" if line.pid else "",
            Text(line.agent),
        )
    return table


def _line(*pieces: tuple[str, str]) -> Text:
    line = Text.assemble(*((text, style) for text, style in pieces))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
