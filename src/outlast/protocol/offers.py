"""Records that others have made and that a life is given, until it can take them, each after the one before.

They come in two ways. *Feeds* of stable records go to learners, in whatever view; *given* ones answer a wish
in the present view, and may not be stable, so they count in it only.

Members that come into a view out of step begin to feed again, and say from which record on, and up to which
one they have any. That may be less than was fed before: when all who held the records after it are dead, and
the one that is left was still catching up. What was fed of those in earlier views is *undone*.
"""

from __future__ import annotations

from outlast.protocol.step_words import BLANK, Verdict

TOPS_KEPT = 64


class Offers:
    """What is at hand, by step, and what it says."""

    def __init__(self) -> None:
        self._fed: dict[int, Verdict] = {}
        self._given: dict[int, Verdict] = {}
        self._again_in = 0
        """The newest view that members came into out of step, and fed again."""
        self.first = BLANK
        """The record with which they began."""
        self.top = BLANK
        """The newest one that any of them had."""
        self._tops: list[tuple[int, int]] = []
        """That view and what was the newest then, also of those before it. What was sent before an earlier
        one may still be on its way, and members may have come further than that by now, otherwise."""
        self._since = 0
        """The view in which another lineage began; what was fed before is of one that is over."""

    def feed(self, step: int, verdict: Verdict) -> None:
        self._fed[step] = verdict

    def give(self, step: int, verdict: Verdict) -> None:
        self._given[step] = verdict

    def any_after(self, step: int) -> bool:
        """Whether stable records of later steps are at hand."""
        return any(later > step for later in self._fed)

    def pop(self, step: int) -> Verdict | None:
        """What the record of this step says, if it is at hand; it is not any more."""
        fed, given = self._fed.pop(step, None), self._given.pop(step, None)
        return given if given is not None else fed

    def feed_again(self, view: int, first: int, top: int) -> bool:
        """A member begins to feed again, having come into that view out of step. Whether it is the first one
        of which that is heard."""
        if view < self._again_in:
            return False
        began, self._again_in, self.top = view > self._again_in, view, top
        self.first = first if began else max(first, self.first)
        # What was undone by an earlier one with a higher top is undone by this one, too.
        self._tops = [one for one in self._tops if one[0] < view and one[1] < top][-TOPS_KEPT:]
        self._tops.append((view, top))
        if began:
            self._fed = {step: said for step, said in self._fed.items() if step <= top}
        return began

    def undone(self, step: int, view: int | None) -> bool:
        """Whether what was sent in this view is about a step that members have gone back behind since."""
        if view is None:
            return False
        return view < self._since or any(view < again_in and step > top for again_in, top in self._tops)

    def begin_anew(self, view: int) -> None:
        """In this view another lineage begins."""
        self._since = view
        self.forget()

    def start_after(self, step: int) -> None:
        """The state after this step is there: feeds up to it are not needed."""
        self._fed = {later: said for later, said in self._fed.items() if later > step}

    def forget_given(self) -> None:
        """Another view is in force."""
        self._given = {}

    def forget_fed(self) -> None:
        self._fed = {}

    def forget(self) -> None:
        self._fed, self._given = {}, {}
