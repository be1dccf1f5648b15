"""What the checker of steps takes for a broken promise, and what it does not."""

import pytest
from scripted import Scripted

from outlast.sim.replica import ReplicaNode


def cut(sim: Scripted, one: ReplicaNode, other: ReplicaNode) -> None:
    sim.network.cut(one.name, other.name)
    sim.mesh.sever(one, other)


@pytest.mark.parametrize("seed", range(5))
def test_one_who_learned_what_only_the_dead_have_made_is_no_measure_for_members(seed: int) -> None:
    """Both learn from the only member. One is made a member, and lacks a record that the other has been
    given when the one that made it dies: it makes another (seed 903248)."""
    sim = Scripted(3, seed=seed)
    sim.until(lambda: all(node.step > 3 for node in sim.replicas()))
    sim.process(1).kill("was killed by SIGKILL")
    sim.until(lambda: sim.agreed.learner(1) is not None and sim.process(1).steps.newest > 0)
    # It says in vain that it is ready, so it goes on learning.
    sim.cut_off(1, agent=False)
    sim.process(2).kill("was killed by SIGKILL")
    sim.until(lambda: sim.agreed.learner(2) is not None)
    sim.until(lambda: sim.agreed.member(2) is not None)
    old, promoted, learner = sim.process(0), sim.process(2), sim.process(1)
    cut(sim, old, promoted)
    sim.until(lambda: old.view.member(2) is not None and learner.steps.newest > promoted.steps.newest)
    old.kill("was killed by SIGKILL")
    # Until then it does not hear that its record is void.
    cut(sim, learner, promoted)
    void = learner.steps.newest
    sim.until(lambda: promoted.steps.newest >= void)
    for node in (old, learner):
        sim.network.heal(node.name, promoted.name)
        sim.mesh.heal(node.name, promoted.name)
    sim.reconnect(1)
    sim.all_train()
