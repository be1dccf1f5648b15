"""Dialling those that this process wants and has to dial, again and again while it does.

That nobody listens is how every start and every death look from here, so it is nothing to report; the next
attempt follows after a pause that grows from a hundredth to a fifth of a second. A connection that is lost as
soon as it was made counts as one more failure, lest two processes that can not agree keep each other busy.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from outlast.errors import PeerRejected
from outlast.mesh.greeting import Credentials, Greeting
from outlast.mesh.poller import READABLE, WRITABLE, Poller
from outlast.mesh.sockets import Sockets
from outlast.protocol.views import Member

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2
# A connection that lasted this long was a good one, and what ended it is a new matter.
_LASTING_S = 1.0


class Dial:
    """One life that is ours to dial: connected, being greeted, or due for the next attempt."""

    def __init__(
        self,
        member: Member,
        *,
        sockets: Sockets,
        poller: Poller,
        rejected: Counter[str],
        admit: Callable[[Greeting, Member], None],
    ) -> None:
        self.member = member
        self._sockets = sockets
        self._poller = poller
        self._rejected = rejected
        self._admit = admit
        self._greeting: Greeting | None = None
        self._due: float | None = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._complained = False

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do; None while connected."""
        return self._due if self._greeting is None else self._greeting.until

    def tick(self, credentials: Credentials, now: float) -> None:
        if self._greeting is not None:
            if self._greeting.until <= now:
                self._missed(TimeoutError("no answer in time"))
        elif self._due is not None and self._due <= now:
            self._dial(credentials)

    def lost(self, lasted_s: float) -> None:
        """The connection that had been handed over is over."""
        if lasted_s >= _LASTING_S:
            self._pause_s = _FIRST_PAUSE_S
        self._pause()

    def abandon(self) -> None:
        """Break off an attempt; the next one is due at once."""
        self._hang_up()
        self._due = time.monotonic()

    def _dial(self, credentials: Credentials) -> None:
        try:
            sock = self._sockets.dial(self.member.address)
        except Exception as error:
            self._missed(error)
            return
        greeting = Greeting(sock, credentials, dialled=self.member)
        self._greeting = greeting
        self._poller.watch(sock, READABLE | WRITABLE, partial(self._heard, greeting))

    def _heard(self, greeting: Greeting, events: int) -> None:
        try:
            peer = greeting.advance()
        except Exception as error:
            self._missed(error)
            return
        if peer is not None:
            self._poller.forget(greeting.sock)
            self._greeting = self._due = None
            self._admit(greeting, peer)
        elif greeting.begun and events & WRITABLE:
            # From here on only what the peer says is of interest; room to speak there always is.
            self._poller.change(greeting.sock, READABLE)

    def _missed(self, error: Exception) -> None:
        level = logging.DEBUG
        if not isinstance(error, OSError):
            if self._greeting is not None and isinstance(error, PeerRejected):
                self._rejected[self._greeting.reason] += 1
            level = logging.DEBUG if self._complained else logging.WARNING
            self._complained = True
        where = f"replica {self.member.replica} at {self.member.address!r}"
        log.log(level, "%s could not be reached: %s", where, error)
        self._hang_up()
        self._pause()

    def _pause(self) -> None:
        self._due = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _hang_up(self) -> None:
        if self._greeting is not None:
            self._poller.forget(self._greeting.sock)
            self._greeting.sock.close()
            self._greeting = None
