"""The training thread's part in one step: which shards it computes, and what it contributes."""

from __future__ import annotations

import time

from outlast import crashpoints as crash
from outlast.protocol.messages import Phase
from outlast.protocol.step_words import NO_FORK, Mode, Trial
from outlast.protocol.steps import StepCore
from outlast.train.comparing import CHECKSUM_MASK, Comparing, checksum
from outlast.train.conduct import Conduct
from outlast.train.exchange import Exchange
from outlast.train.gradients import Gradients
from outlast.train.records import Record
from outlast.train.saving import NOTHING_NAMED, Saving
from outlast.train.sums import NodeSum


class Stepping:
    """Everything is called under the lock."""

    def __init__(
        self,
        *,
        conduct: Conduct,
        exchange: Exchange,
        gradients: Gradients,
        saving: Saving | None,
        comparing: Comparing | None,
    ) -> None:
        self._conduct = conduct
        self._exchange = exchange
        self._gradients = gradients
        self._saving = saving
        self._comparing = comparing
        # The attempts, (view, step, trial), for which these have been done.
        self._assigned: tuple[int, int, int] | None = None
        self._contributed: tuple[int, int, int] | None = None

    @property
    def _steps(self) -> StepCore:
        return self._conduct.participant.steps

    def forget(self) -> None:
        """Nothing counts that has been done so far."""
        self._assigned = self._contributed = None

    def work(self, step: int) -> int | Record | None:
        """A shard to compute for this step, or its record; None if there is nothing to do for it."""
        steps = self._steps
        if steps.mode is not Mode.RUNNING or steps.step != step or not self._has_a_part(step):
            return None
        if self._assigned != self._attempt:
            self._assign(step)
        missing = self._gradients.missing()
        if missing:
            return missing[0]
        if self._contributed != self._attempt:
            self._contribute(step)
        return self._conduct.records.get(step)

    def contribute_nothing(self) -> None:
        """To the step after the last, so that others know that this replica holds the last."""
        steps = self._steps
        if steps.mode is not Mode.RUNNING or self._contributed == self._attempt:
            return
        self._contributed = self._attempt
        self._conduct.take_part()
        named = self._saving.named(steps.newest, last=True) if self._saving is not None else NOTHING_NAMED
        self._exchange.contribute_nothing(steps.step, steps.check(), *named)
        self._conduct.act(self._conduct.participant.contribute(time.monotonic()))

    def bucket(self, step: int, node: NodeSum, bucket: int) -> None:
        """A bucket of an own sum is there, in the middle of backward: send it ahead of the rest."""
        # It may have been evicted, or another view adopted, while it computed.
        first = (self._conduct.view.number, step, Trial.FIRST)
        attempt = self._assigned == first == self._attempt and self._exchange.in_view
        if attempt and self._steps.mode is Mode.RUNNING:
            self._exchange.bucket(step, node, bucket)
            self._conduct.settle()

    @property
    def _attempt(self) -> tuple[int, int, int]:
        return self._conduct.view.number, self._steps.step, self._steps.trial

    def _has_a_part(self, step: int) -> bool:
        """After the first trial, only who is called as a witness has something to do."""
        trial = self._steps.trial
        return trial == Trial.FIRST or (trial == Trial.HEARING and bool(self._exchange.court(step).asked))

    def _assign(self, step: int) -> None:
        self._assigned = self._attempt
        trial = self._steps.trial
        if trial == Trial.HEARING:
            self._gradients.ask(self._exchange.court(step).asked)
        else:
            if self._conduct.discredited:
                self._gradients.discard()
                self._conduct.discredited = False
            self._gradients.assign(self._exchange.plan.shards)
        self._conduct.take_part()

    def _contribute(self, step: int) -> None:
        self._contributed = self._attempt
        trial = self._steps.trial
        if trial == Trial.FIRST:
            self._contribute_first(step)
        else:
            self._exchange.testify(step, self._gradients.opinions())
            crash.reach("testify", step)
        # It may have been said for this thread that it computes; from here on it does not.
        self._conduct.enter(Phase.WAITING)
        self._conduct.act(self._conduct.participant.contribute(time.monotonic(), trial))

    def _contribute_first(self, step: int) -> None:
        wish = self._saving.wish(step) if self._saving is not None else 0
        if self._comparing is not None:
            chief = self._conduct.view.chief == self._conduct.core.replica
            due = self._saving is not None and self._saving.waits_for_comparison(self._comparing.verified)
            self._steps.due = self._comparing.wish(step, chief=chief) or wish == 1 or due
            members = len(self._conduct.view.members)
            self._steps.checksum = self._checksum() if members == 2 else 0
            self._steps.buffers = self._gradients.buffers_digest() if members > 1 else b""
            wary = members > 1 and self._steps.fork != NO_FORK
            self._steps.buffer_entries = self._gradients.buffer_entries() if wary else b""
        check = self._steps.check()
        named = self._saving.named(step - 1) if self._saving is not None else NOTHING_NAMED
        self._exchange.contribute(step, self._gradients.nodes(), self._steps.pending, wish, check, *named)
        crash.reach("scatter", step)

    def _checksum(self) -> int:
        """Of what this replica contributes to the step; see `protocol/recomputing.py`."""
        return sum(checksum(node.flat) for node in self._gradients.nodes()) & CHECKSUM_MASK
