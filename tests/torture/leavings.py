"""What a job that is over has left lying about: shared memory, temporary files, sockets, odd files."""

import contextlib
import os
import re
import stat
import time
from pathlib import Path

SHARED = Path("/dev/shm")  # noqa: S108 (it is looked at, and nothing is written there)
RUN_DIRECTORY = {"run.json", "token", "store", "agents", "logs", "events", "ended.json"}
"""What `wire/rundir.py` says that there is."""
TORCHS_OWN = "torchinductor_"
"""An empty cache, which torch makes when it is imported."""
_GONE_WITHIN_S = 2.0


def shared_memory() -> set[str]:
    return {entry.name for entry in SHARED.iterdir()} if SHARED.exists() else set()


def left_in_shared_memory(before: set[str]) -> list[str]:
    """New names that no living process uses. Others may run on this machine, and theirs are in use."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := shared_memory() - before - _used_names()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{name} is left in {SHARED}" for name in sorted(left)]


def left_in_folders(temporary: Path, homes: list[Path]) -> list[str]:
    found = [
        f"{path} is left among the temporary files"
        for path in sorted(temporary.iterdir())
        if not path.name.startswith(TORCHS_OWN)
    ]
    for home in homes:
        for run in sorted((home / "runs").glob("*")):
            odd = {path.name for path in run.iterdir()} - RUN_DIRECTORY if run.is_dir() else set()
            found += [f"{run / name} does not belong in a run directory" for name in sorted(odd)]
        found += [f"{path} is a socket that was left" for path in sorted(home.rglob("*")) if _is_socket(path)]
    return found


def _is_socket(path: Path) -> bool:
    return stat.S_ISSOCK(path.lstat().st_mode)


def _used_names() -> set[str]:
    """What living processes have mapped or open there."""
    names: set[str] = set()
    pattern = re.compile(re.escape(f"{SHARED}/") + r"(\S+)")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            names.update(pattern.findall((process / "maps").read_text()))
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    names.update(pattern.findall(os.readlink(link)))
    return names
