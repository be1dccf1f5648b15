"""`outlast audit`: of ledgers that add up, of some that do not, and of none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.cli.audit import WRONG, main
from outlast.errors import UsageError
from outlast.train.ledger import Ledger
from outlast.train.sampling import SampleOrder

ORDER = SampleOrder(length=10, global_batch=4)
SHARDS = 2


def write_ledgers(folder: Path, *, steps: int, left_out: int = 0) -> None:
    """Two replicas with a shard each; one step may be missing with both."""
    for replica in range(SHARDS):
        with Ledger(folder / f"replica-{replica}.ledger", ORDER, SHARDS) as ledger:
            for step in range(1, steps + 1):
                samples = {replica: ORDER.samples(step, replica, SHARDS).indices}
                if step != left_out:
                    ledger.write(step=step, view=1, shards={0: 0, 1: 1}, samples=samples)


def test_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ledgers(tmp_path, steps=6)
    assert main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "each sample exactly once per pass" in told
    assert "6 steps, 20 samples and 2 complete passes in 2 ledgers" in told


def test_a_step_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ledgers(tmp_path, steps=6, left_out=2)
    assert main([str(tmp_path)]) == WRONG
    told = capsys.readouterr().out
    assert "steps 2 to 2 are in no ledger" in told
    assert "4 samples were never used" in told


@pytest.mark.parametrize("left_out", [0, 2])
def test_for_programs_it_is_json(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], left_out: int
) -> None:
    write_ledgers(tmp_path, steps=3, left_out=left_out)
    code = main([str(tmp_path), "--json"])
    told = json.loads(capsysbinary.readouterr().out)
    assert told["ok"] == (code == 0) == (left_out == 0)
    assert told["ledgers"] == SHARDS
    assert told["samples"] == (6 if left_out else 10)
    assert bool(told["problems"]) == bool(left_out)


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    write_ledgers(tmp_path, steps=3)
    (tmp_path / "notes.txt").write_text("buy milk")
    assert main([str(tmp_path)]) == 0


def test_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file that ends with \.ledger"):
        main([str(tmp_path)])
    with pytest.raises(UsageError, match="there is no folder"):
        main([str(tmp_path / "nowhere")])
    (tmp_path / "odd.ledger").mkdir()
    with pytest.raises(UsageError, match=r"odd\.ledger cannot be read"):
        main([str(tmp_path)])


def test_it_does_not_wait_for_torch() -> None:
    code = "import sys, outlast.cli.audit; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "rich", "numpy"} & set(done.stdout.split())
