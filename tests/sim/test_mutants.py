"""The simulator is only worth something if it finds bugs: each planted mistake is caught."""

import pytest
from mutants import MUTANTS

from outlast.sim.sweep import first_violation

SEEDS = 1000


@pytest.mark.parametrize("mistake", MUTANTS)
def test_planted_mistake_is_caught(mistake: str) -> None:
    caught = first_violation(range(SEEDS), MUTANTS[mistake])
    assert caught is not None, f"{SEEDS} seeds did not notice: {mistake}"
    assert "CHECKER" in caught.story
    print(f"{mistake}: seed {caught.seed}: {caught.violation}")
