"""A picture at the bottom of the terminal, with the replicas' output scrolling above it."""

import sys

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from outlast.run.picture import render
from outlast.run.printer import Printer
from outlast.run.scene import Scene

REFRESHES_PER_S = 8


class LiveDisplay:
    def __init__(self) -> None:
        self._printer = Printer(lambda note: self._console.print(note))
        self._console = Console(stderr=True, highlight=False)
        self._scene: Scene | None = None
        self._live = Live(
            get_renderable=self._picture,
            console=self._console,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )

    def open(self) -> None:
        self._printer.put(self._live.start)

    def line(self, stream: str, text: str) -> None:
        if stream == "stdout" and not sys.stdout.isatty():
            self._printer.put(lambda: print(text, flush=True))
            return
        self._printer.put(lambda: self._console.print(_prefixed(text), soft_wrap=True))

    def say(self, text: str) -> None:
        self._printer.put(lambda: self._console.print(Text(text, style="bold"), soft_wrap=True))

    def show(self, scene: Scene) -> None:
        # The picture is drawn by a thread of its own, from whatever is newest.
        self._scene = scene

    def close(self) -> bool:
        self._printer.put(self._live.stop)
        return self._printer.close()

    def _picture(self) -> RenderableType:
        return render(self._scene) if self._scene is not None else Text("")


def _prefixed(text: str) -> Text:
    head, bracket, rest = text.partition("] ")
    if not bracket or not head.startswith("["):
        return Text(text)
    return Text.assemble((head + bracket, "cyan"), rest)
