"""One bit of one replica's state flips, and nobody sees it happen: it is found, undone, and leaves no trace.

The script flips it by itself, right after an update. `finish` compares the final state with that of a run
without faults, and audits the ledgers.
"""

import random
import re

import pytest
from training_run import TrainingRun

pytestmark = pytest.mark.timeout(300)

EVERY = 10
"""States are compared after so many steps."""


def found(run: TrainingRun) -> list[tuple[int, int, int]]:
    """What was said of states that differ: the step, and the steps that are void."""
    told = re.findall(
        r"states of replicas after step (\d+) differ: .* in the steps (\d+) to (\d+)", run.said("stderr")
    )
    return [(int(step), int(first), int(last)) for step, first, last in told]


def flip_one(replicas: int, replica: int, step: int, what: str = "parameter", *, steps: int = 60) -> None:
    flip = f"{replica}@{step}:{what}"
    with TrainingRun(replicas, "--verify", str(EVERY), "--flip", flip, steps=steps, pace_s=0.01) as run:
        run.finish()
        said = run.said("stdout")
        assert said.count("FLIPPED") == 1
        assert said.count("HASH") == replicas
        told = found(run)
        assert told, run.said()
        for seen, first, last in told:
            assert first <= step <= seen == last <= step + EVERY, f"flipped after step {step}: {told}"
        if replicas > 2:
            assert f"differ: replica {replica} (at " in run.said("stderr")


@pytest.mark.parametrize(
    ("replica", "step", "what"), [(1, 23, "parameter"), (0, 31, "moment"), (2, 58, "parameter")]
)
def test_the_one_that_differs_is_found_and_leaves_no_trace(replica: int, step: int, what: str) -> None:
    flip_one(3, replica, step, what)
