"""A training thread that hangs is found within a few windows, wherever it does."""

import pytest
from scripted import Scripted

from outlast.protocol.messages import Phase

FOUND_WITHIN_S = 4.0
"""A window and some steps until it is seen, and a window until its agent has replaced it. The last net, a
view that is renewed because nobody moves, takes ten windows and more."""


def trains(sim: Scripted) -> bool:
    return len(sim.agreed.members) == sim.spec.replicas and all(n.step > 8 for n in sim.replicas())


def hang(sim: Scripted, replica: int) -> None:
    node = sim.process(replica)
    sim.excuse(replica, node.process, 1e9)
    node.hang()


def is_replaced(sim: Scripted, replica: int) -> bool:
    node = sim.replica_node(replica)
    return node is not None and node.up and not node.hanging


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hanging", [(1,), (0, 2)])
def test_one_that_hangs_while_it_waits_for_others_is_found(seed: int, hanging: tuple[int, ...]) -> None:
    """It has done its part of the step, whose result comes, and never looks at it (seed 502954)."""
    sim = Scripted(3, seed=seed)
    sim.until(lambda: trains(sim))
    sim.until(lambda: all(sim.process(r).sample(sim.world.now).phase is Phase.WAITING for r in hanging))
    for replica in hanging:
        hang(sim, replica)
    sim.until(lambda: all(is_replaced(sim, replica) for replica in hanging), FOUND_WITHIN_S)
    sim.all_train()


@pytest.mark.parametrize("seed", range(5))
def test_one_that_hangs_when_its_life_is_over_keeps_nobody_waiting(seed: int) -> None:
    """A view interrupts them, and all have to say what they hold. One life is over, and its thread is not
    there to begin another (seed 705216)."""
    sim = Scripted(3, seed=seed)
    sim.until(lambda: trains(sim))
    hang(sim, 1)
    sim.process(1).driver.end_life("it is tried")
    before = sim.agreed.number
    sim.mesh.tear(sim.process(0), sim.process(2))
    sim.until(lambda: sim.agreed.number > before)
    sim.until(lambda: is_replaced(sim, 1), FOUND_WITHIN_S)
    sim.all_train()
