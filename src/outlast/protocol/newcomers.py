"""Since when somebody keeps others waiting who has just been made a member.

Nobody waits for one that learns. It may have been quiet for long, since those who feed it were: that says
nothing about it. From the moment on that a view which makes it a member is in force somewhere, others wait
for it; it still lacks what was done before that, and is given it. So until its own page shows that it takes
part, its quiet time counts from that moment, as far as this leader has seen it.
"""

import msgspec

from outlast.protocol.messages import Pulse
from outlast.protocol.views import Membership, View


class Newcomers:
    """What one leader has seen of it."""

    def __init__(self) -> None:
        self._awaited_since: dict[tuple[int, int], float] = {}
        """Lives that have been members since then, and have had no part in a step yet."""

    def working(self, membership: Membership, pulses: list[Pulse], now: float) -> list[Pulse]:
        """Those of the members' pulses that are of somebody whom others may wait for."""
        in_force = _in_force(membership.view, pulses)
        before, self._awaited_since = self._awaited_since, {}
        working = []
        for pulse in pulses:
            since = membership.seats[pulse.replica].member_since
            if since > in_force:
                continue
            if pulse.view < since:
                life = (pulse.replica, pulse.incarnation)
                awaited = self._awaited_since[life] = before.get(life, now)
                pulse = msgspec.structs.replace(pulse, quiet_s=min(pulse.quiet_s, now - awaited))
            working.append(pulse)
        return working


def _in_force(view: View, pulses: list[Pulse]) -> int:
    """The newest view that somebody works in; those up to the last interruption are nobody's choice."""
    return max([view.planned_since, *(pulse.view for pulse in pulses)])
