"""Two that disagree: who of them was wrong, found by doing the same steps again.

With two members there is no majority. Both go back and do the steps once more, and since computing is exact,
whatever comes out differently was wrong the first time (or is now; then the states differ again). So both
remember what each of them contributed to a step, as a checksum, and what the digests were:

- Up to the fault all contributions are the same in both passes. The first one that is not was computed by the
  culprit, from a state that was wrong already; the other got that state only through the record of this step.
- If no contribution differs (the fault was in the very last state), one of the two digests is the one that
  both come to now. The same with the digests of buffers, where it was those that differed.

It is said when a state behind that step is verified: then the second pass is the right one. Where the states
differ that members began with, nobody is named: they were given, perhaps by one that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.protocol.step_words import BLANK, Accused

STEPS_MOST = 100_000
"""Bound on what is remembered; after so many steps without a verified state nobody is named."""


class Recomputing:
    """What one life remembers of the steps since the newest verified state."""

    def __init__(self) -> None:
        self._sums: dict[int, dict[int, int]] = {}
        """Of the present pass: step → replica → checksum."""
        self._before: dict[int, dict[int, int]] = {}
        """Of the pass that was void, as far as it is not done again yet."""
        self._digests: dict[int, bytes] = {}
        """Of the state at which members differed."""
        self._buffers: dict[int, bytes] = {}
        """The same, if they differed in the buffers with which they began the step after it."""
        self.again_at = BLANK
        """That state's step: it should be compared once more."""
        self._suspect: tuple[int, int] | None = None

    def contributed(
        self, step: int, checksums: Mapping[int, int], buffers: Mapping[int, bytes] | None = None
    ) -> None:
        """Two members have completed this step from these contributions, which began with these buffers."""
        if buffers and step == self.again_at + 1 and self._suspect is None:
            self._look_at_buffers(buffers)
        if len(self._sums) < STEPS_MOST:
            self._sums[step] = dict(checksums)
        before = self._before.pop(step, None)
        if before is None or self._suspect is not None or before.keys() != checksums.keys():
            return
        differing = [replica for replica, one in checksums.items() if one != before[replica]]
        if differing:
            self._before.clear()
        if len(differing) == 1:
            self._suspect = (differing[0], step)

    def _look_at_buffers(self, now: Mapping[int, bytes]) -> None:
        """Members agree on them now, or the step would not be complete."""
        wrong = [replica for replica, one in self._buffers.items() if one not in now.values()]
        if len(wrong) == 1:
            self._suspect = (wrong[0], self.again_at)

    def verified(self, step: int, digest: bytes) -> list[Accused]:
        """The state after this step is right."""
        self._sums = {later: sums for later, sums in self._sums.items() if later > step}
        if step == self.again_at and self._suspect is None:
            wrong = [replica for replica, one in self._digests.items() if one != digest]
            if len(wrong) == 1:
                self._suspect = (wrong[0], step)
        if step >= self.again_at:
            self.again_at = BLANK
        if self._suspect is None or self._suspect[1] > step:
            return []
        (replica, at), self._suspect = self._suspect, None
        self._before.clear()
        return [Accused(replica, at)]

    def go_back(self, step: int, digests: Mapping[int, bytes], *, buffers: bool = False) -> None:
        """The states after this step differ; nobody knows who is wrong. `buffers`: it is those that differ,
        and their digests."""
        self._before, self._sums = self._sums, {}
        self._digests, self._buffers = ({}, dict(digests)) if buffers else (dict(digests), {})
        self.again_at, self._suspect = step, None

    def forget(self) -> None:
        """Others take part now, or it is known who was wrong."""
        self._before, self._digests, self._buffers = {}, {}, {}
        self._suspect, self.again_at = None, BLANK
