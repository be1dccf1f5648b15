"""The way from where things happen to where they are written, which nobody who trains ever waits on.

Whoever emits appends to a bounded queue and goes on: no file, no log handler and no lock that somebody may
hold for long. A thread of its own takes what has gathered and hands it to the sinks, which may block as long
as they like. It writes the first event at once, and then what comes within the next moment in one batch, so
an eviction is on disk when people look for it, and a thousand steps a second cost five writes.

When the sinks cannot keep up, events are left out rather than waited for; the next one that is taken says how
many. After a fork, the child has neither the thread nor the right to speak for its parent: what it emits goes
nowhere, and the parent's events are written once.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from outlast.observe.written import Written
from outlast.protocol.events import AnyEvent

QUEUED_MOST = 8192
FLUSH_EVERY_S = 0.2
CLOSE_WITHIN_S = 2.0

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where events go; called by the one thread of its queue."""

    def write(self, batch: Sequence[Written]) -> None: ...

    def close(self) -> None: ...


class _Emitted(NamedTuple):
    event: AnyEvent
    incarnation: int
    time: float
    monotonic: float
    dropped: int


class Events:
    """What one process has to tell. `emit` may be called by any thread, also in a signal handler."""

    def __init__(self, source: str, sinks: Sequence[Sink], *, most: int = QUEUED_MOST) -> None:
        self.source = source
        self.incarnation = 0
        """The present life of the replica that this is, which goes with every event from here on."""
        self._sinks = list(sinks)
        self._most = most
        self._queue: queue.SimpleQueue[_Emitted | None] = queue.SimpleQueue()
        self._open = True
        self._closing = threading.Event()
        self._dropped = 0
        # Held for a moment, and only while events have to be left out; by a signal handler perhaps once more.
        self._counting = threading.RLock()
        self._thread = threading.Thread(target=self._serve, name="outlast-events", daemon=True)
        _alive.add(self)
        try:
            self._thread.start()
        except RuntimeError:
            # No more threads are to be had. Telling must never cost a run.
            self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def emit(self, event: AnyEvent, incarnation: int | None = None) -> None:
        """Never blocks, never raises. `incarnation` is for what belongs to another life than the present."""
        if not self._open:
            return
        if self._queue.qsize() >= self._most:
            with self._counting:
                self._dropped += 1
            return
        dropped = self._take_dropped() if self._dropped else 0
        life = self.incarnation if incarnation is None else incarnation
        self._queue.put(_Emitted(event, life, time.time(), time.monotonic(), dropped))

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Write what is left, as far as that is possible in this time; nothing is emitted any more."""
        if not self._open:
            return
        self._open = False
        self._queue.put(None)
        self._closing.set()
        self._thread.join(within_s)

    def _take_dropped(self) -> int:
        with self._counting:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def _serve(self) -> None:
        pid = os.getpid()
        going = True
        while going:
            taken = [self._queue.get()]
            taken += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            going = None not in taken
            self._hand_over([self._written(one, pid) for one in taken if one is not None])
            if going:
                self._closing.wait(FLUSH_EVERY_S)
        for sink in self._sinks:
            sink.close()

    def _written(self, one: _Emitted, pid: int) -> Written:
        return Written(
            time=round(one.time, 6),
            monotonic=round(one.monotonic, 6),
            source=self.source,
            pid=pid,
            incarnation=one.incarnation,
            dropped=one.dropped,
            event=one.event,
        )

    def _hand_over(self, batch: list[Written]) -> None:
        if not batch:
            return
        for sink in list(self._sinks):
            try:
                sink.write(batch)
            except Exception:
                # Telling must never cost a run. One that is broken is not asked again.
                self._sinks.remove(sink)
                log.exception("events of %s are not written to %s any more", self.source, sink)

    def _fall_silent(self) -> None:
        """In a forked child: the thread is not here, and the locks may be held by who is not here either."""
        self._open = False


_alive: weakref.WeakSet[Events] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_alive):
        one._fall_silent()


os.register_at_fork(after_in_child=_after_fork)
