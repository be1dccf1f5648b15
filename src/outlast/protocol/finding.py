"""Whom to ask: finding the coordinator that leads.

Of several coordinators one leads, and only that one can answer. Whoever wants to be heard, be it an agent, a
replica or somebody who looks on, keeps one connection to one of them. This is how it comes to be the right
one:

- One that does not lead says so, and where the leader is if it knows (`NotLeading`): go there.
- One that cannot be reached, that hangs up, or that says nothing for some time is left for the next.
- Whoever has asked all of them in vain waits before it begins again, longer each time, and not as long as
  others do: when a leader is lost, those of a whole fleet do not come to the next one in the same instant.

One that knows no leader is as good as any to wait at: it hears of the next one as soon as there is one, and
may be it. Pure: whoever drives this dials and hangs up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.protocol.messages import Message, NotLeading
from outlast.protocol.timing import Timing

DIAL_LEAST_S = 0.5
DIAL_MOST_S = 2.0
REST_LEAST_S = 0.05
REST_MOST_S = 0.5
"""Half as much again at the most: a new leader gives up after some seconds whom it has never heard."""


class Finder:
    def __init__(self, addresses: Sequence[str], timing: Timing, draw: Callable[[], float]) -> None:
        """`draw` gives a number between 0 and 1, another one for each who asks and each time."""
        self._addresses = tuple(addresses)
        self._timing = timing
        self._draw = draw
        self._next = int(draw() * len(self._addresses))
        self._sent_to = ""
        """Where one that does not lead has said that the leader is."""
        self._in_vain = 0
        """How many have been asked since somebody answered."""
        self._heard_at: float | None = None

    @property
    def where(self) -> str:
        """Whom to dial now."""
        return self._sent_to or self._addresses[self._next]

    @property
    def dial_within_s(self) -> float:
        """How long to wait for one of them to answer. Where there are others, one that cannot be reached is
        left soon: a new leader gives up after some seconds whom it has never heard."""
        if len(self._addresses) == 1:
            return DIAL_MOST_S
        return max(DIAL_LEAST_S, min(DIAL_MOST_S, self._timing.detect_within_s))

    def connected(self, now: float) -> None:
        self._heard_at = now

    def failed(self) -> float:
        """It cannot be reached, or the connection has ended. How long to rest before the next attempt."""
        if self._sent_to:
            self._sent_to = ""
        else:
            self._next = (self._next + 1) % len(self._addresses)
        return self._move()

    def heard(self, message: Message, now: float) -> float | None:
        """Something was said. None to stay; else how long to rest before whoever is at `where` is dialled."""
        self._heard_at = now
        if not isinstance(message, NotLeading):
            self._in_vain = 0
            return None
        if not message.leader or message.leader == self.where:
            return None
        self._sent_to = message.leader
        return self._move()

    def _move(self) -> float:
        self._heard_at = None
        self._in_vain += 1
        rounds, more = divmod(self._in_vain, len(self._addresses))
        if more:
            return 0.0
        rest_s = min(REST_LEAST_S * 2.0 ** min(rounds - 1, 10), REST_MOST_S)
        return rest_s * (0.5 + self._draw())

    def is_silent(self, now: float) -> bool:
        """Whether the other end has said nothing for so long that another one is to be asked."""
        return self._heard_at is not None and now - self._heard_at >= self._timing.unanswered_s
