"""Is the state right? What members say of theirs, and what follows from all of it.

Members hold the same bits, so a digest of the whole state tells whether they still do. The state after some
steps is *chosen* to be compared: their records say so. Whoever holds such a record copies the state when the
model stands there and names the digest in a later part. All who have the parts of an attempt come to the same
conclusion from them, by a pure function:

    nobody compares anything, somebody thinks it is time   ──▶  this step's state is chosen
    all digests of the chosen state are known, and equal   ──▶  it is *verified*; the copy is kept
    they are known and differ                              ──▶  void: go back to the newest verified state

There is one comparison at a time. Who was not there when the state was chosen has nothing to say about it,
and is left out; with fewer than two to compare, it is dropped. A learner follows the same records and
compares its own digest with the one that they name.

`descent.py` says what it means to go back, and `recomputing.py` how one of two is found to be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outlast.protocol.recomputing import Recomputing
from outlast.protocol.step_words import (
    BLANK,
    Check,
    Differ,
    Digest,
    Dropped,
    Fork,
    Lost,
    StepAction,
    Verdict,
    Verified,
)


@dataclass(frozen=True)
class Void:
    """States after `step` differ: those of `members` from that of a majority, if there is one."""

    step: int
    members: tuple[int, ...]
    back_to: int
    digests: Mapping[int, bytes]

    @property
    def said(self) -> Differ:
        return Differ(self.step, self.members, self.back_to)


def judge(checks: Mapping[int, Check | None], fork: Fork) -> Verdict | Void:
    """What the parts of one attempt say, taken together. `fork` is that of those who have made them."""
    said = {replica: check for replica, check in checks.items() if check is not None}
    step = max((check.step for check in said.values()), default=BLANK)
    digests = {replica: check.digest for replica, check in said.items() if check.step == step != BLANK}
    if not all(digests.values()):
        return Verdict(fork=fork)
    chosen = len(said) > 1 and any(check.due for check in said.values())
    if len(digests) < 2:
        return Verdict(chosen=chosen, dropped=step, fork=fork)
    (digest, count), *others = Counter(digests.values()).most_common()
    if not others:
        return Verdict(chosen=chosen, verified=step, digest=digest, fork=fork)
    majority = 2 * count > len(digests)
    differing = tuple(sorted(replica for replica, one in digests.items() if one != digest))
    back_to = max(check.verified for check in said.values())
    return Void(step, differing if majority else (), back_to, digests)


class Verifying:
    """What one life knows of its own state."""

    def __init__(self) -> None:
        self.verified = BLANK
        """The newest verified state of which it has a copy."""
        self._under = BLANK
        """The state that is being compared."""
        self._digest = b""
        self._seal = b""
        """What the digest has to be, if others knew that first."""
        self._last = (BLANK, b"")
        """The newest verified state, and its digest."""
        self.recomputing = Recomputing()

    def check(self, newest: int, *, due: bool, checksum: int = 0) -> Check:
        step, digest = self._under, self._digest
        if step == BLANK and self._last[0] == newest:
            # Somebody may still wait to hear it; see `Ending`.
            step, digest = self._last
        due = due or self.verified == BLANK or newest + 1 == self.recomputing.again_at
        return Check(step, digest, self.verified, due, checksum)

    def founded(self, step: int) -> list[StepAction]:
        """The own state is the beginning: there is nothing that it could be compared with."""
        self.verified = step
        return self.begin(step)

    def begin(self, step: int) -> list[StepAction]:
        """The state after this step is to be compared."""
        if self._under == step:
            return []
        self._under, self._digest, self._seal = step, b"", b""
        return [Digest(step)]

    @property
    def known(self) -> bool:
        """Whether the digest of what is being compared is there."""
        return self._under == BLANK or bool(self._digest)

    def take(self, step: int, verdict: Verdict) -> list[StepAction]:
        """The record of this step says so."""
        actions: list[StepAction] = []
        if verdict.verified != BLANK:
            actions += self._is_verified(verdict.verified, verdict.digest)
        if verdict.dropped != BLANK:
            actions.append(Dropped(verdict.dropped))
            if self._under == verdict.dropped:
                self._under, self._digest = BLANK, b""
        if verdict.chosen:
            actions += self.begin(step)
        return actions

    def digested(self, step: int, digest: bytes) -> list[StepAction]:
        """The copy of the state after this step has that digest; it has none if it could not be made."""
        if step != self._under or self._digest:
            return []
        seal, self._digest = self._seal, digest
        if not digest:
            self._under = BLANK
            # What was to be saved of it is not, since perhaps nobody will have anything to compare.
            return [Verified(step, kept=False)] if seal else [Dropped(step)]
        return self._is_verified(step, seal) if seal else []

    def _is_verified(self, step: int, seal: bytes) -> list[StepAction]:
        if self._under != step:
            return [Verified(step, kept=False)] if step > self._last[0] else []
        if not self._digest:
            self._seal = seal
            return []
        if self._digest != seal:
            return [Lost(f"its state after step {step} is not the one that members have agreed on")]
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
