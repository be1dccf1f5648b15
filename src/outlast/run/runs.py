"""All runs on this machine: what became of them, how much room they take, and which may go."""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import ConfigError
from outlast.run import ended
from outlast.run.home import directories
from outlast.run.remains import remains
from outlast.wire.rundir import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, as a list shows it."""

    directory: RunDirectory
    state: ended.State | None
    """None if its directory cannot be read: another version of Outlast has made it, or somebody edited it."""
    command: str
    began_at: float
    ended_at: float | None
    """In seconds since 1970; None if it runs."""
    size_bytes: int
    step: int
    total: int
    exit_code: int | None = None

    @property
    def outcome(self) -> str:
        match self.state:
            case None:
                return "cannot be read"
            case "finished" | "running":
                return self.state
            case "interrupted":
                return f"was interrupted at step {self.step:,}" if self.step else "was interrupted"
            case _:
                return f"{self.state} at step {self.step:,}" if self.step else self.state


def all_runs(base: Path) -> list[Run]:
    """The newest first."""
    return [_look_at(directory) for directory in directories(base)]


def _look_at(directory: RunDirectory) -> Run:
    size_bytes, touched = _size_and_age(directory.path)
    began = _modified(directory.path / "run.json")
    try:
        run = directory.read()
    except (ConfigError, OSError):
        return Run(
            directory=directory,
            state=None,
            command="",
            began_at=began,
            ended_at=touched,
            size_bytes=size_bytes,
            step=0,
            total=0,
        )
    ending = ended.read(directory)
    state = ended.state_of(run, ending)
    left = remains(directory)
    if ending is not None:
        ended_at: float | None = ending.ended_at
    else:
        ended_at = None if state == "running" else touched
    return Run(
        directory=directory,
        state=state,
        command=shlex.join(run.argv),
        began_at=began,
        ended_at=ended_at,
        size_bytes=size_bytes,
        step=ending.step if ending is not None else left.step,
        total=ending.total if ending is not None else left.total,
        exit_code=ending.exit_code if ending is not None else None,
    )


def to_prune(runs: Sequence[Run], now: float, *, older_than_s: float, keep: int) -> list[Run]:
    """Those that ended longer ago than that, and are not among the newest so many. One that runs, or whose
    directory cannot be read, stays."""
    over = [run for run in runs if run.state not in (None, "running")]
    return [run for run in over[keep:] if run.ended_at is not None and now - run.ended_at >= older_than_s]


def remove(run: Run) -> None:
    """With all that is in its directory. Links are not followed, and a directory that is one is refused."""
    shutil.rmtree(run.directory.path)


def _size_and_age(path: Path) -> tuple[int, float]:
    """How many bytes, and when something was last written; what goes away meanwhile does not count."""
    size_bytes, newest = 0, 0.0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            size_bytes += status.st_size
            newest = max(newest, status.st_mtime)
    return size_bytes, newest


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
