"""Others wait for what this replica reads from storage, which may take minutes: say that it is at it."""

from __future__ import annotations

import threading

from outlast.train.conduct import Conduct

TELL_EVERY_S = 0.3


class Patience:
    """While it is entered, a thread asks the other members for patience."""

    def __init__(self, conduct: Conduct, changed: threading.Condition) -> None:
        self._conduct = conduct
        self._changed = changed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="outlast-patience", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        while not self._over.wait(TELL_EVERY_S):
            with self._changed:
                self._conduct.be_patient()
