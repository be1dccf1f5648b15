"""When a process of ours that somebody has stopped (SIGSTOP) is given up.

A stopped process is neither dead nor busy. Nobody waits for it to fail, since nothing fails; all that depends
on it stands still for ever. So whoever started it looks now and then, and after a while takes it for dead:
the launcher its agents and coordinators, an agent its forkserver.

Only what was seen counts. Between two looks that lie far apart, whoever looks was itself stopped (or the
machine was, with everybody on it), and those who are woken are not woken all at once: so patience begins
anew. A process that is merely kept waiting for a CPU is not stopped, however long it waits.
"""

ASLEEP_S = 2.0
"""Looks are a second or less apart; after a gap of this much, we were not looking."""


class StoppedWatch:
    """Looks at one process, and loses patience once."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None
        self._looked_at: float | None = None

    def look(self, stopped: bool, now: float) -> bool:
        """Note what was seen; True when it has been stopped for so long that it is not waited for."""
        asleep = self._looked_at is not None and now - self._looked_at >= ASLEEP_S
        self._looked_at = now
        if not stopped:
            self._since = None
        elif self._since is None or asleep:
            self._since = now
        return self._since is not None and now - self._since >= self._patience_s
