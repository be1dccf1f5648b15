"""Which records a life keeps for others, and what it has told of them.

A member keeps its newest records for members that lack one, and some more for learners. Of each step it says
once, in order, that it is *stable*, and feeds it to the learners there are.
"""

from __future__ import annotations

from outlast.protocol.step_words import BLANK, Feed, Gone, Stable, StepAction, Whole

KEPT = 2
KEPT_FOR_LEARNERS = 4
"""Records that a member keeps: who falls further behind gets the whole state again."""


class Keeping:
    def __init__(self) -> None:
        self.oldest = BLANK
        """The oldest record that is kept."""
        self.told = BLANK
        """The newest step that is known to be stable here."""
        self.fed = BLANK
        """The newest step that members of this view need not feed to learners any more."""
        self.held_back = 0
        """How many of those that were fed leave later, and are kept until then."""

    def start_after(self, step: int) -> None:
        """The state after this step is there, though not its record."""
        self.told = self.fed = step
        self.oldest = step + 1

    def keep(self, step: int, *, learners: bool) -> None:
        """The record of this step is there."""
        kept = KEPT_FOR_LEARNERS + self.held_back if learners else KEPT
        self.oldest = max(self.oldest, step - kept + 1)

    def stable(self, last: int, *, learners: bool) -> list[StepAction]:
        """All members hold the records up to this one. Steps whose records were fetched are told here too:
        when they were, somebody else may still have lacked them."""
        actions: list[StepAction] = [Stable(step) for step in range(self.told + 1, last + 1)]
        self.told = max(self.told, last)
        if learners:
            first = max(self.fed + 1, self.oldest)
            actions += [Feed(step) for step in range(first, last + 1)]
        self.fed = max(self.fed, last)
        return actions

    def answer(self, first: int, newest: int) -> list[Whole | Gone]:
        """To one who wants the records from this one on."""
        if first < self.oldest or first > newest:
            return [Gone(first)]
        return [Whole(step) for step in range(first, newest + 1)]
