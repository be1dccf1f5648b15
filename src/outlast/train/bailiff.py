"""What is said and counted of a judgement, and who is to be charged.

The court decides (`court.py`); the coordinator evicts. In between, people have to be told: who is accused of
what, which contributions did not count, and where nobody can say who is right. Every member says it, the
chief as a warning, so that one log is enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from outlast.protocol.hearing import Verdict, named
from outlast.protocol.views import Charge, View
from outlast.train.exchange import Exchange


class Bailiff:
    def __init__(
        self, exchange: Exchange, replica: int, seed: Callable[[], int], note: Callable[[int, str], None]
    ) -> None:
        """`seed` is the run's own, which may not be known before there is a state; `note` tells people."""
        self._exchange = exchange
        self._note = note
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
            self._note(
                logging.INFO,
                f"step {step}: {named(node)} of replica {self._exchange.plan.holder[node]} is not sane, and "
                f"replica {hearing.witnesses[node][0]} computes it again",
            )

    def _tell(self, view: View, step: int, verdict: Verdict, charges: list[Charge]) -> None:
        level = logging.WARNING if view.chief == self._replica else logging.INFO
        for charge in charges:
            member = view.member(charge.replica)
            where = f" at {member.address}" if member is not None and member.address else ""
            self._note(level, f"step {step}: replica {charge.replica}{where} is charged: {charge.reason}")
        named_out = sorted(self._exchange.round(step).named_out)
        if len(named_out) == len(view.shards) > 1:
            self._note(
                level,
                f"step {step}: all {len(named_out)} shards are left out. None was sane (not finite, or far "
                "larger than usual), and none when it was computed again: data or model is at fault, and "
                "nobody is blamed",
            )
            named_out = []
        for node in named_out:
            self._note(
                level,
                f"step {step}: {named(node)} is left out. It was not sane (not finite, or far larger than "
                f"usual) when replica {view.shards[node.lo]} computed it, and not when it was computed "
                "again: data or model is at fault, and nobody is blamed",
            )
        for what in verdict.undecided:
            self._note(level, f"step {step}: {what}")
