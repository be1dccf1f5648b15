"""The locks of a replica, and their order.

Several threads share a replica: the script's, the link's to the coordinator, the mesh's, those that copy,
compare, save and write down. None of them may wait for another in a circle, so there is one order, and a
thread that holds a lock takes only those further down:

    helm         whose turn it is to move bytes between the mesh's sockets and its memory
    engine       the driver, the cores, and all that a replica decides
    copying      copies of the state, while they are being made
    mesh         which connections there are to be
    connection   what is queued for one peer

Below them are leaves, under which nothing else is taken: memory that is lent (`flats.py`, which the garbage
collector may call), the stream to the coordinator (`wire/blocking.py`), the counting of events (`queue.py`).

Under the engine's lock nothing waits for a file, a log handler, or a socket that may block: whatever does is
handed to a thread of its own.

No lock is taken twice. With OUTLAST_CHECK_LOCKS in the environment, as in the tests, both rules are checked
at every turn; else these are plain locks.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import cast

ORDER = ("helm", "engine", "copying", "mesh", "connection")

_CHECKS = bool(os.environ.get("OUTLAST_CHECK_LOCKS"))
_held = threading.local()


class OutOfOrder(AssertionError):
    """A lock was taken where the order forbids it."""


class CheckedLock:
    """A lock that knows its place."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rank = ORDER.index(name)
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        held = _names()
        if blocking:
            last = max(map(ORDER.index, held), default=-1)
            if last >= self._rank:
                raise OutOfOrder(
                    f"{self._name} is taken by one that holds {ORDER[last]}; see outlast/locks.py"
                )
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            held.append(self._name)
        return taken

    def release(self) -> None:
        _names().remove(self._name)
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def _is_owned(self) -> bool:
        """For `threading.Condition`."""
        return self._name in _names()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock(name: str) -> threading.Lock | CheckedLock:
    """One of those above."""
    return CheckedLock(name) if _CHECKS else threading.Lock()


class Monitor(threading.Condition):
    """One of those above, to wait on."""

    def __init__(self, name: str) -> None:
        self.lock = lock(name)
        """The same, for those who only take it: at every turn that is worth a microsecond."""
        super().__init__(cast(threading.Lock, self.lock))


def _names() -> list[str]:
    """What this thread holds."""
    if not hasattr(_held, "names"):
        _held.names = []
    names: list[str] = _held.names
    return names
