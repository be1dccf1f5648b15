"""One bit of one replica's state flips, and nobody sees it happen: it is found, undone, and leaves no trace.

The script flips it by itself, right after an update. `finish` compares the final state with that of a run
without faults, and audits the ledgers.
"""

import random
import re
from pathlib import Path

import pytest
from training_run import TrainingRun

from outlast.state.storage.opening import open_storage
from outlast.state.vault.vault import Vault
from outlast.train.audit import merge_ledgers

EVERY = 10
"""States are compared after so many steps."""

STEPS = 60


def found(run: TrainingRun) -> list[tuple[int, int, int]]:
    """What was found of states that differ: the step, and the steps that are void. It is what members have
    charged: the chief also says it, unless it hears of the view that follows before it finds out itself."""
    told = re.findall(
        r"step (\d+): (?:its state differs|the states of members differ)[^;]*; all go back to step (\d+)",
        run.views(),
    )
    return [(int(step), int(back) + 1, int(step)) for step, back in told]


def accused(run: TrainingRun, *, by_majority: bool, what: str) -> set[int]:
    """Whom members have charged."""
    found = f"its (?:{what})" if by_majority else "it was wrong here"
    return {int(r) for r in re.findall(rf"replica (\d+) of agent-\d+, step \d+: {found}", run.views())}


def flip_one(replicas: int, replica: int, step: int, what: str, *more: str, pace_s: float = 0.01) -> None:
    flip = f"{replica}@{step}:{what}"
    options = ("--verify", str(EVERY), "--flip", flip, *more)
    with TrainingRun(replicas, *options, steps=STEPS, pace_s=pace_s) as run:
        run.finish()
        said = run.said("stdout")
        assert said.count("FLIPPED") == 1
        # The one that was evicted may come back too late for the end.
        assert said.count("HASH") in (replicas - 1, replicas)
        told = found(run)
        assert told, run.said()
        for seen, first, last in told:
            assert first <= step <= seen == last <= step + EVERY, f"flipped after step {step}: {told}"
        assert merge_ledgers(sorted(run.ledgers.glob("*.ledger"))).void_steps > 0 or step > STEPS - EVERY
        assert accused(run, by_majority=replicas > 2, what="state") == {replica}, run.views()


@pytest.mark.parametrize(("replica", "step", "what"), [(1, 23, "parameter"), (2, 58, "moment")])
def test_the_one_that_differs_is_found_and_leaves_no_trace(replica: int, step: int, what: str) -> None:
    flip_one(3, replica, step, what)


def test_of_two_the_wrong_one_is_found_by_doing_the_steps_again() -> None:
    flip_one(2, 0, 30, "moment")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_every_flip_is_found(seed: int) -> None:
    rng = random.Random(seed)
    replicas = rng.choice([2, 3, 4])
    flip_one(replicas, rng.randrange(replicas), rng.randrange(1, STEPS), rng.choice(["parameter", "moment"]))


def flip_a_statistic(replicas: int, replica: int, step: int) -> None:
    """Between two comparisons: by the next one it would have become a part of everybody's mean."""
    options = ("--verify", str(EVERY), "--flip", f"{replica}@{step}:statistic")
    with TrainingRun(replicas, *options, steps=STEPS, pace_s=0.01) as run:
        run.finish()
        said, errors = run.said("stdout"), run.said("stderr")
        assert said.count("FLIPPED") == 1
        # Where the state itself was being compared, and its digest is quick, that is what they differ in.
        begun, after = r"with which replicas begin step (\d+) differ", r"replicas after step (\d+) differ"
        seen = {int(k) for k in re.findall(begun, errors)} | {int(k) + 1 for k in re.findall(after, errors)}
        seen |= {int(k) + 1 for k in re.findall(r"step (\d+): (?:its|the) (?:buffers|states?)", run.views())}
        assert seen == {step + 1}, errors
        assert accused(run, by_majority=replicas > 2, what="buffers|state") == {replica}, run.views()


@pytest.mark.parametrize(("replicas", "replica", "step"), [(3, 1, 25), (2, 0, 34)])
def test_a_flip_in_statistics_of_batch_norm_enters_no_step(replicas: int, replica: int, step: int) -> None:
    flip_a_statistic(replicas, replica, step)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_every_flip_in_statistics_is_found(seed: int) -> None:
    rng = random.Random(seed)
    replicas = rng.choice([2, 3, 4])
    flip_a_statistic(replicas, rng.randrange(replicas), rng.randrange(1, STEPS))


@pytest.mark.soak
def test_a_step_that_is_done_again_in_another_view_says_what_it_begins_with() -> None:
    """One dies in the step that another begins with wrong buffers: those who are left do it again."""
    options = ("--verify", str(EVERY), "--flip", "1@25:statistic", "--crash", "forward@26:0")
    with TrainingRun(3, *options, steps=STEPS, pace_s=0.05) as run:
        run.wait_for_life(0, 2)
        run.finish()
        assert "FLIPPED" in run.said("stdout")
        assert "with which replicas begin step 26 differ" in run.said("stderr")


def test_a_flip_in_the_last_state_is_found_before_the_script_has_it() -> None:
    flip_one(2, 1, STEPS, "parameter")


@pytest.mark.timeout(1800)
def test_a_clean_run_raises_no_alarm(soak: bool) -> None:
    steps = 10_000 if soak else 200
    with TrainingRun(3, "--verify", "1", steps=steps, pace_s=0) as run:
        near = steps - 100
        run.wait_until(f"step {near}", lambda: max(run.steps().values(), default=0) >= near, timeout_s=1500)
        run.finish()
        assert "silent corruption" not in run.said("stderr")


def test_deaths_around_a_flip_leave_no_trace_and_raise_no_alarm_of_their_own() -> None:
    """One dies before, and comes back without a copy to go back to; one dies while all go back."""
    options = ("--verify", "5", "--flip", "1@40:parameter", "--crash", "forward@20:0")
    with TrainingRun(3, *options, steps=150, pace_s=0.05) as run:
        run.wait_for_life(0, 2)
        run.wait_until("a flip is found", lambda: bool(found(run)))
        run.kill(2)
        run.wait_for_members({0, 1, 2})
        run.finish()
        assert "FLIPPED" in run.said("stdout")
        assert {seen for seen, *_ in found(run)} <= set(range(40, 51)), run.said("stderr")


def saved(place: Path) -> dict[int, list[str]]:
    """Step → the hashes of the tensors that were saved."""
    vault = Vault(open_storage(str(place)))
    manifests = [vault.read_manifest(name) for name in vault.trunk()]
    return {manifest.step: [chunk.hash for chunk in manifest.chunks] for manifest in manifests}


def test_nothing_wrong_is_ever_saved(tmp_path: Path) -> None:
    clean, flipped = tmp_path / "clean", tmp_path / "flipped"
    with TrainingRun(3, "--checkpoints", str(clean), "--every", "5", steps=STEPS, pace_s=0.02) as run:
        run.finish()
    options = ("--checkpoints", str(flipped), "--every", "5")
    flip_one(3, 1, 51, "parameter", *options, pace_s=0.02)
    right, now = saved(clean), saved(flipped)
    assert right.keys() & now.keys() >= {STEPS}
    for step in right.keys() & now.keys():
        assert now[step] == right[step], f"step {step}"
