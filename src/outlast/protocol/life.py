"""All that belongs to one life of a replica, in one object: a new life is another one.

What a process keeps over its lives (how often members have gone back, what the coordinator said, how the job
ended) is the driver's. Everything else is here, so that nothing of a life that is over can be taken for the
next one's: no word that waits, no record, no state on its way.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.protocol.giving import Giving
from outlast.protocol.inbox import Arrival, Inbox
from outlast.protocol.lines import Lines
from outlast.protocol.post import Outgoing, Post
from outlast.protocol.saving import Intend
from outlast.protocol.seams import At, Bulk, Outlet, Record
from outlast.protocol.step_words import BLANK, GoBack
from outlast.protocol.steps import StepCore
from outlast.protocol.todos import Compute, Digest, Found, Read
from outlast.protocol.views import View


class Lack:
    """For how long a learner has lacked a record, while it has later ones."""

    def __init__(self) -> None:
        self._at = BLANK
        self._since = 0.0

    def lasts_s(self, steps: StepCore, now: float) -> float:
        at = steps.step if steps.has_a_gap else BLANK
        if at != self._at:
            self._at, self._since = at, now
        return now - self._since if at != BLANK else 0.0


class Life:
    def __init__(
        self,
        *,
        replica: int,
        bulk: Bulk,
        outlet: Outlet,
        now: float,
        before: Life | None = None,  # noqa: ARG002 - what was before is void; there only for planted mistakes.
        lines: Callable[[], Lines[Outgoing]] = Lines,
        inbox: Callable[[Bulk], Inbox] = Inbox,
    ) -> None:
        self.post = Post(outlet, bulk, lines())
        self.inbox = inbox(bulk)
        self.giving = Giving(replica, self.post, outlet.passes)
        self.arrival = Arrival()
        """The state that it is given."""
        self.begun_at = self.heard_at = now
        """When the first word of it came, and the last one."""
        self.view = View()
        """The view in force: the last one whose adoption has been carried out."""
        self.adopted_at = now
        self.to_note = self.noted = 0
        """How many stable steps were to be written down, and how many are."""
        self.intended: tuple[Intend, int] | None = None
        """A checkpoint, and how many have to be before it is made visible."""
        self.over: str | None = None
        """Why this life is over, if it is."""
        self.applied = BLANK
        """The step whose result the model holds."""
        self.records: dict[int, Record] = {}
        # What the training thread has to do, or is at.
        self.back: GoBack | None = None
        self.founding = False
        """Whether it is on this replica to say what the lineage begins with."""
        self.founds: Found | None = None
        """That it is at it."""
        self.asked: Read | None = None
        self.computes: Compute | None = None
        self.digests: Digest | None = None
        self.contributed: At | None = None
        """The newest attempt that it has contributed to."""
        self.discredited = False
        """Whether what this replica has computed of the present step was found to be wrong. It may stay all
        the same, where nobody else holds the state, and computes that again."""
        # Where it learns.
        self.ready = False
        self.loaded = BLANK
        """The step whose state this life was given."""
        self.final = False
        """Whether that was what the run ends with."""
        self.lack = Lack()
        # Where the loop of steps ends.
        self.ends_in: tuple[int, int] | None = None
        """The attempt, (view, step), in which it was said that the loop ends."""
        self.ended = BLANK
        """The step at which all have come to the end of the loop, in the same state."""
        self.left_alone: tuple[int, ...] | None = None
        self.all_done = False
        """Whether all members of this view have left the loop of steps."""
        # Connections.
        self.broken: frozenset[int] = frozenset()
        """Members of the view in force that this replica is cut off from, in its era."""
        self.returned: frozenset[int] = frozenset()
        """Those of them that it is connected with again."""
        self.broken_at = now
        self.lines_seen = -1
        self.spoiled_in = 0
        """The view in which something came that could not be taken: its attempts lead nowhere."""

    def forget_state(self, now: float) -> None:
        """The state that was on its way is not wanted any more."""
        self.arrival = Arrival()
        self.begun_at = self.heard_at = now

    def heard(self, now: float) -> None:
        """Something of a snapshot has come."""
        if self.arrival.view < 0:
            self.begun_at = now
        self.heard_at = now
