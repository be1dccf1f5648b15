"""The protocol keeps its promises under thousands of seeds, and one seed always tells the same story."""

from functools import partial

import pytest

from outlast.protocol.steps import StepCore
from outlast.sim.simulation import Cast, Simulation
from outlast.sim.sweep import sweep

SEEDS = 2_000
SEEDS_WITH_SURVEYS = 500
SOAK_SEEDS = 100_000


@pytest.mark.timeout(5400)
def test_promises_hold_under_every_seed(soak: bool) -> None:
    tally, violation = sweep(range(SOAK_SEEDS if soak else SEEDS))
    assert violation is None, f"seed {violation.seed}: {violation.violation}\n{violation.story}"
    assert tally.views > 2 * tally.seeds, "hardly anything happened: the faults do not bite"
    assert tally.commits > tally.seeds, "hardly anything was saved"
    assert tally.charges > tally.seeds / 4, "hardly anybody was found to be wrong"
    assert tally.left_out > tally.seeds, "hardly anything was left out"
    assert tally.resumes > tally.seeds / 8, "hardly anybody went on from a checkpoint"


@pytest.mark.timeout(5400)
def test_promises_hold_where_slices_are_surveyed(soak: bool) -> None:
    cast = Cast(steps=partial(StepCore, surveys=True, judges=True))
    tally, violation = sweep(range(SOAK_SEEDS if soak else SEEDS_WITH_SURVEYS), cast=cast)
    assert violation is None, f"seed {violation.seed}: {violation.violation}\n{violation.story}"
    assert tally.steps > tally.seeds


def test_a_seed_replays_exactly() -> None:
    first, second = Simulation(7), Simulation(7)
    assert first.run() == second.run()
    assert first.world.transcript == second.world.transcript
