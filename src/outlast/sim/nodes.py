"""The cast: coordinators, agents and replicas, each a thin shell around its real protocol core.

A shell does for the core what sockets, disks and processes do in production, and nothing else. The replicas
run a stand-in for training, a lock-step barrier: every member sends its step to all others of its view and
goes on when it has heard from each; a member that is a step behind takes over the step of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlast.protocol import coordinator as coord
from outlast.protocol import election, member, supervision
from outlast.protocol.messages import Message, Phase, Register, Report
from outlast.protocol.restarts import RestartPolicy
from outlast.protocol.supervision import AgentCore, Exit, Sample
from outlast.sim.world import Node

if TYPE_CHECKING:
    from outlast.sim.simulation import Simulation

ANY_PROCESS = 0
"""Processes are numbered from 1; this stands for whichever process a replica has."""

PATIENT = RestartPolicy(limit=10**6, limit_unjoined=10**6, longest_delay_s=0.5)


class CoordinatorNode(Node):
    def __init__(self, sim: Simulation, name: str) -> None:
        super().__init__(name)
        self._sim = sim
        self.core = sim.cast.coordinator(sim.spec, sim.timing)
        self._answer = self._handle

    def boot(self) -> None:
        self._sim.world.boot(self)
        self.core = self._sim.cast.coordinator(self._sim.spec, self._sim.timing)
        self._answer = lambda event: self._handle(event)
        self._perform(self.core.start(self._sim.world.now))
        self._tick()

    def _tick(self) -> None:
        self._sim.world.after(self._sim.timing.tick_every_s, self, self._tick)
        self._handle(coord.Tick())

    def receive(self, sender: Node, message: Message) -> None:
        self._handle(coord.Received(sender, message))

    def _handle(self, event: Any) -> None:
        self._perform(self.core.handle(event, self._sim.world.now))

    def _perform(self, actions: list[coord.Action]) -> None:
        sim, store = self._sim, self._sim.store
        for action in actions:
            match action:
                case coord.Send():
                    assert isinstance(action.to, AgentNode | ReplicaNode)
                    sim.network.datagram(self, action.to, action.to.receive, action.message)
                case coord.Publish():
                    sim.checkers.published(self.name, action.message)
                    for peer in sim.peers():
                        sim.network.datagram(self, peer, peer.receive, action.message)
                case coord.Commit():
                    store.commit(self, action, self._answer)
                case coord.Load():
                    store.load(self, self._answer)
                case election.Campaign():
                    store.campaign(self, self._answer)
                case election.Renew():
                    store.renew(self, self.core.election.term, self._answer)
                case election.Watch():
                    store.watch(self, action.after, self._answer)


class AgentNode(Node):
    def __init__(self, sim: Simulation, name: str, replicas: tuple[int, ...]) -> None:
        super().__init__(name)
        self._sim = sim
        self._replicas = replicas
        self._boots = 0
        self.core = self._new_core()
        self.running: dict[int, ReplicaNode] = {}

    def _new_core(self) -> AgentCore:
        return AgentCore(
            agent=self.name,
            boot=self._boots,
            replicas=self._replicas,
            timing=self._sim.timing,
            policy=PATIENT,
        )

    def boot(self) -> None:
        self._sim.world.boot(self)
        self._boots += 1
        self.core = self._new_core()
        self._perform(self.core.start(self._sim.world.now))
        self._tick()

    def crash(self) -> None:
        """Its replicas die with it: the kernel sees to that."""
        for replica in list(self.running.values()):
            self._sim.world.crash(replica)
        self.running.clear()
        self._sim.world.crash(self)

    def _tick(self) -> None:
        self._sim.world.after(self._sim.timing.tick_every_s, self, self._tick)
        now = self._sim.world.now
        self.core.sampled({number: node.sample(now) for number, node in self.running.items()}, now)
        self._perform(self.core.tick(now))

    def receive(self, message: Message) -> None:
        self._perform(self.core.received(message, self._sim.world.now))

    def child_exited(self, node: ReplicaNode, ending: Exit) -> None:
        """The kernel tells the parent at once (or when it wakes)."""
        self._sim.world.after(0.0005, self, self._reap, node, ending)

    def _reap(self, node: ReplicaNode, ending: Exit) -> None:
        self.running.pop(node.replica, None)
        self._perform(self.core.exited(node.replica, node.process, ending, self._sim.world.now))

    def _perform(self, actions: list[supervision.AgentAction]) -> None:
        for action in actions:
            match action:
                case supervision.StartReplica():
                    node = ReplicaNode(self._sim, self, action.replica, action.process)
                    self.running[action.replica] = node
                    delay = self._sim.world.chance.uniform(0.01, 0.3)
                    self._sim.world.boot(node)
                    self._sim.world.after(delay, node, node.begin)
                case supervision.KillReplica():
                    self.running[action.replica].kill("was killed by its agent")
                case supervision.TellCoordinator():
                    for coordinator in self._sim.coordinators:
                        self._sim.network.datagram(
                            self, coordinator, coordinator.receive, self, action.message
                        )
                case supervision.JobEnded():
                    self._sim.world.note(self.name, f"hears that the job is over: {action.outcome.reason}")
                    for node in self.running.values():
                        self._sim.world.crash(node)
                    self.running.clear()
                case _:
                    pass


@dataclass
class Barrier:
    """The stand-in for a training step within one view."""

    attempt: int = 0
    sent: bool = False
    heard: dict[int, dict[int, int]] = field(default_factory=dict)


class ReplicaNode(Node):
    """One process of one replica."""

    def __init__(self, sim: Simulation, agent: AgentNode, replica: int, process: int) -> None:
        super().__init__(f"replica-{replica}")
        self._sim = sim
        self.agent = agent
        self.replica = replica
        self.process = process
        self.core = sim.cast.member(
            replica=replica, process=process, agent=agent.name, address="", timing=sim.timing
        )
        self.step = 0
        self.hanging = False
        self._barrier = Barrier()
        self._phase = Phase.STARTING
        self._phase_since = sim.world.now
        self._phase_view = 0
        self._paused_since: float | None = None

    def begin(self) -> None:
        self._perform(self.core.tell(self._sim.world.now))
        self._tick()

    def _tick(self) -> None:
        self._sim.world.after(self._sim.timing.beat_every_s, self, self._tick)
        cut_off = self._sim.unreachable(self)
        actions = self.core.set_unreachable(cut_off, self._sim.world.now) if self.core.is_member else []
        self._perform(actions + self.core.tick(self._sim.world.now))

    def kill(self, how: str) -> None:
        if self.up:
            self._sim.world.crash(self)
            self.agent.child_exited(self, Exit(how=how, killed=True))

    def sample(self, now: float) -> Sample:
        if self.paused and self._paused_since is None:
            self._paused_since = now
        if not self.paused:
            self._paused_since = None
        return Sample(
            incarnation=self.core.incarnation,
            view=self._phase_view,
            step=self.step,
            phase=self._phase,
            quiet_s=now - self._phase_since,
            stopped_s=now - self._paused_since if self._paused_since is not None else 0.0,
        )

    def receive(self, message: Message) -> None:
        self._perform(self.core.received(message, self._sim.world.now))

    def receive_frame(self, frame: member.Frame) -> None:
        self._perform(self.core.frame(frame))

    def _enter(self, phase: Phase) -> None:
        """What the training thread writes on its progress page; one that hangs writes nothing."""
        if not self.hanging:
            self._phase, self._phase_since = phase, self._sim.world.now
            self._phase_view = self.core.view.number

    def _perform(self, actions: list[member.MemberAction]) -> None:
        sim = self._sim
        for action in actions:
            match action:
                case member.Tell():
                    assert not isinstance(action.message, Register | Report) or self.up
                    for coordinator in sim.coordinators:
                        sim.network.datagram(self, coordinator, coordinator.receive, self, action.message)
                case member.Adopt():
                    sim.checkers.adopted(self, action.view)
                    self._adopt()
                case member.Deliver():
                    sim.checkers.delivered(self, action.frame)
                    assert isinstance(action.frame.body, tuple)
                    attempt, step = action.frame.body
                    self._barrier.heard.setdefault(attempt, {})[action.frame.sender] = step
                    self._try_complete()
                case member.FencedOff():
                    sim.world.note(self.name, f"is fenced: {action.reason}")
                    self.step = 0
                    self._enter(Phase.STARTING)
                    sim.world.after(sim.world.chance.uniform(0.0, 0.2), self, self._rejoin)
                case member.JobOver():
                    pass

    def _rejoin(self) -> None:
        if self.core.fenced and not self.hanging:
            self._perform(self.core.rejoin(self._sim.world.now))

    def _adopt(self) -> None:
        self._barrier = Barrier()
        if self.hanging:
            return
        if self.core.is_member:
            self._compute()
        elif not self.core.ready:
            self._sim.world.after(self._sim.world.chance.uniform(0.0, 0.3), self, self._caught_up)

    def _caught_up(self) -> None:
        if self.core.admitted and not self.core.is_member and not self.core.ready:
            self._perform(self.core.set_ready(self._sim.world.now))

    def _compute(self) -> None:
        self._enter(Phase.COMPUTING)
        barrier = self._barrier
        self._sim.world.after(self._sim.world.chance.uniform(0.02, 0.12), self, self._computed, barrier)

    def _computed(self, barrier: Barrier) -> None:
        if barrier is not self._barrier or not self.core.is_member or self.hanging:
            return
        view = self.core.view
        barrier.sent = True
        barrier.heard.setdefault(barrier.attempt, {})[self.replica] = self.step
        self._enter(Phase.WAITING)
        for peer in view.members:
            node = self._sim.replica_node(peer.replica)
            if node is not None and node is not self:
                frame = member.Frame(
                    self.replica, self.core.incarnation, view.number, (barrier.attempt, self.step)
                )
                self._sim.network.frame(self, node, node.receive_frame, frame)
        self._try_complete()

    def _try_complete(self) -> None:
        barrier = self._barrier
        heard = barrier.heard.get(barrier.attempt, {})
        members = [entry.replica for entry in self.core.view.members]
        if self.hanging or not barrier.sent or not self.core.is_member:
            return
        if any(replica not in heard for replica in members):
            return
        self.step = max(heard[replica] for replica in members) + 1
        self._sim.checkers.completed(self, self.step)
        if self.step >= self._sim.last_step:
            self._sim.world.note(self.name, f"has done all its work, step {self.step}")
            self._sim.world.crash(self)
            self.agent.child_exited(self, Exit(how="has finished", clean=True))
            return
        del barrier.heard[barrier.attempt]
        barrier.attempt += 1
        barrier.sent = False
        self._compute()

    @property
    def starting(self) -> bool:
        return self._phase is Phase.STARTING

    def hang(self) -> None:
        self.hanging = True
