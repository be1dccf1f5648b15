"""Attempts at a step in one view: the pieces that have come in, and what follows from them.

    all parts ──(Survey)──▶ all surveys ──Conclude──▶ all sums ──(Judge)──▶ complete, or the next trial

Where the rule of the run compares whole contributions, owners first tell each other what each has to know of
all slices (their *surveys*), and reduce when all of them are in.

Nobody is believed blindly: when all sums are in, they are *judged* by what came with them, alike on every
member, since all have the same. If something is doubted, the attempt is not completed but gets another
*trial*, with parts and sums of its own (`Trial` says what each is for), up to the final one, which counts as
it is. An attempt is then (view, step, trial), and a view voids them all: each view has its own `Attempts`.

Each of `Survey`, `Conclude` and `Judge` is asked for once in a trial. Pieces of steps to come are kept,
within a bound: others may be done with a step before the last of its pieces have come here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from outlast.protocol.step_words import (
    AllDone,
    Conclude,
    Fork,
    Judge,
    LeftAlone,
    Part,
    StepAction,
    Sum,
    Survey,
    Surveyed,
    Trial,
    Verdict,
)
from outlast.protocol.verifying import Void, judge_attempt
from outlast.protocol.views import View

PARTS_AHEAD = 64
"""Steps for which parts are kept before their time; only a member that still catches up is ahead by many."""


class Attempts:
    """Those of one life in one view."""

    def __init__(self, view: View, *, surveys: bool, judges: bool) -> None:
        """`surveys`: slices are surveyed before they are reduced. `judges`: sums are judged before they
        count."""
        self._members = [m.replica for m in view.members]
        self._everybody = frozenset(self._members)
        self._surveys = surveys
        self._judges = judges
        # By step and trial.
        self._parts: dict[tuple[int, int], dict[int, Part]] = {}
        self._surveyed: dict[tuple[int, int], set[int]] = {}
        self._sums: dict[tuple[int, int], set[int]] = {}
        self._verdict: tuple[int, Fork, Verdict | Void] | None = None
        """The newest one, for which step and fork; it is asked for whenever a piece comes."""
        self.begin(Trial.FIRST)

    def begin(self, trial: Trial) -> None:
        """Nothing has been done in this trial yet."""
        self.trial = trial
        self.contributed = False
        self.surveying = False
        self.concluded = False
        self.judging = False

    def take(self, sender: int, piece: Part | Surveyed | Sum) -> None:
        attempt = (piece.step, piece.trial)
        match piece:
            case Part():
                self._parts.setdefault(attempt, {})[sender] = piece
                self._verdict = None
            case Surveyed():
                self._surveyed.setdefault(attempt, set()).add(sender)
            case Sum():
                self._sums.setdefault(attempt, set()).add(sender)

    def has_room_for(self, step: int, newest: int | None) -> bool:
        """Whether pieces of this step are kept by one whose newest record is that one. None: it is not known
        yet after which step it goes on, so any are that are not too many."""
        if newest is None:
            return (step, Trial.FIRST) in self._parts or len(self._parts) < PARTS_AHEAD
        return newest < step <= newest + PARTS_AHEAD

    def parts(self, step: int, trial: int = Trial.FIRST) -> Mapping[int, Part]:
        """Those that are there, by who has made them, in the order in which they came."""
        return self._parts.get((step, trial), {})

    def has_all_parts(self, step: int) -> bool:
        """Of the present trial."""
        return self._is_all(self.parts(step, self.trial))

    def verdict(self, step: int, fork: Fork) -> Verdict | Void:
        """What the parts of the first trial say of the states of those who made them, taken together."""
        if self._verdict is None or self._verdict[:2] != (step, fork):
            parts = self.parts(step)
            checks = {replica: parts[replica].check for replica in self._members}
            self._verdict = step, fork, judge_attempt(step, checks, fork)
        return self._verdict[2]

    def proceed(self, step: int, fork: Fork, *, closing: bool) -> list[StepAction] | Verdict | Void | AllDone:
        """What to do next in the present trial of this step: nothing, if others have to do something first.
        Or what has come of it: the step is complete with a verdict, the attempt is void, or nobody goes on.
        `closing`: this replica does not."""
        parts = self.parts(step, self.trial)
        going_on = [replica for replica, part in parts.items() if not part.closing]
        left: list[StepAction] = [LeftAlone(tuple(sorted(going_on)))] if closing and going_on else []
        if not self.has_all_parts(step):
            # One that goes on while we have left: say so at once, it may never hear from everybody.
            return left if self.contributed else []
        if len(going_on) < len(parts):
            return left if going_on else AllDone()
        verdict = self.verdict(step, fork)
        if isinstance(verdict, Void):
            return verdict
        actions = self._next(step)
        return verdict if actions is None else actions

    def _next(self, step: int) -> list[StepAction] | None:
        """None when nothing is left to do."""
        attempt = (step, self.trial)
        surveys = self._surveys and self.trial is not Trial.HEARING
        if surveys and not self.surveying:
            self.surveying = True
            return [Survey(*attempt)]
        if surveys and not self._is_all(self._surveyed.get(attempt, ())):
            return []
        if not self.concluded:
            self.concluded = True
            return [Conclude(*attempt)]
        if not self._is_all(self._sums.get(attempt, ())):
            return []
        if not self._judges or self.trial is Trial.FINAL:
            return None
        if self.judging:
            return []
        self.judging = True
        return [Judge(*attempt)]

    def missing(self, step: int) -> dict[str, list[int]]:
        """Whose pieces of the present trial are not there, for people."""
        attempt = (step, self.trial)
        heard: dict[str, Container[int]] = {"parts": self._parts.get(attempt, ())}
        if self.surveying:
            heard["surveys"] = self._surveyed.get(attempt, ())
        if self.concluded:
            heard["sums"] = self._sums.get(attempt, ())
        return {what: [m for m in self._members if m not in some] for what, some in heard.items()}

    def forget(self, step: int) -> None:
        """The record of this step is held: its pieces are not needed any more, and the next one begins."""
        for trial in Trial:
            self._parts.pop((step, trial), None)
            self._surveyed.pop((step, trial), None)
            self._sums.pop((step, trial), None)
        self.begin(Trial.FIRST)

    def _is_all(self, heard: Iterable[int]) -> bool:
        return self._everybody.issubset(heard)
