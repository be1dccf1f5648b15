"""Memory and descriptors of the processes of a job: looked at again and again, and bounded for each kind.

How much a process has after a second depends on how far it got with loading its modules, and on a busy
machine that may be any part of them. So what it had when it was last seen is held against what its kind
needs, with some room: a job in which everything broke may not leave one thing more for each fault.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from outlast.kinship import stat


class Size(NamedTuple):
    descriptors: int
    memory_mib: int


MOST = {
    "launcher": Size(40, 80),
    "coordinator": Size(40, 80),
    "agent": Size(40, 80),
    "forkserver": Size(20, 250),
    "replica": Size(40, 400),
    "worker": Size(40, 400),
}


class Sizes:
    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], Size] = {}

    def look(self, processes: Iterable[tuple[str, int]]) -> None:
        for kind, pid in processes:
            found, size = stat(pid), _size(pid)
            if found is not None and size is not None:
                self._last[kind, pid, found.started_ticks] = size

    def largest(self) -> dict[str, Size]:
        """Of each kind, the most of both that any of them had at last."""
        found: dict[str, Size] = {}
        for (kind, _, _), size in self._last.items():
            before = found.get(kind, size)
            found[kind] = Size(*map(max, before, size))
        return found

    def too_much(self) -> list[str]:
        return [
            f"{kind} {pid} has {size}, and {MOST[kind]} would be plenty"
            for (kind, pid, _), size in self._last.items()
            if size.descriptors > MOST[kind].descriptors or size.memory_mib > MOST[kind].memory_mib
        ]


def _size(pid: int) -> Size | None:
    """None of a process that is gone, or only waits to be buried."""
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    memory = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")]
    return Size(descriptors, memory[0] >> 10) if memory else None
