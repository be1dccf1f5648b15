"""Saves that the script asks for by name: `job.save("best")`, called by all replicas alike in a step's body.

That the state after step k is wanted follows from the script, which runs alike everywhere, so nobody has to
agree on it. But when the script says so, the record of k is made and training goes on; and the state must not
be lost with whoever dies next. So every member *keeps* a copy of the whole state until it is committed, says
in its parts which states it keeps, and a later record says who writes one of them now:

    body of k: save("best") ──▶ keep a copy ──▶ parts: I keep k ──▶ record: these write k ──▶ … ──▶ committed

From the record on it is a save like others (`saving.py`). If it is given up, the next record chooses again
among those who still keep the state.

Where members compare their states, a state is chosen when one that is no older was verified: from there on
members never go back behind it. And a part that says that a state is kept is against saving any other: what
is committed later may say, in its own words, that the state with the name is there.

Of several calls with one name the newest counts. An older one is kept until a newer one is safe, so that
whatever members go back behind, one is there; what lies between the two is dropped. That is also why calls in
quick succession, each before the last one was saved, do not starve each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlast.protocol.step_words import Check


@dataclass(frozen=True)
class Kept:
    """The state after this step, of which these replicas have copies."""

    step: int
    by: tuple[int, ...]


def choose(keeps: Mapping[int, Iterable[int]], checks: Iterable[Check | None]) -> Kept | None:
    """Which state is to be written now, and by whom: the oldest of those that are safe. `keeps` are those of
    all members, and `checks` what they say of being compared."""
    if not keeps:
        return None
    said = [check for check in checks if check is not None]
    safe = max(check.verified for check in said) if len(said) > 1 else None
    steps = {step for kept in keeps.values() for step in kept if safe is None or step <= safe}
    if not steps:
        return None
    step = min(steps)
    return Kept(step, tuple(sorted(replica for replica, kept in keeps.items() if step in kept)))


class NamedStates:
    """What one life keeps: the steps whose states are wanted, and under which names."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(self._names))

    def names(self, step: int) -> tuple[str, ...]:
        return tuple(sorted(self._names.get(step, ())))

    def ask(self, name: str, step: int) -> None:
        """The state after this step, the present one, is wanted under that name."""
        older = [other for other in self.steps if name in self._names[other] and other != step]
        for other in older[1:]:
            self._names[other].discard(name)
        self._names.setdefault(step, set()).add(name)
        self._tidy()

    def safe(self, last: int) -> None:
        """Nobody goes back behind this step any more."""
        newest: dict[str, int] = {}
        for step in self.steps:
            newest |= dict.fromkeys(self._names[step] if step <= last else (), step)
        for step, names in self._names.items():
            self._names[step] = {name for name in names if newest.get(name, step) <= step}
        self._tidy()

    def saved(self, step: int, names: Iterable[str]) -> None:
        """It is committed, and these names point to it, or to something newer."""
        for older in self.steps:
            if older <= step:
                self._names[older] -= set(names)
        self._tidy()

    def forget(self, step: int) -> None:
        """The state after this step cannot be had here."""
        self._names.pop(step, None)

    def go_back(self, last: int) -> None:
        """What was done after this step is void."""
        self._names = {step: names for step, names in self._names.items() if step <= last}

    def _tidy(self) -> None:
        self._names = {step: names for step, names in self._names.items() if names}
