"""What the progress pages of a run still say when its processes are gone: how far it came, and what is saved.

Pages are files, and what a process has written stays there. At the end nobody is left to ask.
"""

from dataclasses import dataclass

from outlast.errors import ProtocolError
from outlast.wire.progress import ProgressReader
from outlast.wire.rundir import RunDirectory


@dataclass(frozen=True)
class Remains:
    joined: bool = False
    """Whether any of the processes has called `outlast.join`."""
    step: int = 0
    total: int = 0
    saved_step: int | None = None
    place: str = ""
    """Where checkpoints are; empty if the script has none made."""


def remains(directory: RunDirectory) -> Remains:
    readings = []
    for page in directory.path.glob("agents/*/replica-*.page"):
        try:
            reader = ProgressReader(page)
            try:
                readings.append(reader.read())
            finally:
                reader.close()
        except (OSError, ProtocolError):
            continue
    saved = max((reading.saved for reading in readings), default=-1)
    return Remains(
        joined=any(reading.joined for reading in readings),
        step=max((max(reading.step, reading.saved) for reading in readings), default=0),
        total=max((reading.total for reading in readings), default=0),
        saved_step=saved if saved >= 0 else None,
        place=next((reading.place for reading in readings if reading.place), ""),
    )
