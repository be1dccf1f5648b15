"""Mistakes that are easy to make, planted in the real cores, to prove that the simulator finds them."""

from dataclasses import replace

from outlast.protocol.coordinator import Action, Commit, CoordinatorCore, Publish
from outlast.protocol.election import Election
from outlast.protocol.evidence import Evidence
from outlast.protocol.member import Deliver, Frame, MemberAction, MemberCore
from outlast.protocol.messages import ViewNews
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership, View
from outlast.sim.simulation import Cast
from outlast.sim.store import ANY_TERM


class FencingLeftOut(MemberCore):
    """Acts on frames of views and lives that are over."""

    def _stale(self, frame: Frame) -> list[MemberAction]:
        return [Deliver(frame)]


class NewerFramesDropped(MemberCore):
    """Drops what it does not understand yet instead of holding it."""

    def _hold(self, frame: Frame) -> list[MemberAction]:
        return []


class ViewNumberReused(CoordinatorCore):
    """Counts views from its own memory, which a restart empties."""

    def _agreed(self, membership: Membership) -> list[Action]:
        if self._in_flight is None and self.membership is None:
            membership = Membership(spec=membership.spec, view=View(), seats=membership.seats)
        return super()._agreed(membership)


class LeadershipNotCompared(CoordinatorCore):
    """Writes without asking the store whether it still leads."""

    def _begin(self, commit: Commit) -> list[Action]:
        return [replace(commit, term=ANY_TERM)]


class SpokenBeforeCommitted(CoordinatorCore):
    """Tells of a view while it is still being written."""

    def _begin(self, commit: Commit) -> list[Action]:
        return [Publish(ViewNews(view=commit.membership.view)), commit]


class _WatchesFromNow(Election):
    def _resume_after(self) -> int:
        return 10**9


class WatchEventLost(CoordinatorCore):
    """Resumes a broken watch from the present instead of from what it has seen."""

    def __init__(self, spec: JobSpec, timing: Timing) -> None:
        super().__init__(spec, timing)
        self.election = _WatchesFromNow(timing)


class ViewGoesBack(MemberCore):
    """Adopts whatever view it is told of, also one that is over."""

    def _news(self, view: View, now: float) -> list[MemberAction]:
        if 0 < view.number < self.view.number and view.holds(self.replica, self.incarnation):
            self.view = View(number=view.number - 1)
        return super()._news(view, now)


class _Rash(Evidence):
    def __init__(self, timing: Timing, now: float) -> None:
        super().__init__(timing, now)
        self._trust_until = now
        self._took_office_at = now - 100.0

    def wake(self, now: float) -> None:
        pass


class NewLeaderSuspectsAtOnce(CoordinatorCore):
    """Takes its own sleep, or its own newness, for the others' silence."""

    def _office_changed(self, now: float) -> list[Action]:
        actions = super()._office_changed(now)
        if self.evidence is not None:
            self.evidence = _Rash(self._timing, now)
        return actions


MUTANTS: dict[str, tuple[Cast, str]] = {
    "fencing left out": (Cast(member=FencingLeftOut), "acts in view"),
    "view number reused after a coordinator restart": (Cast(coordinator=ViewNumberReused), "is followed by"),
    "leadership not compared in the write": (Cast(coordinator=LeadershipNotCompared), "but the leader is"),
    "an announcement before the commit": (Cast(coordinator=SpokenBeforeCommitted), "never committed"),
    "a lost watch event": (Cast(coordinator=WatchEventLost), "nobody leads"),
    "a newer-view message dropped instead of held": (
        Cast(member=NewerFramesDropped),
        "hangs at step|is back|has ended",
    ),
    "a view that goes back": (Cast(member=ViewGoesBack), "goes back from view"),
    "a new leader that suspects at once": (
        Cast(coordinator=NewLeaderSuspectsAtOnce),
        "nothing has happened to it",
    ),
}
"""Each mistake with the cast that makes it and what the checker has to say to it."""
