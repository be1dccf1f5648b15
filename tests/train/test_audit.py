import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.train.audit import PROBLEMS_SHOWN, merge_ledgers
from outlast.train.ledger import Ledger
from outlast.train.sampling import SampleOrder

ORDER = SampleOrder(length=10, global_batch=4)
SHARDS = 3
PASS = ORDER.steps_per_pass


def record(
    ledgers: dict[int, Ledger], steps: range, *, view: int = 1, order: SampleOrder = ORDER, silent: int = -1
) -> None:
    """Each replica writes its part of these steps, shards dealt out in turn; one may die before it does."""
    replicas = sorted(ledgers)
    for step in steps:
        shards = {shard: replicas[shard % len(replicas)] for shard in range(SHARDS)}
        for replica in replicas:
            own = [shard for shard in shards if shards[shard] == replica]
            samples = {shard: order.samples(step, shard, SHARDS).indices for shard in own}
            if replica != silent:
                ledgers[replica].write(step=step, view=view, shards=shards, samples=samples)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "ledger-0", tmp_path / "ledger-1"]


def write(paths: list[Path], steps: range, **more: int) -> None:
    ledgers = {replica: Ledger(path, ORDER, SHARDS) for replica, path in enumerate(paths)}
    record(ledgers, steps, **more)  # type: ignore[arg-type]
    for ledger in ledgers.values():
        ledger.close()


def edit(path: Path, line: int, change: Callable[[dict[str, object]], object]) -> None:
    texts = path.read_text().splitlines()
    content = json.loads(texts[line])
    change(content)
    texts[line] = json.dumps(content, separators=(",", ":"))
    path.write_text("\n".join(texts) + "\n")


def test_a_run_without_failures_adds_up(paths: list[Path]) -> None:
    write(paths, range(1, 2 * PASS + 2))
    audit = merge_ledgers(paths)
    assert audit.ok and audit.problems == []
    assert (audit.ledgers, audit.steps, audit.passes, audit.samples) == (2, 7, 2, 24)
    assert audit.describe() == (
        "7 steps, 24 samples and 2 complete passes in 2 ledgers: each sample exactly once per pass"
    )


def test_steps_that_were_trained_again_count_once(paths: list[Path]) -> None:
    write(paths, range(1, PASS + 1))
    # The job came back from a checkpoint, with one replica and in another view.
    write(paths[:1], range(2, 2 * PASS + 1), view=5)
    audit = merge_ledgers(paths)
    assert audit.problems == [] and audit.samples == 20 and audit.passes == 2


def test_void_steps_do_not_count_whoever_wrote_them_down(paths: list[Path]) -> None:
    write(paths, range(1, PASS + 1), view=2)
    # Replica 1 was evicted with the view whose attempt was void, and does not know of it.
    with Ledger(paths[0], ORDER, SHARDS) as ledger:
        ledger.void(view=2, after=1)
    audit = merge_ledgers(paths)
    assert (audit.steps, audit.void_steps) == (1, PASS - 1)
    write(paths[:1], range(2, PASS + 1), view=3)
    audit = merge_ledgers(paths)
    assert audit.problems == [] and audit.steps == PASS
    assert f"{PASS - 1} steps were found to be wrong, and done again" in audit.describe()


def test_what_was_left_out_is_said_and_all_must_agree_on_it(paths: list[Path]) -> None:
    write(paths, range(1, PASS + 1))
    for path in paths:
        edit(path, 1, lambda entry: entry.update(left_out=[2]))
    audit = merge_ledgers(paths)
    assert audit.problems == [] and audit.left_out_shards == 1 and audit.samples == 10
    assert "1 shards were left out of the model" in audit.describe()
    edit(paths[1], 1, lambda entry: entry.update(left_out=[1]))
    assert "was made without shards [1], but without [2]" in merge_ledgers(paths).problems[0]


def test_a_replica_that_died_before_it_wrote_loses_no_sample(paths: list[Path]) -> None:
    write(paths, range(1, PASS))
    write(paths, range(PASS, PASS + 1), silent=1)
    audit = merge_ledgers(paths)
    assert audit.problems == [] and audit.unlisted_shards == 1 and audit.samples == 10
    assert "1 shards are known from other members' ledgers only" in audit.describe()


def test_dropped_samples_are_no_problem(tmp_path: Path) -> None:
    order = SampleOrder(length=10, global_batch=4, drop_last=True)
    with Ledger(tmp_path / "ledger", order, SHARDS) as ledger:
        record({0: ledger}, range(1, 5), order=order)
    audit = merge_ledgers([tmp_path / "ledger"])
    assert audit.problems == [] and audit.passes == 2 and audit.samples == 16


@given(cut=st.integers(0, 2000), again=st.integers(0, 2000))
def test_a_ledger_cut_off_anywhere_is_never_a_false_alarm(
    tmp_path_factory: pytest.TempPathFactory, cut: int, again: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    paths = [folder / "0", folder / "1"]
    write(paths, range(1, PASS + 1))
    # Two lives end in the middle of something; the other replica's ledger is whole.
    for size in (cut, again):
        os.truncate(paths[1], min(size, paths[1].stat().st_size))
        Ledger(paths[1], ORDER, SHARDS).close()
    os.truncate(paths[1], max(0, paths[1].stat().st_size - 1 - cut % 40))
    assert merge_ledgers(paths).problems == []


def test_a_writer_that_is_killed_leaves_a_ledger_that_adds_up(tmp_path: Path) -> None:
    code = (
        "import sys, itertools\n"
        "from test_audit import *\n"
        "ledger = Ledger(sys.argv[1], ORDER, SHARDS)\n"
        "for step in itertools.count(1):\n"
        "    record({0: ledger}, range(step, step + 1))\n"
        "    if step == 100: print(flush=True)\n"
    )
    path = tmp_path / "ledger"
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parent
        )
        assert writer.stdout is not None
        with writer.stdout:
            writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
    audit = merge_ledgers([path])
    assert audit.problems == [] and audit.steps >= 100


def test_a_sample_used_twice_and_one_never_used_are_named(paths: list[Path]) -> None:
    write(paths, range(1, PASS + 1))
    swapped, doubled = ORDER.samples(1, 0, SHARDS).indices[0], ORDER.samples(2, 0, SHARDS).indices[0]

    def change(entry: dict[str, dict[str, list[int]]]) -> None:
        entry["samples"]["0"][0] = doubled

    edit(paths[0], 1, change)  # type: ignore[arg-type]
    assert merge_ledgers(paths).problems == [
        f"pass 0: sample {doubled} was used 2 times",
        f"pass 0: 1 samples were never used, among these: {swapped}",
    ]


def test_entries_that_disagree_are_named(paths: list[Path]) -> None:
    write(paths, range(1, 3))
    write(paths, range(1, 3), view=2)
    edit(paths[0], 4, lambda entry: entry["samples"]["0"].reverse())  # type: ignore[index]
    edit(paths[1], 5, lambda entry: entry["shards"].update({"1": 0}))  # type: ignore[attr-defined]
    samples, shards = merge_ledgers(paths).problems
    assert "ledger-0:5: step 1, shard 0 has other samples than in" in samples
    assert (
        "ledger-1:6: step 2 in view 2 was computed by {0: 0, 1: 0, 2: 0}, but by {0: 0, 1: 1, 2: 0}" in shards
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": {"0": [1]}}, "shard 0 has 1 samples instead of 2"),
        ({"samples": {"0": [0, 10]}}, "sample 10 of 10"),
        ({"samples": {"7": []}}, "cannot have shards"),
        ({"pass": 1}, "step 1 is not in pass 1"),
        ({"step": 0}, "step 0 cannot"),
        ({"shards": {"0": 0}, "samples": {}}, "shard 1 was not counted by anybody"),
        ({"step": "x"}, "cannot be read"),
        ({"step": 10**15, "pass": (10**15 - 1) // PASS}, "steps 3 to .* are in no ledger"),
    ],
)
def test_lines_that_cannot_be_true_are_named(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "ledger"
    write([path], range(1, 3))
    edit(path, 1, lambda entry: entry.update(change))
    problems = merge_ledgers([path]).problems
    if words.startswith("steps 3"):
        assert any("steps 3 to" in problem and "are in no ledger" in problem for problem in problems)
    else:
        assert any(words in problem for problem in problems)


def test_a_missing_step_is_named(paths: list[Path]) -> None:
    write(paths, range(1, 3))
    write(paths, range(5, 6))
    assert "steps 3 to 4 are in no ledger, though step 5 is" in merge_ledgers(paths).problems


def test_ledgers_of_two_runs_are_not_mixed(paths: list[Path]) -> None:
    write(paths[:1], range(1, 3))
    with Ledger(paths[1], SampleOrder(length=11, global_batch=4), SHARDS) as other:
        other.write(step=1, view=1, shards={0: 0}, samples={0: [99]})
    (problem,) = merge_ledgers(paths).problems
    assert "length = 11, but length = 10 in" in problem


def test_files_without_a_heading_are_no_audit(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert merge_ledgers([tmp_path / "empty"]).problems == [
        "there is no ledger with a heading among these files"
    ]


def test_many_problems_are_counted_and_not_all_told(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(path, ORDER, SHARDS) as ledger:
        for step in itertools.islice(itertools.count(1), PROBLEMS_SHOWN + 20):
            ledger.write(step=step, view=1, shards={0: 0, 1: 0, 2: 0}, samples={0: [99] * 9})
    audit = merge_ledgers([path])
    assert len(audit.problems) == PROBLEMS_SHOWN and audit.more_problems > 20
    assert f"and {audit.more_problems} more" in audit.describe()


def test_a_line_with_bytes_that_are_no_text_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "ledger-0"
    with Ledger(path, ORDER, SHARDS, "run"):
        pass
    path.write_bytes(path.read_bytes().replace(b'"run":"run"', b'"run":"\xff"'))
    assert any("cannot be read" in problem for problem in merge_ledgers([path]).problems)
