"""Printing, in a thread of its own behind a bounded queue.

A terminal that stands still must never hold up the launcher, which has processes to look after.
"""

import queue
import threading
import time
from collections.abc import Callable

QUEUED_LINES = 10_000


class Printer:
    """Calls what it is given, one after the other, in its own thread."""

    def __init__(self, say_left_out: Callable[[str], None]) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUED_LINES)
        self._say_left_out = say_left_out
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="outlast-printer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        # The replicas' logs have every line; a terminal that is this far behind does without some, until half
        # of what waits has been printed, so that one note stands for many lines.
        if self._left_out and self._queue.qsize() > QUEUED_LINES // 2:
            self._left_out += 1
            return
        try:
            self._note_left_out()
            self._queue.put_nowait(job)
        except queue.Full:
            self._left_out += 1

    def close(self, within_s: float = 2.0) -> bool:
        """Do what is left to do; False if it was not done in time."""
        deadline = time.monotonic() + within_s
        try:
            self._note_left_out(within_s)
            self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _note_left_out(self, within_s: float = 0.0) -> None:
        if self._left_out:
            note = f"… {self._left_out} lines are left out here; the logs have them"
            self._queue.put(lambda: self._say_left_out(note), block=within_s > 0, timeout=within_s or None)
            self._left_out = 0

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except OSError:
                # Nobody reads our output any more; the job is not over for that.
                continue
