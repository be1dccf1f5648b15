"""Letting go of a lock for a while."""

import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def unlocked(changed: threading.Condition) -> Iterator[None]:
    """The lock is held before and after, and not meanwhile."""
    changed.release()
    try:
        yield
    finally:
        changed.acquire()
