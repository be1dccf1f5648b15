"""What leaves a replica's driver in training: frames, words to the coordinator, wake-ups, the progress page.

Called under the engine's lock, so nothing here waits for a peer. `Sink` and `Decider` are the ways back: what
the mesh and the link bring to the driver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from outlast import crashpoints as crash
from outlast.locks import CheckedLock, Monitor
from outlast.mesh.transport import Mesh
from outlast.observe.queue import Events
from outlast.protocol.driver import Driver
from outlast.protocol.events import AnyEvent
from outlast.protocol.header import Header
from outlast.protocol.lines import Line
from outlast.protocol.member import Adopt, JobOver, MemberAction, Tell
from outlast.protocol.messages import Message, Phase
from outlast.protocol.seams import Noted, Record
from outlast.protocol.views import Member, Outcome, View
from outlast.train.link import Link
from outlast.train.notes import Notes
from outlast.wire.progress import Progress

log = logging.getLogger(__name__)


class TrainingOutlet:
    """One that is alone has neither mesh nor link nor page, and nobody to speak to."""

    def __init__(
        self,
        changed: threading.Condition,
        mesh: Mesh | None,
        link: Link | None,
        progress: Progress | None,
        events: Events | None = None,
    ) -> None:
        self._changed = changed
        self._notes = Notes(log)
        self._mesh = mesh
        self._link = link
        self._progress = progress
        self._events = events
        self.on_stable: Callable[[Record, Noted], bool] = lambda _, __: True
        """Has each record that becomes stable written down. True if it is, or need not be."""

    def reach(self, own: int, peers: Sequence[Member]) -> None:
        crash.life = own
        if self._events is not None:
            self._events.incarnation = own
        if self._mesh is not None:
            self._mesh.live(own)
            self._mesh.peers(peers)

    def send(
        self,
        line: Line,
        header: Header,
        payload: memoryview | bytes,
        keep: object = None,
        *,
        more: bool = False,
        droppable: bool = False,
    ) -> bool:
        assert self._mesh is not None, "who is alone has nobody to write to"
        return self._mesh.send(line, header, payload, keep=keep, more=more, droppable=droppable)

    def drop(self, line: Line, why: str) -> None:
        if self._mesh is not None:
            self._mesh.drop(line.peer.replica, why, line)

    def tell(self, message: Message) -> None:
        if self._link is not None:
            self._link.perform([Tell(message)])

    def adopted(self, view: View) -> None:
        if self._link is not None:
            self._link.perform([Adopt(view)])

    def over(self, outcome: Outcome) -> None:
        if self._link is not None:
            self._link.perform([JobOver(outcome)])

    def wake(self) -> None:
        """It waits for us, or for the mesh."""
        self._changed.notify_all()
        if self._mesh is not None:
            self._mesh.call_guest()

    def enter(self, phase: Phase) -> None:
        if self._progress is not None:
            self._progress.enter(phase)

    def take_part(self, view: int) -> None:
        if self._progress is not None:
            self._progress.adopt(view)

    def stands_at(self, step: int) -> None:
        if self._progress is not None:
            self._progress.advance(step)

    def completed(self, record: Record, *, made: bool) -> None:
        if self._progress is not None:
            self._progress.advance(record.step)
            self._progress.tell_loss(record.note.mean_loss)
            if made:
                self._progress.contribute(record.step)

    def stable(self, record: Record, noted: Noted) -> bool:
        return self.on_stable(record, noted)

    def saved(self, step: int, *, just_now: bool) -> None:
        if self._progress is not None:
            self._progress.saved(step, time.monotonic_ns() if just_now else 0)

    def emit(self, event: AnyEvent) -> None:
        if self._events is not None:
            self._events.emit(event)

    def note(self, level: int, text: str) -> None:
        self._notes.say(level, text)

    def close(self) -> None:
        """What has been said is told."""
        self._notes.close()
        if self._events is not None:
            self._events.close()

    def passes(self, point: str, step: int) -> None:
        crash.reach(point, step)


class Sink:
    """What the mesh calls. It has an address before there is a driver; nothing is received before that."""

    def __init__(self) -> None:
        self._driver: Driver
        self._lock: threading.Lock | CheckedLock

    def hands_to(self, driver: Driver, changed: Monitor) -> None:
        self._driver, self._lock = driver, changed.lock

    def destination(self, line: Line, header: Header) -> memoryview | None:
        with self._lock:
            return self._driver.room(line, header)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        with self._lock:
            self._driver.arrived(line, header, payload, time.monotonic())

    def connected(self, line: Line) -> None:
        with self._lock:
            self._driver.connected(line, time.monotonic())

    def lost(self, line: Line, why: str) -> None:
        with self._lock:
            self._driver.lost(line, why, time.monotonic())


class Decider:
    """What the link calls, with the lock held. What follows is done by the driver, the link's own part
    included."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def received(self, message: Message, now: float) -> list[MemberAction]:
        self._driver.received(message, now)
        return []

    def tick(self, now: float) -> list[MemberAction]:
        self._driver.tick(now)
        return []

    def tell(self, now: float) -> list[MemberAction]:
        self._driver.tell(now)
        return []

    def rejoin(self, _: float) -> list[MemberAction]:
        raise AssertionError("the driver begins new lives by itself")
