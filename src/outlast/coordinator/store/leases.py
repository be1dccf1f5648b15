"""Who has promised to show up again, and by when. Pure bookkeeping: the time comes in as an argument.

Leases live in memory only. They are promises to one running store, and whoever opens the store next has the
directory's lock, which proves that the session that granted them is dead. Ids are random, so that an id from
an earlier session is never mistaken for one of this session.
"""

import os
from typing import final


@final
class Leases:
    def __init__(self) -> None:
        self._ttl_s: dict[int, float] = {}
        self._deadline: dict[int, float] = {}

    def grant(self, ttl_s: float, now: float) -> int:
        lease = 0
        while lease == 0 or lease in self._ttl_s:
            lease = int.from_bytes(os.urandom(8), "little") >> 1
        self._ttl_s[lease] = ttl_s
        self._deadline[lease] = now + ttl_s
        return lease

    def renew(self, lease: int, now: float) -> bool:
        if not self.alive(lease, now):
            return False
        self._deadline[lease] = now + self._ttl_s[lease]
        return True

    def alive(self, lease: int, now: float) -> bool:
        """False from the deadline on, even while the lease's keys still wait to be deleted."""
        return lease in self._deadline and now < self._deadline[lease]

    def due(self, now: float) -> list[int]:
        """The leases whose time is up and that have not been dropped yet."""
        return [lease for lease, deadline in self._deadline.items() if deadline <= now]

    def next_deadline(self) -> float | None:
        return min(self._deadline.values(), default=None)

    def drop(self, lease: int) -> None:
        self._ttl_s.pop(lease, None)
        self._deadline.pop(lease, None)
