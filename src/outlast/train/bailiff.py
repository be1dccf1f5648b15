"""What is said and counted of a judgement, and who is to be charged.

The court decides (`court.py`); the coordinator evicts. In between, people have to be told: who is accused of
what, which contributions did not count, and where nobody can say who is right. Every member logs it, the
chief as a warning, so that one log is enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from outlast.protocol.hearing import Verdict, named
from outlast.protocol.views import Charge, View
from outlast.train.exchange import Exchange

log = logging.getLogger(__name__)


class Bailiff:
    def __init__(self, exchange: Exchange, replica: int, seed: Callable[[], int]) -> None:
        """`seed` is the run's own, which may not be known before there is a state."""
        self._exchange = exchange
        self._replica = replica
        self._seed = seed

    def judge(self, view: View, step: int, trial: int) -> tuple[bool, list[Charge]]:
        """Whether another trial is needed, unless somebody is charged: then the step has to wait."""
        found = self._exchange.judge(step, trial, self._seed())
        if isinstance(found, bool):
            if found:
                self._announce(step)
            return found, []
        charges = found.charges(view, step)
        self._tell(view, step, found, charges)
        assert self._exchange.screening is not None
        self._exchange.screening.count(blamed=len(charges))
        return found.changes, charges

    def _announce(self, step: int) -> None:
        hearing = self._exchange.court(step).hearing
        assert self._exchange.screening is not None
        self._exchange.screening.count(recomputed=len(hearing.witnesses))
        for node in sorted(hearing.doubted):
            log.info(
                "step %d: %s of replica %d is not sane, and replica %d computes it again",
                step,
                named(node),
                self._exchange.plan.holder[node],
                hearing.witnesses[node][0],
            )

    def _tell(self, view: View, step: int, verdict: Verdict, charges: list[Charge]) -> None:
        level = logging.WARNING if view.chief == self._replica else logging.INFO
        for charge in charges:
            member = view.member(charge.replica)
            where = f" at {member.address}" if member is not None and member.address else ""
            log.log(
                level,
                "step %d: replica %d%s is charged: %s",
                step,
                charge.replica,
                where,
                charge.reason,
            )
        named_out = sorted(self._exchange.round(step).named_out)
        if len(named_out) == len(view.shards) > 1:
            log.log(
                level,
                "step %d: all %d shards are left out. None was sane (not finite, or far larger than usual), "
                "and none when it was computed again: data or model is at fault, and nobody is blamed",
                step,
                len(named_out),
            )
            named_out = []
        for node in named_out:
            log.log(
                level,
                "step %d: %s is left out. It was not sane (not finite, or far larger than usual) when "
                "replica %d computed it, and not when it was computed again: data or model is at fault, and "
                "nobody is blamed",
                step,
                named(node),
                view.shards[node.lo],
            )
        for what in verdict.undecided:
            log.log(level, "step %d: %s", step, what)
