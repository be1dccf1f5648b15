"""One process of one replica: its two cores, its engine, its training thread, and how it can end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.protocol import member
from outlast.protocol.messages import Message, Phase, Register, Report
from outlast.protocol.participant import Action, Participant
from outlast.protocol.steps import StepCore
from outlast.protocol.supervision import Exit, Sample
from outlast.sim.world import Node

if TYPE_CHECKING:
    from outlast.sim.nodes import AgentNode
    from outlast.sim.simulation import Simulation

LEAVES_WITHIN_S = 1.0
"""A replica that has left keeps its connections this long, for peers that still need its last frames."""


class ReplicaNode(Node):
    def __init__(self, sim: Simulation, agent: AgentNode, replica: int, process: int) -> None:
        super().__init__(f"replica-{replica}")
        self.sim = sim
        self.agent = agent
        self.replica = replica
        self.process = process
        self.core = sim.cast.member(
            replica=replica, process=process, agent=agent.name, address="", timing=sim.timing
        )
        self.participant = Participant(self.core, self._begin_steps, sim.cast.saves)
        self.engine = sim.cast.engine(self, self.participant)
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

    def _begin_steps(self, replica: int) -> StepCore:
        core = self.sim.cast.steps(replica)
        if self.sim.compare_every:
            core.verifying = self.sim.cast.verifying()
        return core

    @property
    def step(self) -> int:
        return max(0, self.engine.trainer.applied)

    @property
    def starting(self) -> bool:
        return self._phase is Phase.STARTING

    @property
    def has_begun_to_leave(self) -> bool:
        return self.core.leaving

    def begin(self) -> None:
        self.begun = True
        self.engine.perform(self.participant.tell(self.sim.world.now))
        self._tick()

    def _tick(self) -> None:
        now = self.sim.world.now
        self.sim.world.after(self.sim.timing.beat_every_s, self, self._tick)
        self.engine.perform(self.participant.tick(now))
        self.engine.watch()

    def receive(self, message: Message) -> None:
        self.engine.perform(self.participant.received(message, self.sim.world.now))

    def receive_frame(self, incarnation: int, frame: member.Frame) -> None:
        """Frames are for one life. One that has not heard of its admission yet may be meant already."""
        if self.core.incarnation == incarnation or (
            self.core.incarnation == 0 and incarnation > self.core.past_incarnation
        ):
            self.engine.receive(incarnation, frame)

    def lost_connection(self, replica: int) -> None:
        self.engine.lost_connection(replica)
        self.engine.perform([])

    def perform(self, action: Action) -> None:
        """What concerns the process rather than its steps."""
        match action:
            case member.Tell():
                assert not isinstance(action.message, Register | Report) or self.up
                for coordinator in self.sim.coordinators:
                    self.sim.network.datagram(self, coordinator, coordinator.receive, self, action.message)
            case member.FencedOff():
                self.sim.world.note(self.name, f"is fenced: {action.reason}")
                self._end_life()

    def lose(self, reason: str) -> None:
        """This life cannot catch up any more."""
        self.sim.world.note(self.name, f"gives this life up: {reason}")
        self.sim.history.gives_up(self.engine)
        self._end_life()

    def _end_life(self) -> None:
        self.engine.over = True
        if self.core.leaving:
            self.sim.world.after(LEAVES_WITHIN_S, self, self._exit, Exit(how="has left"))
            return
        self.enter(Phase.STARTING)
        self.sim.world.after(self.sim.world.chance.uniform(0.0, 0.2), self, self._rejoin)

    def _rejoin(self) -> None:
        if not self.hanging:
            actions = self.participant.rejoin(self.sim.world.now)
            self.engine = self.sim.cast.engine(self, self.participant)
            self.engine.perform(actions)

    # How it ends.

    def finish(self) -> None:
        """It has left the loop of steps, as all do."""
        self.sim.world.note(self.name, f"has done all its steps, {self.step}")
        self.sim.truth.ends(self.engine)
        self.enter(Phase.DONE)

    def end(self) -> None:
        """The chief's script has come to its end."""
        self.sim.world.note(self.name, "has done all its work")
        self.sim.checkers.work_is_done()
        self._exit(Exit(how="has finished", clean=True))

    def _exit(self, ending: Exit) -> None:
        self.sim.mesh.ended(self, self.sim.replicas())
        self.sim.world.crash(self)
        self.agent.child_exited(self, ending)

    def kill(self, how: str) -> None:
        if self.up:
            self.crash()
            self.agent.child_exited(self, Exit(how=how, killed=True))

    def exit_early(self) -> None:
        """Something in it calls `os._exit(0)`, wherever it is. After the `with` block that is an end."""
        if self.engine.trainer.ending.closes:
            self.sim.checkers.work_is_done()
        self.crash()
        self.agent.child_exited(self, Exit(how="exited with status 0", clean=True))

    def crash(self) -> None:
        self.sim.world.crash(self)
        self.sim.mesh.died(self, [peer for peer in self.sim.replicas() if peer is not self])

    def leave(self) -> None:
        self.engine.perform(self.participant.set_leaving(self.sim.world.now))

    def hang(self) -> None:
        self.hanging = True

    # What its agent sees.

    def enter(self, phase: Phase, attempts_in: int | None = None, *, by_itself: bool = True) -> None:
        """What the training thread writes on its progress page; one that hangs writes nothing. The view is
        that of its latest attempt: who waits for a view to begin has not done its part in it."""
        if self.engine.trainer.ending.at_rest:
            phase = Phase.ASIDE
        view = self._phase_view if attempts_in is None else attempts_in
        waits_on = phase is Phase.WAITING and (phase, view, self.step) == (
            self._phase,
            self._phase_view,
            self._step,
        )
        if (not self.hanging or not by_itself) and not waits_on:
            self._phase, self._phase_since = phase, self.sim.world.now
            self._phase_view, self._step = view, self.step

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
            ended=self.engine.trainer.ending.begun,
            closes=self.engine.trainer.ending.closes,
        )
