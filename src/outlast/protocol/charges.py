"""Which charges the coordinator follows.

Members find out together that one of them is at fault: what proves it is in the records, which all of them
hold. So all of them say it, and a *charge* counts when more than half of the view do, the accused included.
One that says it alone is taken for the one that is wrong. Who still catches up has seen nothing, and is not
asked: members may work in an earlier view, without it. (One that says something has seen it, and has
gone back so far that it has no state now.)

A charge may also say that the program is at fault, and that the job has to *end* (`repeating.py`). It takes
as many to say so, each in words of its own.

A charge belongs to the view in which it was found. It is answered by the next view that interrupts its
members, whatever that came from, and says nothing after it.
"""

from collections import Counter
from collections.abc import Mapping

from outlast.protocol.messages import Report
from outlast.protocol.views import Charge, View


def heeded(view: View, reports: Mapping[int, Report]) -> list[Charge]:
    """The charges that count, one for each life that is accused, in the order of replicas."""
    counts: Counter[tuple[tuple[int, int], bool]] = Counter()
    told: dict[tuple[tuple[int, int], bool], Charge] = {}
    voices = 0
    for member in view.members:
        report = reports.get(member.replica)
        known = report is not None and report.incarnation == member.incarnation
        if report is None or not known:
            voices += 1
            continue
        charges = [charge for charge in report.charges if view.planned_since <= charge.view <= view.number]
        voices += bool(charges) or not report.catching_up
        for charge in charges:
            first = told.setdefault((charge.life, charge.ends), charge)
            if charge == first or charge.replica >= 0 or charge.ends:
                counts[charge.life, charge.ends] += 1
    return [told[about] for about in sorted(told) if 2 * counts[about] > voices]
