"""What is left to save when all have left the loop of steps: what is wanted by name, and the last state.

There are no more records that could say who writes what. So members say in their last words what they keep,
all make the same list of it, and go through it one after the other. Each entry has its number, by which
members tell apart what they say of it: the number of a step that will never be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from outlast.protocol.naming import Kept

NO_STEP = -1


class Finals:
    """Used under the engine's lock."""

    def __init__(self) -> None:
        self.last = NO_STEP
        """The last step of the run, once all have done it."""
        self.tries = 0
        """How often it was tried to save what comes next."""
        self._left: list[tuple[int, Kept]] = []
        self.number_of_last = NO_STEP

    def begin(self, last: int, keeps: Mapping[int, Iterable[int]]) -> None:
        """`keeps`: what each member keeps."""
        self.last = last
        held = {replica: set(steps) for replica, steps in keeps.items()}
        for step in sorted(set[int]().union(*held.values())):
            by = tuple(sorted(replica for replica, steps in held.items() if step in steps))
            self._left.append((last + 1 + len(self._left), Kept(step, by)))
        self.number_of_last = last + 1 + len(self._left) if self._left else last

    def next(self, kept: Collection[int]) -> tuple[int, Kept] | None:
        """What is wanted by name and still `kept` here, and its number; None if only the last state is left.
        What this replica does not keep is for others to save."""
        while self._left and self._left[0][1].step not in kept:
            self.ended()
        return self._left[0] if self._left else None

    def ended(self) -> None:
        """That is saved, or given up for good."""
        self._left.pop(0)
        self.tries = 0
