"""One process of one replica: its driver, its training thread, and how it can end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.protocol.deeds import Setup
from outlast.protocol.driver import Driver
from outlast.protocol.header import Header
from outlast.protocol.lines import Line
from outlast.protocol.messages import Message, Phase
from outlast.protocol.participant import Participant
from outlast.protocol.steps import StepCore
from outlast.protocol.supervision import Exit, Sample
from outlast.protocol.views import Member, View
from outlast.sim.calls import Caller
from outlast.sim.copies import Copies
from outlast.sim.outlet import SimOutlet
from outlast.sim.thread import Thread
from outlast.sim.world import Node

if TYPE_CHECKING:
    from outlast.sim.nodes import AgentNode
    from outlast.sim.simulation import Simulation

LEAVES_WITHIN_S = 1.0
"""A replica that has left keeps its connections this long, for peers that still need its last frames."""


class ReplicaNode(Node):
    def __init__(self, sim: Simulation, agent: AgentNode, replica: int, process: int) -> None:
        # Where replicas are moved, an earlier process may still be there, on a machine that is cut off.
        where = f"@{agent.name}" if sim.spec.is_placed else ""
        super().__init__(f"replica-{replica}{where}")
        self.sim = sim
        self.agent = agent
        self.replica = replica
        self.process = process
        self.begun = False
        """Whether it has asked to take part."""
        self.hanging = False
        self.wrong_until = 0.0
        """Until then this process computes wrong numbers."""
        self._phase = Phase.STARTING
        self._phase_since = sim.world.now
        self._phase_view = 0
        self._step = 0
        self._paused_since: float | None = None
        cast = sim.cast
        self.core = cast.member(
            replica=replica, process=process, agent=agent.name, address="", timing=sim.timing
        )
        self.doubts = cast.doubts(self)
        self.saver = cast.saver(self)
        self.keeper = cast.keeper(self)
        outlet = SimOutlet(self)
        self.driver: Driver = cast.driver(
            Setup(
                member=self.core,
                timing=sim.timing,
                steps=self._begin_steps,
                saves=cast.saves,
                life=cast.life,
                lines=cast.lines,
                inbox=cast.inbox,
                shadow=sim.spec.is_shadow(replica),
            ),
            bulk=cast.bulk(self),
            outlet=outlet,
            saves=self.saver,
            copies=Copies(self) if sim.compare_every else None,
            now=sim.world.now,
        )
        self.call = Caller(sim, self, self.receive, lambda: self.driver.tell(self.sim.world.now))
        self.driver.watch = outlet.watch
        self.thread = Thread(self)

    def _begin_steps(self, replica: int) -> StepCore:
        core = self.sim.cast.steps(replica)
        if self.sim.compare_every:
            core.verifying = self.sim.cast.verifying()
        return core

    @property
    def participant(self) -> Participant:
        return self.driver.participant

    @property
    def steps(self) -> StepCore:
        return self.driver.steps

    @property
    def view(self) -> View:
        return self.driver.view

    @property
    def me(self) -> Member:
        return Member(self.replica, self.core.incarnation)

    @property
    def over(self) -> bool:
        """Whether the present life is over."""
        return self.driver.life.over is not None

    @property
    def trains(self) -> bool:
        """Whether this life holds the training state, as a member."""
        return not self.over and self.core.is_member and not self.core.catching_up

    @property
    def step(self) -> int:
        return max(0, self.driver.applied)

    @property
    def starting(self) -> bool:
        return self._phase is Phase.STARTING

    @property
    def has_begun_to_leave(self) -> bool:
        return self.core.leaving

    # What happens to it.

    def begin(self) -> None:
        self.begun = True
        self.call.dial()
        self.thread.wake()
        self._tick()

    def _tick(self) -> None:
        self.sim.world.after(self.sim.timing.beat_every_s, self, self._tick)
        self.call.tick()
        self.driver.tick(self.sim.world.now)

    def receive(self, message: Message) -> None:
        self.driver.received(message, self.sim.world.now)

    def connected(self, line: Line) -> None:
        if line.peer.replica in self.driver.life.broken - self.driver.life.returned:
            for replica in (self.replica, line.peer.replica):
                self.sim.returned_at[replica] = self.sim.world.now
        self.driver.connected(line, self.sim.world.now)

    def lost(self, line: Line, why: str) -> None:
        self.driver.lost(line, why, self.sim.world.now)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        life = self.driver.life
        if life.over is None and life.post.lines.takes(line, header.view):
            self.sim.checkers.counts(self, line, header)
        self.driver.arrived(line, header, payload, self.sim.world.now)

    # How it ends.

    def finish(self) -> None:
        """It has left the loop of steps, as all do."""
        self.sim.world.note(self.name, f"has done all its steps, {self.step}")
        self.sim.truth.ends(self)
        self.enter(Phase.DONE)

    def end(self) -> None:
        """The chief's script has come to its end."""
        self.sim.world.note(self.name, "has done all its work")
        self.sim.checkers.work_is_done()
        self._exit(Exit(how="has finished", clean=True))

    def leaves(self) -> None:
        """A view has let it go."""
        self.sim.world.after(LEAVES_WITHIN_S, self, self._exit, Exit(how="has left"))

    def gives_up_staying(self) -> None:
        self.sim.world.note(self.name, "has ended, and nothing to give to others any more")
        self._exit(Exit(how="has ended", clean=True))

    def _exit(self, ending: Exit) -> None:
        self.call.hang_up()
        self.sim.mesh.ended(self)
        self.sim.world.crash(self)
        self.agent.child_exited(self, ending)

    def kill(self, how: str) -> None:
        if self.up:
            self.crash()
            self.agent.child_exited(self, Exit(how=how, killed=True))

    def exit_early(self) -> None:
        """Something in it calls `os._exit(0)`, wherever it is. After the `with` block that is an end."""
        if self.thread.ending.closes:
            self.sim.checkers.work_is_done()
        self.crash()
        self.agent.child_exited(self, Exit(how="exited with status 0", clean=True))

    def crash(self) -> None:
        self.call.hang_up()
        self.sim.world.crash(self)
        self.sim.mesh.died(self)

    def leave(self) -> None:
        self.driver.leave(self.sim.world.now)

    def hang(self) -> None:
        self.hanging = True

    # What its agent sees.

    def enter(self, phase: Phase) -> None:
        """What the training thread writes on its progress page, or is written for it; not once it is done."""
        if self._phase is not Phase.DONE and (not self.hanging or phase is Phase.COMPUTING):
            self._phase, self._phase_since = phase, self.sim.world.now

    def take_part(self, view: int) -> None:
        if not self.hanging:
            self._phase_view, self._phase_since = view, self.sim.world.now

    def advance(self, step: int) -> None:
        self._step, self._phase_since = step, self.sim.world.now

    def sample(self, now: float) -> Sample:
        if self.paused and self._paused_since is None:
            self._paused_since = now
        if not self.paused:
            self._paused_since = None
        return Sample(
            incarnation=self.core.incarnation,
            view=self._phase_view,
            step=self._step,
            phase=self._phase,
            quiet_s=now - self._phase_since,
            stopped_s=now - self._paused_since if self._paused_since is not None else 0.0,
            joined=self.begun,
            ended=self.thread.ending.begun,
            closes=self.thread.ending.closes,
        )
