"""Which coordinator may write: leadership through a leased key in the store.

Any number of coordinators may run; one at a time leads. Leadership is a key that can only be created while
it is absent and that vanishes with its lease, so the store decides, not a message between coordinators. The
revision at which the key was created is the leader's *term*: every write of a leader compares it, so that a
leader that was paused, or cut off, and has been replaced without noticing can write nothing.

A coordinator that does not lead watches the key and campaigns when it is gone. The watch resumes from the
last revision that was seen; resuming from "now" would miss a deletion in between and leave the job without
a leader for good.
"""

from dataclasses import dataclass
from enum import Enum

from outlast.protocol.timing import Timing


@dataclass(frozen=True)
class Campaign:
    """Grant a lease and create the leadership key under it, if it is absent."""


@dataclass(frozen=True)
class Renew:
    """Keep the lease alive."""


@dataclass(frozen=True)
class Watch:
    """Report deletions of the leadership key after this revision."""

    after: int


@dataclass(frozen=True)
class Campaigned:
    """The answer to a campaign; `term` is the revision at which the winner's key was created."""

    won: bool
    term: int
    revision: int
    leader: str = ""
    """Where the one is reached that leads instead; empty if that is not known."""


@dataclass(frozen=True)
class CampaignFailed:
    """The store could not be reached, or its answer was lost."""


@dataclass(frozen=True)
class Renewed:
    alive: bool


@dataclass(frozen=True)
class RenewFailed:
    """No answer: the lease may or may not have been renewed, so it counts as before; ask again."""


@dataclass(frozen=True)
class WatchProgress:
    """The watched key's history is known up to `revision`; `gone` says that it ended with a deletion."""

    revision: int
    gone: bool
    leader: str = ""
    """Where the one is reached that leads now."""


@dataclass(frozen=True)
class WatchBroken:
    """The watch has ended and must be started again."""


class Office(Enum):
    CAMPAIGNING = "campaigning"
    FOLLOWING = "following"
    LEADING = "leading"


ElectionAction = Campaign | Renew | Watch
ElectionEvent = Campaigned | CampaignFailed | Renewed | RenewFailed | WatchProgress | WatchBroken


class Election:
    """One coordinator's part in the election."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.office = Office.CAMPAIGNING
        self.term = 0
        self.leader = ""
        """Where the one is reached that leads, if it is another one; empty if that is not known."""
        self._seen = 0
        self._asked_at = 0.0
        self._lease_until = 0.0
        self._renewing_since: float | None = None
        self._retry_at: float | None = None
        self._watch_at: float | None = None

    def start(self, now: float) -> list[ElectionAction]:
        return self._campaign(now)

    def handle(self, event: ElectionEvent, now: float) -> list[ElectionAction]:
        match event:
            case Campaigned():
                return self._campaigned(event)
            case CampaignFailed():
                self._retry_at = now + self._timing.beat_every_s
            case Renewed() if self.office is Office.LEADING and self._renewing_since is not None:
                if event.alive:
                    self._lease_until = self._renewing_since + self._timing.lease_s
                else:
                    self._lease_until = now
                self._renewing_since = None
            case RenewFailed():
                self._renewing_since = None
            case WatchProgress():
                if self.office is Office.FOLLOWING and event.revision >= self._seen:
                    # A watch that was given up may have something old to tell.
                    self.leader = event.leader
                self._seen = max(self._seen, event.revision)
                if event.gone and self.office is Office.FOLLOWING:
                    return self._campaign(now)
            case WatchBroken() if self.office is Office.FOLLOWING:
                self._watch_at = now + self._timing.beat_every_s
        return []

    def tick(self, now: float) -> list[ElectionAction]:
        if self.office is Office.CAMPAIGNING and self._retry_at is not None and now >= self._retry_at:
            return self._campaign(now)
        if self.office is Office.FOLLOWING and self._watch_at is not None and now >= self._watch_at:
            self._watch_at = None
            return [Watch(self._resume_after())]
        if self.office is not Office.LEADING:
            return []
        if lapsed := self.lapse(now):
            return lapsed
        due = self._lease_until - self._timing.lease_s * 2 / 3
        if self._renewing_since is None and now >= due:
            self._renewing_since = now
            return [Renew()]
        return []

    def lapse(self, now: float) -> list[ElectionAction]:
        """To be asked before anything else is done, whatever has happened: a leader whose lease has run out
        while it slept must not answer anybody with what it knew."""
        if self.office is Office.LEADING and now >= self._lease_until:
            return self.resign(now)
        return []

    def resign(self, now: float) -> list[ElectionAction]:
        return self._campaign(now)

    def _campaign(self, now: float) -> list[ElectionAction]:
        self.office = Office.CAMPAIGNING
        self.leader = ""
        self._asked_at = now
        self._renewing_since = None
        self._retry_at = self._watch_at = None
        return [Campaign()]

    def _campaigned(self, event: Campaigned) -> list[ElectionAction]:
        if self.office is not Office.CAMPAIGNING:
            return []
        self._seen = event.revision
        if event.won:
            self.office = Office.LEADING
            self.term = event.term
            # The lease began after we asked for it, so counting from the question is on the safe side.
            self._lease_until = self._asked_at + self._timing.lease_s
            return []
        self.office, self.leader = Office.FOLLOWING, event.leader
        return [Watch(self._resume_after())]

    def _resume_after(self) -> int:
        return self._seen
