"""The etcd program: found, and judged by its version before it gets to keep anything."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from outlast.coordinator.store.etcd import judge_version
from outlast.errors import ConfigError

VARIABLE = "OUTLAST_ETCD"
ANSWERS_WITHIN_S = 20.0

_GET_IT = (
    "`apt install etcd-server` on Debian and Ubuntu (and `systemctl disable --now etcd`: the package starts "
    "one of its own), `dnf install etcd` on Fedora, or a release from github.com/etcd-io/etcd with "
    f"{VARIABLE}=PATH"
)


def find_program(environment: Mapping[str, str] = os.environ) -> Path:
    """From `OUTLAST_ETCD`, the PATH, or beside this Python."""
    if chosen := environment.get(VARIABLE):
        found = shutil.which(chosen, path=environment.get("PATH"))
        if found is None:
            raise ConfigError(f"{VARIABLE} is {chosen!r}, and there is no such program: {_GET_IT}")
        return Path(found)
    found = shutil.which("etcd", path=environment.get("PATH"))
    for path in (found, Path(sys.prefix) / "etcd" / "etcd", Path(sys.prefix) / "bin" / "etcd"):
        if path is not None and os.access(path, os.X_OK):
            return Path(path)
    raise ConfigError(f"there is no etcd on this machine. Get it: {_GET_IT}")


def program_version(program: Path) -> str:
    """As it says itself."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{program} cannot be run ({error}): get another one: {_GET_IT}") from None
    head, _, version = done.stdout.partition("\n")[0].partition(": ")
    if done.returncode != 0 or head != "etcd Version":
        raise ConfigError(
            f"{program} is no etcd: it answers --version with {(done.stdout or done.stderr)[:80]!r}"
        )
    return version.strip()


def judged(program: Path) -> tuple[str, str]:
    """Its version, and what people have to know of it; raises for one that cannot be trusted."""
    version = program_version(program)
    return version, judge_version(version)
