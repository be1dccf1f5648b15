"""Whether a real run kept its promises, as far as its own events can tell.

The simulator checks every promise at every event, since it sees all replicas at one time (`sim/checkers.py`,
`sim/history.py`). Processes have no common clock, and may be killed before they have written what they did.
So here are those promises that need neither: each compares what one process did with what it did before, or
what several processes say of the same view or step, which must be the same whenever it was. What a killed
process took along is missing and proves nothing, so nobody is accused because something was not written.

Promises about membership are in `view_promises.py`, those about steps in `step_promises.py`; the first line
of each function is the promise, and `docs/events.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from outlast.observe.account import Account
from outlast.observe.reading import EventLog
from outlast.observe.step_promises import STEP_PROMISES
from outlast.observe.view_promises import VIEW_PROMISES
from outlast.observe.written import Written

PROMISES = (*VIEW_PROMISES, *STEP_PROMISES)
MOST = 20
"""So many sentences; more of them say nothing new."""


def check(*run_directories: Path) -> list[str]:
    """What the run in this directory has broken, or in those of its machines; empty if it kept all promises,
    or wrote no events."""
    lines: list[Written] = []
    for directory in run_directories:
        with EventLog(directory) as log:
            lines += [entry.written for entry in log.read_all()]
    return broken(lines)


def broken(lines: Iterable[Written]) -> list[str]:
    """The same of lines that are in order within each process, whatever their order otherwise."""
    account = Account.of(lines)
    return [words for promise in PROMISES for words in promise(account)][:MOST]
