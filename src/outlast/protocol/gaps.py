"""Connections that break while both of their ends live.

Members that have lost a connection and made another say so (`Report.torn`). What was on its way is lost, and
nothing that is said afterwards counts for either of them (`lines.py`), so their step stands still until a
view interrupts it. Nobody is at fault, and nobody has to go: the view is renewed, with the same members.

A renewal costs the time of one step, and needs no proof and no patience: one who is connected again lives.
But a connection that breaks again and again within some windows, and without a step in between, is no
connection. Then it counts as a complaint like that of members that cannot reach each other at all
(`complaints.py`), and one of them goes.
"""

from collections.abc import Iterable

from outlast.protocol.messages import Report
from outlast.protocol.timing import Timing
from outlast.protocol.views import View

RENEWALS_MOST = 5
"""So often a view is renewed for the same two members, with no step in between."""

Pair = frozenset[int]


class Gaps:
    """What one leader has seen of them."""

    def __init__(self, timing: Timing) -> None:
        self._forgotten_after_s = timing.standstill_s
        self._step = -1
        self._renewals: dict[Pair, dict[int, float]] = {}
        """The views that were to mend a gap between these two, since a step was last completed, and when."""

    def found(self, reports: Iterable[Report], view: View, step: int, now: float) -> str:
        """Why the view has to be renewed; empty if it does not. `step` is the newest that is complete."""
        if step > self._step:
            self._step, self._renewals = step, {}
        self._forget(now)
        members = {member.replica: member.incarnation for member in view.members}
        pairs = {
            frozenset((report.replica, other))
            for report in reports
            # What was said in an era before is answered by this one.
            if members.get(report.replica) == report.incarnation and report.view >= view.planned_since
            for other in report.torn
            if other in members and other != report.replica
        }
        due = [pair for pair in sorted(pairs, key=sorted) if not self._is_worn_out(pair, view.number + 1)]
        for pair in due:
            self._renewals.setdefault(pair, {}).setdefault(view.number + 1, now)
        if not due:
            return ""
        between = ", ".join("{} and {}".format(*sorted(pair)) for pair in due)
        return f"the connection between replicas {between} broke and was made anew: the step is done again"

    def worn_out(self, report: Report) -> list[int]:
        """Those that this member is cut off from again and again."""
        return [other for other in report.torn if self._is_worn_out(frozenset((report.replica, other)))]

    def _is_worn_out(self, pair: Pair, next_view: int = 0) -> bool:
        # A decision that is not committed yet is taken again, and counts once.
        return len(self._renewals.get(pair, {}).keys() - {next_view}) >= RENEWALS_MOST

    def _forget(self, now: float) -> None:
        since = now - self._forgotten_after_s
        for pair, views in list(self._renewals.items()):
            self._renewals[pair] = {number: at for number, at in views.items() if at >= since}
