"""Whether the kernel has killed for want of memory: it counts that, for each control group and altogether.

SIGKILL comes from many: somebody's `kill -9`, a batch system, the kernel when memory runs out. Only the
kernel knows of the last, so "out of memory" is said where a counter of its own has grown, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
VMSTAT = Path("/proc/vmstat")


class OutOfMemory:
    """Kills for want of memory since this was made."""

    def __init__(self, *, cgroups: Path = CGROUPS, own: Path = SELF, vmstat: Path = VMSTAT) -> None:
        self._counters = [*_of_own_group(cgroups, own), vmstat]
        self._explained = self._count()

    def explains_one(self) -> bool:
        """Whether there was a kill that has not explained another death yet."""
        if self._count() <= self._explained:
            return False
        self._explained += 1
        return True

    def _count(self) -> int:
        """By the first counter that can be read. The one of the own group counts what was killed in it, for
        whatever limit; the last one everything on this machine."""
        for path in self._counters:
            count = _read(path)
            if count is not None:
                return count
        return 0


def _of_own_group(cgroups: Path, own: Path) -> list[Path]:
    """Where it may be: in version 2 of control groups, or in version 1."""
    found = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if not controllers:
            found.append(cgroups / inside / "memory.events")
        elif "memory" in controllers.split(","):
            # In a container, the group's path is that of the host, and what is mounted is the group itself.
            found += [
                cgroups / "memory" / inside / "memory.oom_control",
                cgroups / "memory/memory.oom_control",
            ]
    return found


def _read(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
