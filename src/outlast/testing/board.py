"""A notice board for stand-in replicas on one machine: a lock-step barrier without any network.

Each replica has a line of two words on a shared page: where it is (view and round, in one word), and the step
with which it entered the view. A round is complete when all members of the view have reached it.
"""

import mmap
import os
from pathlib import Path

from outlast.protocol.views import View

LINES = 1024
_WORDS = 2
_ROUND_BITS = 32


class Board:
    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, LINES * _WORDS * 8)
            self._map = mmap.mmap(fd, LINES * _WORDS * 8)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def enter(self, replica: int, view: View, step: int) -> None:
        """Begin round 1 of a view, having completed `step`."""
        self._words[replica * _WORDS + 1] = step
        self.reach(replica, view, 1)

    def reach(self, replica: int, view: View, round_: int) -> None:
        self._words[replica * _WORDS] = view.number << _ROUND_BITS | round_

    def complete(self, view: View, round_: int) -> bool:
        wanted = view.number << _ROUND_BITS | round_
        return all(
            wanted <= self._words[member.replica * _WORDS] < (view.number + 1) << _ROUND_BITS
            for member in view.members
        )

    def newest_step(self, view: View) -> int:
        """The step of whoever was furthest when the view began."""
        return max(self._words[member.replica * _WORDS + 1] for member in view.members)
