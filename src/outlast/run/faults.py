"""Faults that a run has survived, as people speak of them."""

import re
from dataclasses import dataclass

from outlast.run.words import counted, duration

FAULTS_NAMED = 4
NOT_WORTH_SAYING_S = 0.5
"""Who looks a few times a second cannot tell so little from nothing."""

_IN_SHORT = (
    (r"died with its agent", "lost with its agent"),
    (r"was killed by", "killed"),
    (r"is stopped", "stopped"),
    (r"hangs", "hung"),
    (r"is cut off", "cut off"),
    (r"fails|exited|could not be started", "failed"),
    (r"nothing is heard", "not heard from"),
    (r"step \d+: ", "computed wrongly"),
)


@dataclass(kw_only=True)
class Fault:
    """One thing that went wrong."""

    why: str
    """A sentence without its full stop."""
    replica: int | None
    """Who was lost by it, if somebody was."""
    step: int
    at: float
    back_at: float | None = None
    """When the replica took part again, or the part that failed was replaced."""

    @property
    def open(self) -> bool:
        return self.replica is not None and self.back_at is None

    def sentence(self) -> str:
        """What happened, and when."""
        dated = re.search(r"\bstep \d|before it joined", self.why)
        return self.why if dated else f"{self.why} at step {self.step:,}"

    def story(self) -> str:
        """What happened, and what came of it."""
        if self.replica is None:
            return self.sentence()
        if self.back_at is None:
            return f"{self.sentence()}; not back yet"
        return f"{self.sentence()}; back after {duration(self.back_at - self.at)}"

    def in_short(self) -> str:
        if self.replica is None:
            return self.sentence()
        if self.why.endswith("before it joined"):
            return self.why
        words = next((words for pattern, words in _IN_SHORT if re.search(pattern, self.why)), "lost")
        return f"replica {self.replica} {words} at step {self.step:,}"


def survived(faults: list[Fault], lost_s: float) -> str:
    """All of them in one line, with what they cost; nothing if there were none."""
    if not faults:
        return ""
    named = [fault.in_short() for fault in faults[:FAULTS_NAMED]]
    if len(faults) > FAULTS_NAMED:
        named.append(f"and {len(faults) - FAULTS_NAMED} more")
    cost = f"about {duration(lost_s)}" if lost_s >= NOT_WORTH_SAYING_S else "less than half a second"
    return f"survived {counted(len(faults), 'fault')} ({', '.join(named)}), which cost {cost}"


def leaves(cause: str, replica: int) -> bool:
    """Whether a view is without this replica because it has asked for that."""
    return f"replica {replica} leaves" in cause.split("; ")


def fault_of(cause: str, replica: int) -> str | None:
    """What a view's cause says of a replica that is not in it any more; None if it went in order."""
    said = [part for part in cause.split("; ") if re.search(rf"\breplica {replica}\b", part)]
    if any(part.endswith(" has finished") for part in said) or leaves(cause, replica):
        return None
    told = [part for part in said if not part.endswith(" is back")]
    return "; ".join(told) or f"replica {replica} was lost"
