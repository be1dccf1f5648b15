"""What all processes of a run have written, sorted for those who check it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from outlast.observe.written import Written
from outlast.protocol import events
from outlast.protocol.events import Life


def replica_of(who: str) -> int | None:
    """Its number, if this is the name of a replica: "replica-2"."""
    kind, _, number = who.partition("-")
    return int(number) if kind == "replica" and number.isdecimal() else None


@dataclass
class Account:
    """What all processes of one run have written, each in its own order."""

    processes: dict[tuple[str, int], list[Written]] = field(default_factory=dict)
    """(source, pid) → its lines."""
    lives: dict[Life, list[Written]] = field(default_factory=dict)
    """What each life of a replica has said itself."""
    views: dict[int, events.View] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[Written]) -> Account:
        account = cls()
        for line in lines:
            account.processes.setdefault((line.source, line.pid), []).append(line)
            replica = replica_of(line.source)
            if replica is not None and line.incarnation:
                account.lives.setdefault(Life(replica, line.incarnation), []).append(line)
            if isinstance(line.event, events.View):
                account.views.setdefault(line.event.number, line.event)
        return account

    def replicas(self) -> Iterator[tuple[int, list[Written]]]:
        """The processes of replicas: which one, and its lines."""
        for (source, _), lines in self.processes.items():
            replica = replica_of(source)
            if replica is not None:
                yield replica, lines

    def holds(self, number: int, life: Life) -> bool:
        """Whether this life is in that view; one that is not known may hold anybody."""
        view = self.views.get(number)
        return view is None or life in view.members or life in view.learners

    def pids(self, source: str) -> int:
        """How many processes have written under this name."""
        return sum(one == source for one, _ in self.processes)
