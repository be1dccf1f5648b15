"""The simulator is only worth something if it finds bugs: each planted mistake is caught."""

import re

import pytest
from mutants import MUTANTS

from outlast.sim.sweep import first_violation

SEEDS = 1000
BEGIN_WITH = {
    "no second look after a claim": 500,
    "a claim that counts at once": 500,
    "a beginning that leaves no trace": 100,
    "a claim that comes too late": 5300,
    "void states kept for a name": 350,
    "heirs of the final state passed over": 350,
    "a hang that looks like a wait": 150,
}
"""Mistakes that show in few worlds only are looked for where they are known to."""

CPU_LIMIT_S = 1200
"""A search ends with its last seed, found or not; this is for a simulation that never ends."""


@pytest.mark.timeout(5400)
@pytest.mark.cpu_limit(CPU_LIMIT_S)
@pytest.mark.parametrize("mistake", MUTANTS)
def test_planted_mistake_is_caught(mistake: str) -> None:
    cast, complaint = MUTANTS[mistake]
    first = BEGIN_WITH.get(mistake, 0)
    caught = first_violation(range(first, first + SEEDS), cast)
    assert caught is not None, f"{SEEDS} seeds did not notice: {mistake}"
    assert caught.violation is not None
    assert re.search(complaint, caught.violation), f"caught for another reason: {caught.violation}"
    assert f"CHECKER        {caught.violation}" in caught.story
