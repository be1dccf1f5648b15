"""The protocol keeps its promises under thousands of seeds, and one seed always tells the same story."""

import pytest

from outlast.sim.simulation import Simulation
from outlast.sim.sweep import sweep

SEEDS = 2_000
SOAK_SEEDS = 100_000


@pytest.mark.timeout(5400)
def test_promises_hold_under_every_seed(soak: bool) -> None:
    tally, violation = sweep(range(SOAK_SEEDS if soak else SEEDS))
    assert violation is None, f"seed {violation.seed}: {violation.violation}\n{violation.story}"
    assert tally.views > 2 * tally.seeds, "hardly anything happened: the faults do not bite"
    assert tally.commits > tally.seeds, "hardly anything was saved"
    assert tally.resumes > tally.seeds / 8, "hardly anybody went on from a checkpoint"


def test_a_seed_replays_exactly() -> None:
    first, second = Simulation(7), Simulation(7)
    assert first.run() == second.run()
    assert first.world.transcript == second.world.transcript
