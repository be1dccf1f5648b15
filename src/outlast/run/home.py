"""Where runs are kept, and how to find one again.

Runs live under one directory of the user's (`OUTLAST_HOME`, or the usual place for state). A run is alive
while its launcher is; a launcher that was killed leaves its directory behind, which harms nobody.
"""

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from outlast.errors import ConfigError, UsageError
from outlast.wire.rundir import RunDirectory, RunFile


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
    """When a process started, in the kernel's ticks; 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def find_run(name: str | None, base: Path) -> RunDirectory:
    """The run of that name or path, or the newest one, alive ones first."""
    if name is not None:
        for path in (Path(name), base / "runs" / name):
            if (path / "run.json").exists():
                return RunDirectory(path)
        raise UsageError(f"there is no run {name!r}; the runs are in {base / 'runs'}")
    runs = sorted((base / "runs").glob("*/run.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    if not runs:
        raise UsageError("there is no run yet; start one with `outlast run -n 2 train.py`")
    directories = [RunDirectory(path.parent) for path in runs]
    return next((directory for directory in directories if _alive(directory)), directories[0])


def _alive(directory: RunDirectory) -> bool:
    try:
        return alive(directory.read())
    except ConfigError:
        return False
