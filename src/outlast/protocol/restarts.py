"""How often to start a failing replica again, and when to stop.

A replica that dies after a healthy life is started again at once: machines fail. Others are started again,
too, but later each time, since whatever ended them is probably still there. After `limit` such lives in a row
the cause is the program, not the machine, and starting it again only hides that; the job ends with the
replica's own last words. A program that dies before it ever joined (a typo, a missing module) gets fewer
tries: nothing has been trained that could be lost.

What is healthy depends on who ended the life. One that was ended from outside has to have lasted for a while,
or to have been making progress. One that failed by itself has to have taken the job further than any life
before: however long a script takes to come to its mistake, it comes to the same one again, and only new steps
show that starting it again leads anywhere. Where it does, there is no limit; but one that fails soon, time
and again, is still started later each time, since each start costs those that train beside it.

An agent that is killed takes its replicas with it, which is no failure of theirs; but what it has counted is
left to the next one (`Legacy`). Otherwise a script that always fails would be started for ever by agents
that die now and then.
"""

from dataclasses import dataclass

import msgspec

from outlast.errors import ConfigError

MOST_DOUBLINGS = 30


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    limit: int = 5
    """Failures in a row before the job ends; more tolerates flakier programs and hides bugs longer."""
    limit_unjoined: int = 2
    """The same for lives that ended before joining, as long as no life of the replica ever joined."""
    first_delay_s: float = 0.1
    """Wait after the first failure; each further one in a row waits twice as long."""
    longest_delay_s: float = 30.0
    """Bound on that wait."""
    healthy_after_s: float = 10.0
    """A life this long is healthy, if it did not end by its own fault."""

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


class Tally(msgspec.Struct):
    """The failures of one replica."""

    short_lives: int = 0
    """Lives in a row that were not healthy by their length or their progress, whoever ended them."""
    own_failures: int = 0
    """Failures in a row of its own making, without a step that was new to the job in between."""
    hasty: int = 0
    """Failures in a row of its own making, none of which came late, whatever they had brought about."""
    ever_joined: bool = False


class Legacy(msgspec.Struct):
    """What an agent leaves to the next one."""

    tallies: dict[int, Tally] = {}
    """By replica."""
    furthest: int = 0
    """The newest step that any life of the job is known to have reached."""


class RestartCount:
    """Counts the failures of one replica."""

    def __init__(self, policy: RestartPolicy, tally: Tally | None = None) -> None:
        self._policy = policy
        self.tally = tally or Tally()

    @property
    def in_a_row(self) -> int:
        return max(self.tally.short_lives, self.tally.own_failures)

    def failed(
        self,
        *,
        lived_s: float,
        joined: bool,
        killed_in_progress: bool,
        killed: bool = False,
        own_fault: bool = False,
        went_further: bool = False,
    ) -> float | None:
        """A life has ended badly, or was `killed` from outside: how long to wait before the next one, or
        None to give up. It `went_further` if it took part in steps that no life before had come to."""
        tally, policy = self.tally, self._policy
        outlived = lived_s >= policy.healthy_after_s
        lasted = outlived or (joined and killed_in_progress)
        tally.ever_joined |= joined
        tally.own_failures = own_fault + (0 if went_further else tally.own_failures)
        tally.hasty = 0 if outlived else tally.hasty + own_fault
        tally.short_lives = 0 if went_further or lasted else tally.short_lives + 1
        # What kills a program from outside says nothing against the program, even before it joined.
        limit = policy.limit if tally.ever_joined or killed else policy.limit_unjoined
        if tally.short_lives >= limit or (own_fault and tally.own_failures >= limit):
            return None
        row = tally.short_lives
        if own_fault:
            # The first failure that comes after something new costs no wait.
            row = max(row, tally.own_failures - went_further, tally.hasty - 1)
        return self._wait_s(row)

    def _wait_s(self, row: int) -> float:
        """After so many in a row."""
        if row == 0:
            return 0.0
        doublings = min(row - 1, MOST_DOUBLINGS)
        return min(self._policy.longest_delay_s, self._policy.first_delay_s * 2.0**doublings)
