"""How connections come about: whom to let in, whom to let wait, and whom to dial.

Anybody on the machine can connect, so until a greeting is over the other side is a stranger, with two seconds
and one of a few places. When the places are taken the oldest stranger goes: an honest greeting takes a
millisecond and is over before its turn comes.

A proven life that nobody here has asked for yet is not turned away but *parked*, for a few seconds: peers do
not hear of a new view at the same moment, and the one who hears first dials. What it sends meanwhile stays in
the kernel, unread.

Nobody is answered before this process knows which life it is; early callers wait in the listening socket's
queue. The door belongs to who is at the helm. It hands over a connection by calling `admit`, and never looks
at it again, until it is told that it is gone.
"""

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from outlast.errors import OutlastError
from outlast.mesh.dialling import Dial
from outlast.mesh.greeting import Credentials, Greeting
from outlast.mesh.poller import HUNG_UP, READABLE, Poller
from outlast.mesh.sockets import Sockets
from outlast.protocol.views import Member

log = logging.getLogger(__name__)

STRANGERS = 64
PARKED = 64
PARKED_S = 5.0
_ACCEPT_RETRY_S = 0.1

Life = tuple[int, int]
"""Replica and incarnation."""

Admit = Callable[[socket.socket, Member, int], None]
"""Takes over a connection, its peer, and the own life in which it was made."""


def life_of(member: Member) -> Life:
    return member.replica, member.incarnation


class Door:
    """Closed until `live` has said which life this is."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        sockets: Sockets,
        poller: Poller,
        admit: Admit,
    ) -> None:
        self.rejected: Counter[str] = Counter()
        """Refused greetings by reason; not logged one by one, or a stranger could fill the disk."""
        self._listener = listener
        self._sockets = sockets
        self._poller = poller
        self._admit = admit
        self._credentials: Credentials | None = None
        self._wanted: dict[Life, Member] = {}
        self._dials: dict[Life, Dial] = {}
        # Both remember the order of arrival.
        self._strangers: dict[socket.socket, Greeting] = {}
        self._parked: dict[Life, tuple[socket.socket, float]] = {}
        self._accept_again: float | None = None

    @property
    def strangers(self) -> int:
        return len(self._strangers)

    @property
    def parked(self) -> int:
        return len(self._parked)

    def live(self, credentials: Credentials) -> None:
        """Begin a new life; nothing that the former one began counts."""
        if self._credentials is None:
            self._poller.watch(self._listener, READABLE, self._accept)
        self._credentials = credentials
        for greeting in list(self._strangers.values()):
            self._dismiss(greeting, "life")
        for life in list(self._parked):
            self._unpark(life).close()
        for dial in self._dials.values():
            dial.abandon()

    def want(self, members: Iterable[Member]) -> None:
        """From now on these are the lives to be connected with."""
        self._wanted = {life_of(member): member for member in members}
        for life in self._dials.keys() - self._wanted.keys():
            self._dials.pop(life).abandon()
        for life, member in self._wanted.items():
            if life in self._parked:
                assert self._credentials is not None
                self._admit(self._unpark(life), member, self._credentials.incarnation)

    def dial(self, member: Member) -> None:
        """This one is to be dialled by us. Any number of times."""
        known = self._dials.get(life_of(member))
        if known is not None and known.member == member:
            return
        if known is not None:
            known.abandon()
        self._dials[life_of(member)] = Dial(
            member, sockets=self._sockets, poller=self._poller, rejected=self.rejected, admit=self._dialled
        )

    def gone(self, life: Life, lasted_s: float) -> None:
        """A connection that had been handed over is lost."""
        if life in self._dials:
            self._dials[life].lost(lasted_s)

    def wait_s(self) -> float | None:
        """How long until something is due; None if only the sockets can tell."""
        due = min(self._deadlines(), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._credentials is not None:
            for dial in list(self._dials.values()):
                dial.tick(self._credentials, now)
        for greeting in [greeting for greeting in self._strangers.values() if greeting.until <= now]:
            self._dismiss(greeting, "deadline")
        for life in [life for life, (_, until) in self._parked.items() if until <= now]:
            self.rejected["unwanted"] += 1
            self._unpark(life).close()
        if self._accept_again is not None and self._accept_again <= now:
            self._accept_again = None
            self._poller.watch(self._listener, READABLE, self._accept)

    def close(self) -> None:
        """End what has not been handed over, and accept nobody; the listening socket stays with its owner."""
        self._poller.forget(self._listener)
        self._accept_again = None
        for greeting in list(self._strangers.values()):
            self._dismiss(greeting, "closing")
        for life in list(self._parked):
            self._unpark(life).close()
        for dial in self._dials.values():
            dial.abandon()
        self._dials.clear()

    def _deadlines(self) -> Iterator[float]:
        if self._credentials is not None:
            yield from (dial.deadline for dial in self._dials.values() if dial.deadline is not None)
        yield from (greeting.until for greeting in self._strangers.values())
        yield from (until for _, until in self._parked.values())
        if self._accept_again is not None:
            yield self._accept_again

    def _dialled(self, greeting: Greeting, peer: Member) -> None:
        self._admit(greeting.sock, peer, greeting.incarnation)

    def _accept(self, _events: int) -> None:
        """One connection per turn, so that a flood of them does not starve the peers."""
        assert self._credentials is not None
        try:
            sock = self._sockets.accept(self._listener)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors, most likely. The connection stays in the queue and would be reported again
            # at once, so look away for a moment.
            self.rejected["accept"] += 1
            if self.rejected["accept"] == 1:
                log.warning("the mesh can not accept connections: %s", error)
            self._poller.forget(self._listener)
            self._accept_again = time.monotonic() + _ACCEPT_RETRY_S
            return
        if len(self._strangers) >= STRANGERS:
            self._dismiss(next(iter(self._strangers.values())), "crowded")
        greeting = Greeting(sock, self._credentials, dialled=None)
        self._strangers[sock] = greeting
        self._poller.watch(sock, READABLE, partial(self._heard, greeting))
        self._heard(greeting, 0)

    def _heard(self, greeting: Greeting, _events: int) -> None:
        try:
            peer = greeting.advance()
        except (OSError, OutlastError):
            self._dismiss(greeting, greeting.reason)
            return
        except Exception:
            log.exception("a greeting failed in an unforeseen way")
            self._dismiss(greeting, "malformed")
            return
        if peer is None:
            return
        self._forget(greeting)
        wanted = self._wanted.get(life_of(peer))
        if wanted is not None:
            self._admit(greeting.sock, wanted, greeting.incarnation)
        else:
            self._park(greeting.sock, life_of(peer))

    def _park(self, sock: socket.socket, life: Life) -> None:
        if life in self._parked:
            self._unpark(life).close()
        elif len(self._parked) >= PARKED:
            self.rejected["crowded"] += 1
            self._unpark(next(iter(self._parked))).close()
        self._parked[life] = sock, time.monotonic() + PARKED_S
        self._poller.watch(sock, HUNG_UP, lambda _events: self._unpark(life).close())

    def _unpark(self, life: Life) -> socket.socket:
        sock, _ = self._parked.pop(life)
        self._poller.forget(sock)
        return sock

    def _dismiss(self, greeting: Greeting, reason: str) -> None:
        self.rejected[reason] += 1
        self._forget(greeting)
        greeting.sock.close()

    def _forget(self, greeting: Greeting) -> None:
        del self._strangers[greeting.sock]
        self._poller.forget(greeting.sock)
