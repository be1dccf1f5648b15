"""How a run ended, as its launcher writes it down at the very end: `ended.json` in the run directory.

A run that has no such file, and whose launcher is gone, was interrupted: the launcher was killed, or the
whole machine went down.
"""

import contextlib
from typing import Literal

import msgspec

from outlast.errors import ConfigError
from outlast.run.home import alive
from outlast.wire import private
from outlast.wire.rundir import RunDirectory, RunFile

FORMAT = 1
FILE = "ended.json"

State = Literal["running", "finished", "failed", "stopped", "interrupted"]


class FaultNote(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that went wrong on the way."""

    what: str
    step: int
    replica: int | None = None
    lasted_s: float | None = None
    """Until the replica took part again; None if it did not."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ended.json."""

    format: int = FORMAT
    state: Literal["finished", "failed", "stopped"]
    exit_code: int
    reason: str = ""
    replica: int | None = None
    """Whose failure it was, if it was one's."""
    ended_at: float
    """In seconds since 1970."""
    took_s: float
    step: int = 0
    total: int = 0
    """0 if it was never told."""
    resumed_from: int | None = None
    """The step whose checkpoint it went on from; None if it began anew."""
    faults: tuple[FaultNote, ...] = ()
    faults_cost_s: float = 0.0
    """About."""
    saved_step: int | None = None
    saved_to: str = ""
    """Where checkpoints are; empty if the script has none made."""


def write(directory: RunDirectory, ended: Ending) -> None:
    """A full disk keeps nobody from ending, and nor does another directory in place of the run's own."""
    content = msgspec.json.format(msgspec.json.encode(ended), indent=2) + b"\n"
    with contextlib.suppress(OSError, ConfigError), directory.held() as fd:
        private.write_file(directory.path / FILE, content, directory_fd=fd)


def read(directory: RunDirectory) -> Ending | None:
    """None if nothing was written, or nothing that can be read."""
    path = directory.path / FILE
    try:
        with directory.held() as fd:
            ended = msgspec.json.decode(private.read_file(fd, path), type=Ending)
    except (OSError, ConfigError, msgspec.DecodeError):
        return None
    return ended if ended.format == FORMAT else None


def state_of(run: RunFile, ended: Ending | None) -> State:
    if ended is not None:
        return ended.state
    return "running" if alive(run) else "interrupted"
