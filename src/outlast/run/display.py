"""What a person sees of a run: a live picture in a terminal (`live.py`), lines in a log (`plain.py`).

Both are driven by the same few calls, and neither ever holds up the launcher.
"""

from typing import Protocol

from outlast.run.scene import Scene


class Display(Protocol):
    def open(self) -> None:
        """The run begins."""
        ...

    def line(self, stream: str, text: str) -> None:
        """What a part of the run has printed."""
        ...

    def say(self, text: str) -> None:
        """What we have to say ourselves."""
        ...

    def show(self, scene: Scene) -> None:
        """How things stand now; comes several times a second."""
        ...

    def close(self) -> bool:
        """Show what is left; False if the terminal does not take it."""
        ...
