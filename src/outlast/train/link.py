"""A replica's line to the coordinator: a thread that keeps it, whatever happens at the other end.

The training thread does not wait for the coordinator. The thread behind the link registers, has views decided
on the moment they arrive, repeats what has not been heard, and dials again when the coordinator is gone, for
as long as it takes. A coordinator that is dead for minutes is not noticed.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from outlast import locks
from outlast.errors import OutlastError, PeerRejected
from outlast.protocol.finding import DIAL_MOST_S, Finder
from outlast.protocol.member import Adopt, FencedOff, JobOver, MemberAction, MemberCore, Tell
from outlast.protocol.messages import Message
from outlast.protocol.timing import Timing
from outlast.protocol.views import Outcome, View
from outlast.wire.blocking import BlockingStream
from outlast.wire.control import CONTROL
from outlast.wire.handover import Handover
from outlast.wire.progress import Progress
from outlast.wire.rundir import RunDirectory

REJECTED_AGAIN_S = 2.0
SEND_WITHIN_S = 0.0
"""A few hundred bytes, which fit into a socket's buffer. It is sent under the engine's lock, so nobody waits:
what does not fit is said again on a new stream."""

log = logging.getLogger(__name__)


class Decider(Protocol):
    """Who decides what the coordinator's messages mean; a `MemberCore`, or something around one.

    Called with the link's lock held, by the link's own thread and by others."""

    def received(self, message: Message, now: float) -> list[MemberAction]: ...
    def tick(self, now: float) -> list[MemberAction]: ...
    def tell(self, now: float) -> list[MemberAction]: ...
    def rejoin(self, now: float, /) -> list[MemberAction]: ...


class Link:
    """Made in the training thread; safe to use from it while its own thread works."""

    def __init__(
        self,
        handover: Handover,
        *,
        address: str = "",
        shards: int = 0,
        on_view: Callable[[View], None] = lambda _: None,
    ) -> None:
        directory = RunDirectory(handover.run, handover.run_id)
        run = directory.read()
        self._job = run.spec.name
        self._token = directory.token()
        self._timing: Timing = run.timing()
        self._finder = Finder(run.addresses, self._timing, random.random)
        self._on_view = on_view
        self.progress = Progress.open(handover.page)
        self._core = MemberCore(
            replica=handover.replica,
            process=handover.process,
            agent=handover.agent,
            address=address,
            timing=self._timing,
            shards=shards,
        )
        self._decider: Decider = self._core
        self.changed = locks.Monitor("engine")
        """The lock of everything here, for a decider to share; notified when membership changes."""
        self._stream: BlockingStream[Message] | None = None
        self._closing = False
        self.fenced: str | None = None
        """Why this life is over, if it is."""
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._keep, name="outlast-link", daemon=True)

    @property
    def replica(self) -> int:
        return self._core.replica

    @property
    def incarnation(self) -> int:
        return self._core.incarnation

    @property
    def view(self) -> View:
        """The newest adopted view; number 0 as long as there is none."""
        return self._core.view

    @property
    def is_member(self) -> bool:
        return self._core.is_member

    @property
    def leave_requested(self) -> bool:
        return self.progress.leave_requested

    @property
    def core(self) -> MemberCore:
        return self._core

    @property
    def timing(self) -> Timing:
        return self._timing

    def decided_by(self, decider: Decider) -> None:
        """Have somebody else decide, before the link is opened."""
        self._decider = decider

    def open(self) -> None:
        self.progress.join()
        self._thread.start()

    def close(self) -> None:
        with self.changed:
            self._closing = True
            self.changed.notify_all()
            stream = self._stream
        if stream is not None:
            stream.close()
        self._thread.join(timeout=DIAL_MOST_S)

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Sleep until something about the membership makes `until` true, the life ends or the job does."""
        with self.changed:
            return self.changed.wait_for(
                lambda: until() or self.fenced is not None or self.outcome is not None, timeout_s
            )

    def ready(self) -> None:
        """This learner has caught up and can contribute."""
        self._do(lambda: self._core.set_ready(time.monotonic()))

    def leave(self) -> None:
        """Ask to be taken out of the view; wait for a view without this replica, then exit."""
        self._do(lambda: self._core.set_leaving(time.monotonic()))

    def fail(self, reason: str, step: int, shard: int) -> None:
        """This process is about to end by its own fault; say so before its slow exit."""
        self._do(lambda: self._core.set_failing(reason, step, shard, time.monotonic()))

    def rejoin(self) -> None:
        """Begin a new life after having been fenced; the old one's state must not be used any more."""
        with self.changed:
            self.fenced = None
            self.perform(self._decider.rejoin(time.monotonic()))

    def _do(self, act: Callable[[], list[MemberAction]]) -> None:
        with self.changed:
            self.perform(act())

    def _keep(self) -> None:
        while not self._closing and self.outcome is None:
            try:
                with self._dial() as stream:
                    rest_s = self._converse(stream)
            except PeerRejected as error:
                log.error("replica %d has no coordinator: %s", self.replica, error)
                rest_s = max(REJECTED_AGAIN_S, self._finder.failed())
            except (OSError, OutlastError) as error:
                log.debug("replica %d has no coordinator: %s", self.replica, error)
                rest_s = self._finder.failed()
            finally:
                self._stream = None
            self._rest(rest_s)

    def _rest(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._closing, seconds)

    def _dial(self) -> BlockingStream[Message]:
        return BlockingStream.connect(
            self._finder.where,
            job=self._job,
            token=self._token,
            role="replica",
            name=f"replica-{self.replica}",
            codec=CONTROL,
            deadline_s=self._finder.dial_within_s,
        )

    def _converse(self, stream: BlockingStream[Message]) -> float:
        """Until another one is to be asked, after so much rest."""
        self._stream = stream
        self._finder.connected(time.monotonic())
        self._do(lambda: self._decider.tell(time.monotonic()))
        while not self._closing and self.outcome is None:
            message = stream.receive(self._timing.beat_every_s)
            now = time.monotonic()
            rest_s = self._finder.heard(message, now) if message is not None else None
            if rest_s is not None:
                return rest_s
            if self._finder.is_silent(now):
                return self._finder.failed()
            self._do(lambda: self._decider.received(message, now) if message is not None else [])  # noqa: B023
            self._do(lambda: self._decider.tick(now))  # noqa: B023
        return 0.0

    def perform(self, actions: Iterable[MemberAction]) -> None:
        """Runs under the lock, in whatever thread."""
        for action in actions:
            match action:
                case Tell():
                    self._tell(action.message)
                case Adopt():
                    self._on_view(action.view)
                    self.changed.notify_all()
                case FencedOff():
                    self.fenced = action.reason
                    self.changed.notify_all()
                case JobOver():
                    self.outcome = action.outcome
                    self.changed.notify_all()
        self.progress.live(self._core.incarnation)

    def _tell(self, message: Message) -> None:
        # What cannot be sent now is said again: the core repeats itself, and a new stream begins with it.
        if self._stream is not None:
            with contextlib.suppress(OSError, OutlastError):
                self._stream.send(message, SEND_WITHIN_S)
