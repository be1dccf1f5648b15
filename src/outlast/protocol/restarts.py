"""How often to start a failing replica again, and when to stop.

A replica that dies after a healthy life (a long one, or one in which it was killed from outside while it was
making progress) is started again at once: machines fail. One that dies soon
after its start is started again too, but later each time, since whatever killed it is probably still there.
After `limit` such short lives in a row the cause is the program, not the machine, and starting it again only
hides that; the job ends with the replica's own last words. A program that dies before it ever joined (a
typo, a missing module) gets fewer tries: nothing has been trained that could be lost.
"""

from dataclasses import dataclass

from outlast.errors import ConfigError

MOST_DOUBLINGS = 30


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    limit: int = 5
    """Short lives in a row before the job ends; more tolerates flakier programs and hides bugs longer."""
    limit_unjoined: int = 2
    """The same for lives that ended before joining, as long as no life of the replica ever joined."""
    first_delay_s: float = 0.1
    """Wait after the first short life; each further one in a row waits twice as long."""
    longest_delay_s: float = 30.0
    """Bound on that wait."""
    healthy_after_s: float = 10.0
    """A life this long counts as healthy and starts the count anew."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        if self.limit < 1 or self.limit_unjoined < 1:
            raise ConfigError(f"the restart limit is {min(self.limit, self.limit_unjoined)}; use at least 1")
        if self.first_delay_s < 0 or self.longest_delay_s < self.first_delay_s:
            raise ConfigError(
                f"restart delays go from {self.first_delay_s} to {self.longest_delay_s} s; the longest must "
                "not be shorter than the first, and neither negative"
            )


class RestartCount:
    """The failures of one replica."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.short_lives = 0
        self.ever_joined = False

    def failed(
        self, *, lived_s: float, joined: bool, killed_in_progress: bool, killed: bool = False
    ) -> float | None:
        """A life has ended badly, or was `killed` from outside: how long to wait before the next one, or
        None to give up."""
        self.ever_joined |= joined
        if lived_s >= self._policy.healthy_after_s or (joined and killed_in_progress):
            self.short_lives = 0
            return 0.0
        self.short_lives += 1
        # What kills a program from outside says nothing against the program, even before it joined.
        limit = self._policy.limit if self.ever_joined or killed else self._policy.limit_unjoined
        if self.short_lives >= limit:
            return None
        doublings = min(self.short_lives - 1, MOST_DOUBLINGS)
        return min(self._policy.longest_delay_s, self._policy.first_delay_s * 2.0**doublings)
