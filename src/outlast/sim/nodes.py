"""The cast: coordinators and agents, each a thin shell around its real protocol core.

A shell does for the core what sockets, disks and processes do in production, and nothing else. The replicas
themselves are in `replica`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.protocol import coordinator as coord
from outlast.protocol import election, supervision
from outlast.protocol.messages import Enlist, Message
from outlast.protocol.restarts import RestartPolicy
from outlast.protocol.supervision import Exit
from outlast.sim.calls import Caller
from outlast.sim.replica import ReplicaNode
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
        self.core = self._new_core()
        self._answer = self._handle
        self.callers: dict[Caller, None] = {}
        """Whoever is connected with it."""

    def _new_core(self) -> coord.CoordinatorCore:
        core = self._sim.cast.coordinator(self._sim.spec, self._sim.timing)
        core.gathers = self._sim.gathers
        return core

    def boot(self) -> None:
        self._sim.world.boot(self)
        self.callers.clear()
        self.core = self._new_core()
        self._answer = lambda event: self._handle(event)
        self._perform(self.core.start(self._sim.world.now))
        self._tick()

    def _tick(self) -> None:
        self._sim.world.after(self._sim.timing.tick_every_s, self, self._tick)
        self._handle(coord.Tick())

    def receive(self, sender: Caller, message: Message) -> None:
        self._handle(coord.Received(sender, message))

    def _handle(self, event: Any) -> None:
        self._perform(self.core.handle(event, self._sim.world.now))

    def _perform(self, actions: list[coord.Action]) -> None:
        sim, store = self._sim, self._sim.store
        for action in actions:
            match action:
                case coord.Send():
                    assert isinstance(action.to, Caller)
                    sim.network.datagram(self, action.to.node, action.to.receive, self, action.message)
                case coord.Publish():
                    sim.checkers.published(self.name, action.message)
                    for caller in self.callers:
                        sim.network.datagram(self, caller.node, caller.receive, self, action.message)
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
        self.call = self._new_call()
        self.running: dict[int, ReplicaNode] = {}

    def _new_core(self) -> supervision.AgentCore:
        spec, enlist = self._sim.spec, None
        if spec.is_placed:
            start = f"{self.name}/{self._boots}"
            enlist = Enlist(agent=self.name, start=start, home=self.name, room=spec.per_machine)
        return self._sim.cast.agent(
            agent=self.name,
            boot=self._boots if enlist is None else 0,
            replicas=self._replicas if enlist is None else (),
            timing=self._sim.timing,
            policy=PATIENT,
            enlist=enlist,
        )

    def _new_call(self) -> Caller:
        def begins() -> None:
            self._perform(self.core.beat(self._sim.world.now))

        return Caller(self._sim, self, self.receive, begins)

    def boot(self) -> None:
        self._sim.world.boot(self)
        self._boots += 1
        self.call.hang_up()
        self.core, self.call = self._new_core(), self._new_call()
        self.call.dial()
        self._perform(self.core.start(self._sim.world.now))
        self._tick()

    def crash(self) -> None:
        """Its replicas die with it: the kernel sees to that."""
        for replica in list(self.running.values()):
            replica.crash()
        self.running.clear()
        self._sim.world.crash(self)

    def _tick(self) -> None:
        self._sim.world.after(self._sim.timing.tick_every_s, self, self._tick)
        now = self._sim.world.now
        self.call.tick()
        self.core.sampled({number: node.sample(now) for number, node in self.running.items()}, now)
        self._perform(self.core.tick(now))

    def receive(self, message: Message) -> None:
        self._perform(self.core.received(message, self._sim.world.now))

    def child_exited(self, node: ReplicaNode, ending: Exit) -> None:
        """The kernel tells the parent at once (or when it wakes)."""
        self._sim.world.after(0.0005, self, self._reap, node, ending)

    def _reap(self, node: ReplicaNode, ending: Exit) -> None:
        self.running.pop(node.replica, None)
        # The progress page outlives its process, and is read once more.
        self.core.sampled({node.replica: node.sample(self._sim.world.now)}, self._sim.world.now)
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
                    self._sim.world.note(self.name, f"kills replica {action.replica}: {action.reason}")
                    self.running[action.replica].kill("was killed by its agent")
                case supervision.TellCoordinator():
                    self.call.tell(action.message)
                case supervision.JobEnded():
                    self._sim.world.note(self.name, f"hears that the job is over: {action.outcome.reason}")
                    for node in self.running.values():
                        node.crash()
                    self.running.clear()
                case _:
                    pass
