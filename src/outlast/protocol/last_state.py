"""The end of the loop of steps: members compare the last state, too, before anybody leaves.

There is no next part that could name its digest, so each says it by `Ending`, which is no part and
acknowledges nothing. One that has gone on, or compares nothing, says something else: its part for the step
after. From the words of all, whichever they are, all come to the same conclusion (`verifying.judge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.protocol.step_words import BLANK, Check, Ending, Fork, Part, StepAction, Verdict
from outlast.protocol.verifying import Verifying, Void, judge


class LastState:
    """What is said about it in one view."""

    def __init__(self, replica: int) -> None:
        self._replica = replica
        self.awaited = False
        """Whether this replica has come to the end, and waits for what follows from all words."""
        self.agreed = BLANK
        """The step whose state all have been found to have, in this view."""
        self._said: dict[int, dict[int, Check]] = {}
        """By step, and by who said it."""

    def begin(self, step: int, verifying: Verifying) -> list[StepAction]:
        """The loop ends with the state after this step. It has to be digested first, unless it is known."""
        self.awaited = True
        return verifying.begin(step) if verifying.check(step, due=False).step != step else []

    def own_word(self, step: int, verifying: Verifying) -> Ending | None:
        """What to say to all, once, as soon as the digest of the last state is there."""
        if not self.awaited or not verifying.known:
            return None
        said = self._said.setdefault(step, {})
        if self._replica in said:
            return None
        said[self._replica] = verifying.check(step, due=False)
        return Ending(step, said[self._replica])

    def take(self, sender: int, ending: Ending) -> None:
        self._said.setdefault(ending.step, {})[sender] = ending.check

    def judge(
        self, step: int, parts: Mapping[int, Part], members: Iterable[int], fork: Fork
    ) -> Verdict | Void | None:
        """What all words say together; None while somebody has not spoken. `parts` are those of the step
        after."""
        endings = self._said.get(step, {})
        if not self.awaited or self._replica not in endings:
            return None
        checks: dict[int, Check | None] = {replica: part.check for replica, part in parts.items()}
        checks |= endings
        if any(replica not in checks for replica in members):
            return None
        verdict = judge(checks, fork)
        if isinstance(verdict, Void):
            return verdict
        self.awaited, self.agreed = False, step
        # Whether the next step's state is chosen is not decided here.
        return Verdict(verified=verdict.verified, digest=verdict.digest, dropped=verdict.dropped)
