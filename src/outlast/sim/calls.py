"""Connections to coordinators: each agent and each replica has one, and looks for the one that leads.

A call is dialled, which takes a moment, and fails at once if nobody is there, or after some time if no answer
comes. It ends when the coordinator's process does, and is hung up when that one does not lead or says
nothing. Who is asked is decided by the same `Finder` as in training. What is said over it may still be lost,
doubled or overtaken, which is worse than what connections do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.protocol.messages import Message
from outlast.sim.world import Node

if TYPE_CHECKING:
    from outlast.sim.nodes import CoordinatorNode
    from outlast.sim.simulation import Simulation

ASK_AGAIN_S = 0.05


class Caller:
    """One process's connection, and who is at its other end."""

    def __init__(
        self, sim: Simulation, node: Node, hears: Callable[[Message], None], begins: Callable[[], None]
    ) -> None:
        """`begins`: there is a connection, and all that there is to say is said over it."""
        self.node = node
        self._sim = sim
        self._hears = hears
        self._begins = begins
        names = [coordinator.name for coordinator in sim.coordinators]
        self._finder = sim.cast.finder(names, sim.timing, sim.world.drawn("calls").random)
        self._dialled = 0
        self._with: CoordinatorNode | None = None
        self._life = 0

    def dial(self, rest_s: float = 0.0) -> None:
        self.hang_up()
        self._dialled += 1
        delay_s = self._sim.world.drawn("calls").uniform(0.0005, 0.005)
        until = self._sim.world.now + rest_s + self._finder.dial_within_s
        self._sim.world.after(rest_s + delay_s, self.node, self._answered, self._dialled, until)

    def tell(self, message: Message) -> None:
        if self._with is not None:
            self._sim.network.datagram(self.node, self._with, self._with.receive, self, message)

    def tick(self) -> None:
        """Look whether the other end is still there."""
        ended = self._with is not None and self._with.life != self._life
        if ended or self._finder.is_silent(self._sim.world.now):
            self.dial(self._finder.failed())

    def receive(self, sender: CoordinatorNode, message: Message) -> None:
        if self._with is not sender:
            return
        rest_s = self._finder.heard(message, self._sim.world.now)
        if rest_s is not None:
            self.dial(rest_s)
        else:
            self._hears(message)

    def _answered(self, dialled: int, until: float) -> None:
        if dialled != self._dialled:
            return
        there = next(one for one in self._sim.coordinators if one.name == self._finder.where)
        reaches = self._sim.network.reaches
        both_ways = reaches(self.node.name, there.name) and reaches(there.name, self.node.name)
        if not there.up or self._sim.world.now >= until:
            self.dial(self._finder.failed())
        elif there.paused or not both_ways:
            # It may wake, or be reached again, before the caller loses patience.
            self._sim.world.after(ASK_AGAIN_S, self.node, self._answered, dialled, until)
        else:
            self._with, self._life = there, there.life
            there.callers[self] = None
            self._finder.connected(self._sim.world.now)
            self._begins()

    def hang_up(self) -> None:
        if self._with is not None:
            self._with.callers.pop(self, None)
            self._with = None
