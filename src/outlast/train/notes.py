"""What is said to people in the middle of training, told by a thread of its own.

A log handler may write to a pipe that nobody empties; whoever says something holds the engine's lock, and
must not wait for that. So it is said here, and told a moment later, in order.
"""

from __future__ import annotations

import logging
import queue
import threading

CLOSE_WITHIN_S = 2.0


class Notes:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: queue.SimpleQueue[tuple[int, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def say(self, level: int, text: str) -> None:
        """Never waits."""
        if not self._log.isEnabledFor(level):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell, name="outlast-notes", daemon=True)
            self._thread.start()
        self._said.put((level, text))

    def close(self) -> None:
        """Tell what is left, in a bounded time."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._said.put(None)
            thread.join(CLOSE_WITHIN_S)

    def _tell(self) -> None:
        while (said := self._said.get()) is not None:
            self._log.log(said[0], "%s", said[1])
