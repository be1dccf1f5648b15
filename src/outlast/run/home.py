"""Where runs are kept, and how to find one again.

Runs live under one directory of the user's (`OUTLAST_HOME`, or the usual place for state). A run is alive
while its launcher is; a launcher that was killed leaves its directory behind, which harms nobody.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from outlast.errors import ConfigError, UsageError
from outlast.wire.rundir import RunDirectory, RunFile

CANDIDATES = 8
"""So many are named when it is not clear which run is meant."""


def home(environment: Mapping[str, str] = os.environ) -> Path:
    if "OUTLAST_HOME" in environment:
        return Path(environment["OUTLAST_HOME"])
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "outlast"


def fresh_name(program: str) -> str:
    """A readable name that no other run has: the program, the time, and a little chance."""
    stem = "".join(c if c.isalnum() else "-" for c in Path(program).stem).strip("-") or "run"
    return f"{stem[:40]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def alive(run: RunFile) -> bool:
    """Whether the launcher of this run still runs (and is not somebody else who got its number)."""
    return run.launcher_started > 0 and started_at(run.launcher_pid) == run.launcher_started


def started_at(pid: int) -> int:
    """When a process started, in the kernel's ticks; 0 if there is none, or one that nobody has buried."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def find_run(name: str | None, base: Path) -> RunDirectory:
    """The run of that path or name, or of a name that begins so; or the newest one, alive ones first."""
    if name is not None:
        return _named(name, base)
    runs = directories(base)
    if not runs:
        raise UsageError("there is no run yet; start one with `outlast run -n 2 train.py`")
    return next((directory for directory in runs if _alive(directory)), runs[0])


def directories(base: Path) -> list[RunDirectory]:
    """All runs, the newest first."""
    made = []
    for path in (base / "runs").glob("*/run.json"):
        # One may be pruned while we look.
        with contextlib.suppress(FileNotFoundError):
            made.append((path.stat().st_mtime, path.parent))
    return [RunDirectory(path) for _, path in sorted(made, reverse=True)]


def _named(name: str, base: Path) -> RunDirectory:
    for path in (Path(name), base / "runs" / name):
        if (path / "run.json").exists():
            return RunDirectory(path)
    found = [run for run in directories(base) if name and run.name.startswith(name)]
    if not found:
        raise UsageError(f"there is no run {name!r}; `outlast runs` lists those in {base / 'runs'}")
    if len(found) > 1:
        names = ", ".join(run.name for run in found[:CANDIDATES])
        more = f" and {len(found) - CANDIDATES} more" if len(found) > CANDIDATES else ""
        raise UsageError(f"{name!r} may be any of {names}{more}; give more of its name")
    return found[0]


def _alive(directory: RunDirectory) -> bool:
    try:
        return alive(directory.read())
    except ConfigError:
        return False
