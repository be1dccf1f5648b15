"""Going on from a checkpoint: what is said, what is refused, and what stays as it was."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from trained_alone import Trained, steps_saved, without_checkpoints

import outlast
from outlast.cli import rewind
from outlast.errors import ConfigError
from outlast.state.storage.files import Files
from outlast.state.vault.pointers import targets
from outlast.state.vault.vault import Vault


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives a power cut is not the matter here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def named(folder: Path) -> dict[str, int]:
    vault = Vault(Files(str(folder)))
    return {name: vault.read_manifest(manifest).step for name, manifest in targets(vault).items()}


class Ending(Trained):
    """Leaves the loop of its steps before the total."""

    def __init__(self, folder: Path, ends_at: int, **options: Any) -> None:
        self._ends_at = ends_at
        super().__init__(folder, 20, **options)

    def ends(self, job: outlast.Job) -> bool:
        return job.steps_done + 1 == self._ends_at


def test_a_run_that_the_script_has_ended_stays_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ending(tmp_path, 7, every=7)
    assert steps_saved(tmp_path)[-1] == 7
    for _ in range(2):
        again = Trained(tmp_path, 20, final="final")
        assert again.began_at == again.ended_at == 7
        said = capsys.readouterr().err
        assert "this run ended at step 7, as the script decided; nothing left to do" in said
        assert "changed=('end',)" in said
    assert named(tmp_path)["final"] == 7
    on = Trained(tmp_path, 20, changed=("end",))
    assert on.ended_at == 20 and on.digest == without_checkpoints(20)
    assert "this run ended" not in capsys.readouterr().err
    assert Trained(tmp_path, 22).ended_at == 22, "and from there on it goes on by itself"


def test_a_run_that_was_ended_goes_on_from_where_it_is_rewound_to(tmp_path: Path) -> None:
    Ending(tmp_path, 7, every=2)
    # On a busy machine some are left out.
    older = steps_saved(tmp_path)[0]
    assert older < 7
    assert rewind.main([str(tmp_path), "--to", str(older), "--yes"]) == 0
    assert Trained(tmp_path, 9).ended_at == 9


def test_a_run_says_what_it_goes_on_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Trained(tmp_path, 5)
    assert capsys.readouterr().err == ""
    Trained(tmp_path, 9)
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"outlast: resumed from step 5 of {tmp_path}, saved \d+ s ago; 4 steps to go\n", said
    )
    Trained(tmp_path, 9, rate=5e-3)
    said = capsys.readouterr().err
    assert "resumed from step 9" in said and "; nothing left to do\n" in said
    assert "not from the script: learning rate 0.01 (the script says 0.005)\n" in said


def test_a_run_keeps_its_id_whenever_it_goes_on(tmp_path: Path) -> None:
    first, second = Trained(tmp_path / "one", 3), Trained(tmp_path / "one", 5)
    assert first.id and first.id == second.id
    assert Trained(tmp_path / "two", 3).id != first.id


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"samples": 48}, "dataset_length"),
        ({"batch": 8}, "global_batch"),
        ({"decay": 0.1}, "weight_decay"),
        ({"shards": 4}, "shards"),
    ],
)
def test_what_is_changed_is_refused_unless_it_is_on_purpose(
    tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    Trained(tmp_path, 4)
    with pytest.raises(ConfigError) as refused:
        Trained(tmp_path, 8, **change)
    for told in (f"checkpoint of step 4 at {tmp_path}", f"changed=('{name}',)", "rewind", "another URL"):
        assert told in str(refused.value), told
    on = Trained(tmp_path, 8, changed=(name,), **change)
    assert on.ended_at == 8
    assert on.optimizer.param_groups[0]["weight_decay"] == change.get("decay", 0.0)
    assert Trained(tmp_path, 10, **change).ended_at == 10, "it is the run's own now"


def test_another_model_cannot_be_on_purpose(tmp_path: Path) -> None:
    Trained(tmp_path, 3)
    with pytest.raises(ConfigError, match="outlast rewind") as refused:
        Trained(tmp_path, 5, width=9)
    assert "changed=" not in str(refused.value)


def test_a_wrong_name_of_what_has_changed_lists_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'weightdecay' is nothing.*global_batch.*weight_decay"):
        Trained(tmp_path, 5, changed=("weightdecay",))
