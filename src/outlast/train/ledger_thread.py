"""A thread of its own writes the ledger: whoever makes a step stable holds the engine's lock, and must not
wait for a disk. Who waits instead is told when the lines are written: see `Noted` in `protocol/seams.py`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

CLOSE_WITHIN_S = 10.0
LINES_MOST = 4096
"""So many steps may wait to be written; a disk that is further behind has failed."""

Lines = Callable[[], None]


class LedgerThread:
    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Lines, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed: Callable[[Exception], None] = lambda _: None
        self._error: Exception | None = None

    def fails(self, failed: Callable[[Exception], None]) -> None:
        """Whom to tell when lines could not be written. It is called from the thread, once."""
        self._failed = failed

    def put(self, write: Lines, written: Callable[[], None]) -> None:
        """`write` is called soon, in order, and `written` when that is done, both from the thread. Never
        waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="outlast-ledger", daemon=True)
            self._thread.start()
        if self._waiting.qsize() > LINES_MOST:
            raise OSError(f"{LINES_MOST} lines of the ledger wait to be written: its disk does not answer")
        self._waiting.put((write, written))

    def close(self) -> None:
        """Write what is left, in a bounded time."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join(CLOSE_WITHIN_S)

    def _write(self) -> None:
        while (one := self._waiting.get()) is not None:
            write, written = one
            if self._error is not None:
                # Lines behind one that is missing would be taken for all there is.
                continue
            try:
                write()
            except Exception as error:
                self._error = error
                self._failed(error)
            else:
                written()
