"""The saving thread: one after the other, it does what of saving takes long, beside training.

It begins with the first work, and takes no more once it is closed. Work that fails in an unforeseen way is
told in the log and takes nothing else with it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

END_WITHIN_S = 1.0


class SavingThread:
    def __init__(self, changed: threading.Condition) -> None:
        """`changed` is the engine's lock; whoever waits for it is woken after each piece of work."""
        self._changed = changed
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.closed = False
        self.unfinished = 0
        """All work that it has not come to the end of, also of saves that were given up."""

    def do(self, work: Callable[[], None]) -> None:
        """Under the lock."""
        if self.closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="outlast-saving", daemon=True)
            self._thread.start()
        self.unfinished += 1
        self._work.put(work)

    def close(self) -> None:
        """Under the lock: take nothing more."""
        self.closed = True

    def end(self) -> None:
        """Without the lock, after `close`. Bounded, since a storage may not answer."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(timeout=END_WITHIN_S)

    def _run(self) -> None:
        # No less important than training: what it computes has to be computed once in any case, and a save
        # that gets the rest of busy cores takes many times as long, and from training no less than a short
        # one.
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("the saving thread met with something unforeseen, and goes on")
            finally:
                # What the work held on to, such as a copy of the state, goes with it.
                del work
                with self._changed:
                    self.unfinished -= 1
                    self._changed.notify_all()
