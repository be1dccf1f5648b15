"""Going back, and of which branch a life's state is.

Parts also say what members know of their state being right (`verifying.py`). If it is not, the parts are all
there is of the attempt: whoever has them goes back to the newest verified state in the same moment, and waits
in `VOID` for a view that interrupts (those who differ are charged; see `charges.py`). The newest place where
the run went back is its *fork*, named by the view whose attempt was void. Members say it in their `Holding`,
and those whose fork is older go back then: to their own copy of the state, or if they have none they are
blank, and are given it. Every record has its fork in it, so whoever is given records of two branches, or has
a state of the wrong one, is lost, and knows it. All who know of a fork may die before they have said so,
while others still wait for parts of that attempt: so the view that answers the charge has it, too
(`Retreat`).

A state that somebody was given may be void in another way: it comes from a member that began a lineage and is
gone, and since then it was on another one to begin. So a life remembers in which view it was given its state.
"""

from __future__ import annotations

from outlast.protocol.step_words import BLANK, NO_FORK, Fork
from outlast.protocol.views import View


class Descent:
    """What one life's state comes from."""

    def __init__(self) -> None:
        self.fork = NO_FORK
        """The newest place where this life, or those who gave it its state, went back."""
        self.given_in = 0
        """The view in which the state was given that this life began with."""
        self.given_step = BLANK
        """And after which step it was. A state is given as it is, and not as it was when it was compared: so
        one that was given after the step that members then went back to may be wrong as well."""

    def is_older_than_beginning(self, view: View) -> bool:
        """Whether the state was given before the one with which that view's members have begun."""
        return self.given_in < view.void_before

    def adopt(self, view: View) -> None:
        """Whoever was given its state since members went back was given one of their branch."""
        back = view.retreat
        if self.given_in >= back.since and back.view > self.fork.view:
            self.fork = Fork(back.view, back.step)

    def has_left(self, step: int, view: int | None) -> bool:
        """Whether a state after this step that was pinned in that view is of a branch that was left."""
        return view is not None and view <= self.fork.view and step >= self.fork.step

    def follow(self, step: int, fork: Fork) -> bool:
        """Go on with the record of this step, which was made behind that fork. Whether it follows upon what
        this life holds."""
        if fork.view < self.fork.view:
            return step <= self.fork.step
        if fork.view > self.fork.view:
            if max(step - 1, self.given_step + 1) > fork.step and self.given_in <= fork.view:
                return False
            self.fork = fork
        return True
