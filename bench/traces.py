"""What the stand-ins have written: which replica adopted which view, when, in which process.

All times are the machine's monotonic clock in nanoseconds, the same in every process, so that a fault in this
process and its effect in another can be compared. Reading the traces costs the job nothing, unlike asking the
coordinator, so benchmarks wait on traces wherever they can.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.following import Following

LOOK_EVERY_S = 0.02
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Adoption:
    """One line of a trace: this process of this replica adopted that view."""

    replica: int
    pid: int
    at_ns: int
    view: int
    lives: dict[int, int]
    """The members and the life that each is in."""
    cause: str


class Traces:
    """Everything traced so far in a directory, read on as it grows."""

    def __init__(self, directory: Path) -> None:
        self._following = Following(directory, "trace")
        self.adoptions: list[Adoption] = []
        self.newest: dict[int, Adoption] = {}
        """The latest adoption of each replica."""

    def read(self) -> None:
        for replica, line in self._following.lines():
            self._add(parse(replica, line))

    def _add(self, adoption: Adoption) -> None:
        self.adoptions.append(adoption)
        self.newest[adoption.replica] = adoption

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            self.read()
            if condition():
                return
            if time.monotonic() > deadline:
                newest = {replica: (a.view, sorted(a.lives)) for replica, a in sorted(self.newest.items())}
                raise TimeoutError(f"{what}: not within {timeout_s} s; the newest views are {newest}")
            time.sleep(LOOK_EVERY_S)

    def all_in_one_view(self, replicas: int) -> bool:
        """Whether all replicas are members of one view, and every one of them knows it."""
        views = {adoption.view for adoption in self.newest.values()}
        everyone = set(range(replicas))
        return (
            set(self.newest) == everyone
            and len(views) == 1
            and all(set(adoption.lives) == everyone for adoption in self.newest.values())
        )

    def adopted_without(self, victim: Adoption, since_ns: int) -> dict[int, int]:
        """Survivor → when it first adopted a view without the victim's life, after that moment."""
        life = victim.lives[victim.replica]
        found: dict[int, int] = {}
        for adoption in self.adoptions:
            gone = adoption.lives.get(victim.replica) != life
            if adoption.at_ns > since_ns and gone and adoption.replica != victim.replica:
                found.setdefault(adoption.replica, adoption.at_ns)
        return found

    def views(self) -> dict[int, dict[int, int]]:
        """View number → members and their lives, in the order of the numbers."""
        ordered = sorted(self.adoptions, key=lambda adoption: adoption.view)
        return {adoption.view: adoption.lives for adoption in ordered}

    def removals(self) -> int:
        """How many members were taken out of a view by the view that followed."""
        views = list(self.views().values())
        return sum(
            after.get(replica) != life
            for before, after in pairwise(views)
            for replica, life in before.items()
        )

    def reused(self) -> int:
        """View numbers that stand for two different memberships."""
        seen: dict[int, set[str]] = {}
        for adoption in self.adoptions:
            contents = json.dumps([sorted(adoption.lives.items()), adoption.cause])
            seen.setdefault(adoption.view, set()).add(contents)
        return sum(len(contents) > 1 for contents in seen.values())

    def skipped(self) -> int:
        """View numbers between the first and the newest that nobody ever adopted."""
        numbers = self.views().keys()
        return max(numbers) - min(numbers) + 1 - len(numbers) if numbers else 0

    def backwards(self) -> int:
        """Adoptions of a view by a process that had adopted the same or a newer one before."""
        newest: dict[tuple[int, int], int] = {}
        count = 0
        for adoption in self.adoptions:
            key = adoption.replica, adoption.pid
            count += adoption.view <= newest.get(key, 0)
            newest[key] = max(adoption.view, newest.get(key, 0))
        return count

    def own_lives(self) -> dict[int, int]:
        """Replica → in how many lives it has been a member so far."""
        lives: dict[int, set[tuple[int, int]]] = {}
        for adoption in self.adoptions:
            if adoption.replica in adoption.lives:
                key = adoption.pid, adoption.lives[adoption.replica]
                lives.setdefault(adoption.replica, set()).add(key)
        return {replica: len(found) for replica, found in lives.items()}


def parse(replica: int, line: bytes) -> Adoption:
    entry = json.loads(line)
    return Adoption(
        replica=replica,
        pid=entry["pid"],
        at_ns=entry["at_ns"],
        view=entry["view"],
        lives=dict(zip(entry["members"], entry["lives"], strict=True)),
        cause=entry["cause"],
    )
