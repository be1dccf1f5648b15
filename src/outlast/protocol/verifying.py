"""Is the state right? What members say of theirs, and what follows from all of it.

Members hold the same bits, so a digest of the whole state tells whether they still do. The state after some
steps is *chosen* to be compared: their records say so. Whoever holds such a record copies the state when the
model stands there and names the digest in a later part. All who have the parts of an attempt come to the same
conclusion from them, by a pure function:

    nobody compares anything, somebody thinks it is time   ──▶  this step's state is chosen
    all digests of the chosen state are known, and equal   ──▶  it is *verified*; the copy is kept
    they are known and differ                              ──▶  void: go back to the newest verified state

*Buffers* (BatchNorm's statistics, say) are compared in every step, since a wrong one does not stay where it
is: shards start from them, and what shards make of them is averaged, so that after one step all members have
the same wrong ones. Each part names a digest of the buffers from which it was computed. If they differ,
nothing comes of that attempt, and members go back as they do from states that differ.

There is one comparison of states at a time. Who was not there when the state was chosen has nothing to say
about it, and is left out; with fewer than two to compare, it is dropped. A learner follows the same records
and compares its own digest with the one that they name.

`descent.py` says what it means to go back, `recomputing.py` how one of two is found to be wrong, and
`repeating.py` when it is not a machine that is wrong, but the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.protocol.recomputing import Recomputing
from outlast.protocol.repeating import (
    after_agreeing,
    difference,
    differing,
    remembered,
    repeats,
)
from outlast.protocol.step_words import (
    BLANK,
    Check,
    Differ,
    Difference,
    Digest,
    Dropped,
    Fork,
    Lost,
    StepAction,
    Verdict,
    Verified,
)

NO_DIFFERENCE = Difference()
MEMBERS, OWN = -1, 0
"""Who is meant where a learner's state is not that of members, all of whom have the same."""


@dataclass(frozen=True)
class Void:
    """States after `step` differ: those of `members` from that of a majority, if there is one."""

    step: int
    members: tuple[int, ...]
    back_to: int
    digests: Mapping[int, bytes]
    buffers: bool = False
    """It is the buffers that differ, and the digests are of them alone."""
    entries: Mapping[int, bytes] = field(default_factory=dict, compare=False)
    """Digests of what is in there, by member."""
    difference: Difference = NO_DIFFERENCE
    """What is to be remembered of it."""
    again: bool = False
    """Whether that is what was seen before, so that the script is at fault; see `repeating.py`."""
    earlier: tuple[int, ...] = ()
    """Who was named then."""

    @property
    def said(self) -> Differ:
        return Differ(
            self.step, self.members, self.back_to, self.buffers, self.again, self.entries, self.earlier
        )


def judge_attempt(step: int, checks: Mapping[int, Check | None], fork: Fork) -> Verdict | Void:
    """What the parts of an attempt at this step say, taken together."""
    verdict = judge(checks, fork)
    if isinstance(verdict, Void):
        # A state that is older than the buffers: the fault was there first.
        return verdict
    buffers = {replica: check.buffers for replica, check in checks.items() if check and check.buffers}
    if len(set(buffers.values())) < 2:
        return verdict
    said = {replica: check.buffer_entries for replica, check in checks.items() if check and check.buffers}
    return _void(step - 1, buffers, said, checks, buffers=True)


def judge(checks: Mapping[int, Check | None], fork: Fork) -> Verdict | Void:
    """What members say of their states, taken together. `fork` is that of those who say it."""
    said = {replica: check for replica, check in checks.items() if check is not None}
    step = max((check.step for check in said.values()), default=BLANK)
    digests = {replica: check.digest for replica, check in said.items() if check.step == step != BLANK}
    if not all(digests.values()):
        return Verdict(fork=fork)
    chosen = len(said) > 1 and any(check.due for check in said.values())
    if len(digests) < 2:
        return Verdict(chosen=chosen, dropped=step, fork=fork)
    (digest, *others) = set(digests.values())
    if not others:
        entries = said[min(digests)].entries
        return Verdict(chosen=chosen, verified=step, digest=digest, fork=fork, entries=entries)
    return _void(step, digests, {replica: said[replica].entries for replica in digests}, checks)


def _void(
    step: int,
    digests: Mapping[int, bytes],
    entries: Mapping[int, bytes],
    checks: Mapping[int, Check | None],
    *,
    buffers: bool = False,
) -> Void:
    outvoted, back_to, before = _outvoted(digests), _newest_verified(checks), remembered(checks.values())
    now = difference(step, outvoted, digests.values(), differing(entries), before)
    earlier = tuple(sorted({member for one in before for member in one.members}))
    again = repeats(now, back_to, before)
    return Void(step, outvoted, back_to, digests, buffers, entries, now, again, earlier)


def _outvoted(digests: Mapping[int, bytes]) -> tuple[int, ...]:
    """Those who differ from a majority; nobody, if there is none."""
    ((digest, count),) = Counter(digests.values()).most_common(1)
    if 2 * count <= len(digests):
        return ()
    return tuple(sorted(replica for replica, one in digests.items() if one != digest))


def _newest_verified(checks: Mapping[int, Check | None]) -> int:
    """The newest verified state of which anybody has a copy."""
    return max(check.verified for check in checks.values() if check is not None)


class Verifying:
    """What one life knows of its own state."""

    def __init__(self) -> None:
        self.verified = BLANK
        """The newest verified state of which it has a copy."""
        self._under = BLANK
        """The state that is being compared."""
        self._digest = b""
        self._entries = b""
        """Of the state that has this digest."""
        self._seal = b""
        """What the digest has to be, if others knew that first."""
        self._sealed_entries = b""
        self.before: Difference | None = None
        """What is remembered of the last time that states differed."""
        self._last = (BLANK, b"")
        """The newest verified state, and its digest."""
        self.recomputing = Recomputing()

    def check(
        self,
        newest: int,
        *,
        due: bool,
        checksum: int = 0,
        buffers: bytes = b"",
        buffer_entries: bytes = b"",
    ) -> Check:
        step, digest = self._under, self._digest
        if step == BLANK and self._last[0] == newest:
            # Somebody may still wait to hear it; see `Ending`.
            step, digest = self._last
        due = due or self.verified == BLANK or newest + 1 == self.recomputing.again_at
        entries = self._entries if digest else b""
        return Check(
            step, digest, self.verified, due, checksum, buffers, entries, buffer_entries, self.before
        )

    def heard(self, verdict: Verdict, checks: Mapping[int, Check]) -> None:
        """A step is complete, with these words of members."""
        if self.before is None:
            self.before = next(iter(remembered(checks.values())), None)
        if verdict.verified != BLANK:
            agreed = [replica for replica, check in checks.items() if check.step == verdict.verified]
            self.before = after_agreeing(self.before, agreed)

    def founded(self, step: int) -> list[StepAction]:
        """The own state is the beginning: there is nothing that it could be compared with."""
        self.verified = step
        return self.begin(step)

    def begin(self, step: int) -> list[StepAction]:
        """The state after this step is to be compared."""
        if self._under == step:
            return []
        self._under, self._digest, self._entries, self._seal = step, b"", b"", b""
        return [Digest(step)]

    @property
    def known(self) -> bool:
        """Whether the digest of what is being compared is there."""
        return self._under == BLANK or bool(self._digest)

    def take(self, step: int, verdict: Verdict) -> list[StepAction]:
        """The record of this step says so."""
        actions: list[StepAction] = []
        if verdict.verified != BLANK:
            actions += self._is_verified(verdict.verified, verdict.digest, verdict.entries)
        if verdict.dropped != BLANK:
            actions.append(Dropped(verdict.dropped))
            if self._under == verdict.dropped:
                self._under, self._digest = BLANK, b""
        if verdict.chosen:
            actions += self.begin(step)
        return actions

    def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[StepAction]:
        """The copy of the state after this step has that digest; it has none if it could not be made."""
        if step != self._under or self._digest:
            return []
        seal, self._digest, self._entries = self._seal, digest, entries
        if not digest:
            self._under = BLANK
            # What was to be saved of it is not, since perhaps nobody will have anything to compare.
            return [Verified(step, kept=False)] if seal else [Dropped(step)]
        return self._is_verified(step, seal, self._sealed_entries) if seal else []

    def _is_verified(self, step: int, seal: bytes, entries: bytes) -> list[StepAction]:
        if self._under != step:
            return [Verified(step, kept=False)] if step > self._last[0] else []
        if not self._digest:
            self._seal, self._sealed_entries = seal, entries
            return []
        if self._digest != seal:
            reason = f"its state after step {step} is not the one that members have agreed on"
            return [Lost(reason, Differ(step, (), BLANK, entries={MEMBERS: entries, OWN: self._entries}))]
        self._under, self._digest, self.verified, self._last = BLANK, b"", step, (step, seal)
        return [Verified(step, kept=True), *self.recomputing.verified(step, seal)]

    def go_back(self, step: int) -> bool:
        """Whether there is a copy of the state after this step; everything newer is void."""
        self._under, self._digest, self._seal = BLANK, b"", b""
        kept = self.verified == step != BLANK
        if not kept:
            self.verified = BLANK
        if self._last[0] != step:
            self._last = (BLANK, b"")
        return kept
