"""Every view that was agreed on, one line each, in `logs/views.log` of the run directory.

People are told of a run in plain words; who wants to know exactly which life of which replica was in which
view, and why, finds it here. What cannot be written now, on a full disk, is written with the next one.
"""

import os
from collections import deque
from pathlib import Path

from outlast.protocol.events import View
from outlast.wire.private import make_below

KEPT_LINES = 10_000


class ViewLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._waiting: deque[bytes] = deque(maxlen=KEPT_LINES)

    def write(self, view: View) -> None:
        self._waiting.append(f"{describe(view)}\n".encode(errors="replace"))
        self.flush()

    def flush(self) -> None:
        try:
            if self._fd is None:
                make_below(self._path.parent)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o600)
            while self._waiting:
                written = os.write(self._fd, self._waiting[0])
                rest = self._waiting.popleft()[written:]
                if rest:
                    self._waiting.appendleft(rest)
        except OSError:
            return

    def close(self) -> None:
        self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def describe(view: View) -> str:
    """One view as one line."""
    members = ",".join(str(member.replica) for member in view.members) or "none"
    learners = ",".join(str(member.replica) for member in view.learners)
    return (
        f"view {view.number}: members {members}"
        + (f", learning {learners}" if learners else "")
        + (f" ({view.cause})" if view.cause else "")
    )
