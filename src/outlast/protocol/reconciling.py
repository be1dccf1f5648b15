"""What members of a view hold that was adopted out of step, and from where all of them go on.

Each says which record is its newest (`Holding`), and nobody goes on before all have spoken. What follows is
then a pure function of what they said, so all come to the same `Ground`: who has the newest record and
teaches the others, who is blank and is given the state, what learners are fed. They go by what each said
*first*: by the time that others hear of it, it may hold more.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from outlast.protocol.step_words import BLANK, FeedAgain, Fork, Holding, Pin, StepAction
from outlast.protocol.views import Member, View


@dataclass(frozen=True)
class Ground:
    """From where the members of a view go on."""

    view: View
    fork: Fork
    """The newest place where any of them went back, or was told to: all do."""
    newest: Mapping[int, int]
    """What each of them has then."""
    in_band: bool
    """Whether some of them came in band, and train already."""

    @property
    def top(self) -> int:
        return max(self.newest.values())

    @property
    def founder(self) -> int:
        """On whom it is to begin, if nobody has anything."""
        return min(self.newest)

    @property
    def teachers(self) -> list[int]:
        """Who has the newest record: whom to ask for records, in this order."""
        top = self.top
        return sorted(replica for replica, step in self.newest.items() if step == top)

    @property
    def fed(self) -> int:
        """The newest step that need not be fed to learners any more, once they are given `gifts`."""
        # Who came in band has fed and pinned already, as at the end of any step. Else only what every member
        # holds may be told to others, and who was promoted may still lack a few.
        return self.top - 1 if self.in_band else min(self.newest.values())

    def founded(self, step: int) -> Ground:
        """The founder has the state after this step now, and nobody else has anything yet."""
        return replace(self, newest={**self.newest, self.founder: step})

    def gifts(self, oldest: int, loaded: Set[Member]) -> list[StepAction]:
        """Who gets the state after the newest step: blank members, and learners that do not have it yet.
        `oldest` is the first record that is kept here, and who has `loaded` needs no state."""
        teacher = self.teachers[0]
        pins: list[StepAction] = [
            Pin(member, self.top, (teacher,))
            for member in self.view.members
            if self.newest[member.replica] == BLANK
        ]
        if self.in_band:
            return pins
        servers = tuple(replica for replica, step in sorted(self.newest.items()) if step != BLANK)
        pins += [Pin(learner, self.top, servers) for learner in self.view.learners if learner not in loaded]
        if self.view.learners:
            pins.append(FeedAgain(oldest, self.fed, self.top))
        return pins


class Holdings:
    """What members have said in one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._first: dict[int, Holding] = {}
        """What each said first; all reconcile by that."""
        self._last: dict[int, int] = {}
        """The newest record of each by what it said last."""

    def take(self, replica: int, holding: Holding) -> None:
        self._first.setdefault(replica, holding)
        self._last[replica] = holding.newest

    def acknowledge(self, replica: int, newest: int) -> bool:
        """It holds all there is. Whether that is news."""
        before, self._last[replica] = self._last.get(replica), newest
        return before != newest

    def has_spoken(self, replica: int) -> bool:
        return replica in self._first

    def all_hold(self, newest: int) -> bool:
        """Whether all members have said last that this is their newest record."""
        return all(self._last.get(m.replica) == newest for m in self._view.members)

    @property
    def nobody_had_any(self) -> bool:
        """Whether all who spoke were blank then."""
        return all(holding.newest == BLANK for holding in self._first.values())

    def ground(self) -> Ground | None:
        """From where all go on; None before all have spoken."""
        members = [m.replica for m in self._view.members]
        if any(replica not in self._first for replica in members):
            return None
        back = self._view.retreat
        forks = [Fork(back.view, back.step), *(self._first[replica].fork for replica in members)]
        fork = max(forks, key=lambda fork: fork.view)
        newest = {replica: _in_fork(self._first[replica], fork) for replica in members}
        in_band = any(holding.running for holding in self._first.values())
        return Ground(self._view, fork, newest, in_band)


def _in_fork(holding: Holding, fork: Fork) -> int:
    """What the newest record is of one who said this, when it has gone the way of all."""
    if holding.fork == fork:
        return holding.newest
    return fork.step if holding.verified == fork.step else BLANK
