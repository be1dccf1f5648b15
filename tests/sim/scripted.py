"""A simulated job in which nothing happens by chance but delays: a test says what goes wrong, and when.

A seed that broke a promise means something else after the next change of the protocol. Its story is told here
instead, by what has to have happened before the next fault: `until` runs the world to that point.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.protocol.views import JobSpec, View
from outlast.sim.doubts import Misfortune
from outlast.sim.keepers import Names
from outlast.sim.nodes import ANY_PROCESS, AgentNode, CoordinatorNode
from outlast.sim.replica import ReplicaNode
from outlast.sim.simulation import BACK_WITHIN_S, ENDLESS, Simulation

LOOK_EVERY_S = 0.001


class Scripted(Simulation):
    """Each replica on a machine of its own, one coordinator, and a vault that never fails."""

    def __init__(self, replicas: int, *, seed: int = 0, save_every: int = 1) -> None:
        super().__init__(seed)
        self.spec = JobSpec(name="scripted", replicas=replicas, shards=replicas)
        self.calm, self.last_step, self.compare_every = False, ENDLESS, 0
        self.network.loss = self.network.doubling = self.network.straggling = 0.0
        self.store.lost_answers = 0.0
        self.misfortune = Misfortune(seed, happens=False)
        self.names = Names(self, saves=False)
        self.vault.save_every = save_every
        self.vault.slowness_s, self.vault.failures = 0.01, 0.0
        self.coordinators = [CoordinatorNode(self, "coordinator-0")]
        self.agents = [AgentNode(self, f"agent-{i}", (i,)) for i in range(replicas)]
        for node in [*self.coordinators, *self.agents]:
            node.boot()

    @property
    def agreed(self) -> View:
        return self.store.document.view if self.store.document is not None else View()

    def process(self, replica: int) -> ReplicaNode:
        node = self.replica_node(replica)
        assert node is not None
        return node

    def runs(self, replica: int) -> bool:
        node = self.replica_node(replica)
        return node is not None and node.up

    def until(self, holds: Callable[[], bool], within_s: float = 20.0) -> None:
        """Whatever breaks a promise meanwhile is raised."""
        deadline = self.world.now + within_s
        while not holds():
            assert self.world.now < deadline, f"it does not come to that:\n{self.world.story(60)}"
            self.world.run_until(self.world.now + LOOK_EVERY_S)

    def cut_off(self, replica: int, *, agent: bool = True) -> None:
        """Neither it nor its agent reaches the coordinator; other replicas do."""
        self.excuse(replica, ANY_PROCESS, 1e9)
        for name in [f"replica-{replica}", *([f"agent-{replica}"] if agent else [])]:
            self.network.cut(name, "coordinator-0")

    def reconnect(self, replica: int) -> None:
        for name in (f"replica-{replica}", f"agent-{replica}"):
            self.network.heal(name, "coordinator-0")

    def cut_power(self) -> None:
        """All replicas die at once."""
        for node in self.replicas():
            node.kill("was killed by SIGKILL")

    def all_train(self) -> None:
        """Everybody comes back, and steps go on."""
        self.until(self._all_back, BACK_WITHIN_S)
        before = {node.replica: node.step for node in self.replicas()}
        self.until(lambda: self._all_moved(before), BACK_WITHIN_S)
