"""Copies of states that are compared, in the simulator: when one is due, and what is said of a difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.protocol.step_words import BLANK, Differ, Digest, Dropped, GoBack, Verified
from outlast.protocol.views import View

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode


class Report:
    """For people, of whom there are none here."""

    what = "something"

    def first(self, _: View) -> str:
        return "states differ"

    def ending(self, _: int | None) -> str:
        return "states differ again"

    def astray(self, replica: int, times: int, step: int) -> str:
        return f"replica {replica} has another state after step {step}, {times} times in a row"


class Copies:
    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._due = BLANK
        self.chosen = self.verified = BLANK

    def do(self, action: Digest | Verified | Dropped | GoBack) -> None:
        match action:
            case Digest():
                self._due = self.chosen = action.step
            case Verified():
                self.verified = max(self.verified, action.step)
                self._node.keeper.verified(action.step)
            case GoBack():
                self._due = BLANK
                self.chosen = self.verified = action.fork.step
            case Dropped():
                pass

    def wish(self, step: int, *, chief: bool) -> bool:  # noqa: ARG002 - all want it alike.
        return self._node.sim.is_due(step)

    def due(self, applied: int) -> int | None:
        if self._due == BLANK or self._due > applied:
            return None
        step, self._due = self._due, BLANK
        return step

    def report(self, _: Differ) -> Report:
        return Report()

    def begin_anew(self) -> None:
        self._due = self.chosen = self.verified = BLANK
        self._node.thread.copies.clear()
