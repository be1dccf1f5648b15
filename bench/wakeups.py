"""How late an idle thread wakes up: what the machine itself adds to every latency measured beside it."""

import threading
import time
from types import TracebackType
from typing import Self

SLEEP_S = 0.01


class Wakeups:
    """While the block runs, a thread sleeps again and again, and notes by how much it overslept."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            due = time.monotonic() + SLEEP_S
            time.sleep(SLEEP_S)
            self.late_ms.append((time.monotonic() - due) * 1e3)
