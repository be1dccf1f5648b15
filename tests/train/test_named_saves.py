"""What a script saves by name, in a job of one process."""

import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from trained_alone import Trained, net, steps_saved

import outlast
from outlast.errors import ConfigError, LoopError, StorageFull
from outlast.state.digest import state_digest
from outlast.state.storage.files import Files
from outlast.state.vault.pointers import targets
from outlast.state.vault.vault import Vault
from outlast.train import writing
from patience import PATIENCE_S

WAIT_S = PATIENCE_S


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives a power cut is not the matter here."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Naming(Trained):
    """Asks for names in its steps, and for one at the end."""

    wanted: ClassVar[dict[int, str]] = {}

    def stepped(self, job: outlast.Job) -> None:
        if job.steps_done + 1 in self.wanted:
            job.save(self.wanted[job.steps_done + 1])


def named(folder: Path) -> dict[str, int]:
    """The step that each name stands for."""
    vault = Vault(Files(str(folder)))
    return {name: vault.read_manifest(manifest).step for name, manifest in targets(vault).items()}


def naming(**wanted: int) -> type[Naming]:
    return type("Naming", (Naming,), {"wanted": {step: name for name, step in wanted.items()}})


def test_a_state_is_saved_by_name_and_kept_until_the_name_moves_on(tmp_path: Path) -> None:
    naming(best=3)(tmp_path, 9, keep_last=1, every=2)
    assert named(tmp_path) == {"best": 3}
    assert steps_saved(tmp_path) == [3, 9]
    naming(best=11)(tmp_path, 15, keep_last=1, every=2)
    assert named(tmp_path) == {"best": 11}
    assert steps_saved(tmp_path) == [11, 15]


def test_the_state_with_the_name_is_that_after_its_step(tmp_path: Path) -> None:
    naming(best=4)(tmp_path, 9, every="1h")
    best = outlast.load(tmp_path, "best")
    trained = Trained(tmp_path / "other", 4)
    model = net()
    model.load_state_dict(best.model)
    assert best.step == 4 and state_digest(model) == state_digest(trained.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    optimizer.load_state_dict(best.optimizer)
    assert state_digest(model, optimizer) == trained.digest


def test_of_calls_in_quick_succession_the_last_one_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is so slow that the first one is not saved before the last one is asked for."""
    asked, commit = threading.Event(), writing.Writing.commit

    def slow(self: writing.Writing, job: Any) -> None:
        assert asked.wait(WAIT_S)
        commit(self, job)

    class Eager(Trained):
        def stepped(self, job: outlast.Job) -> None:
            job.save("best")
            if job.steps_done + 1 == 12:
                asked.set()

    monkeypatch.setattr(writing.Writing, "commit", slow)
    Eager(tmp_path, 12, every="1h")
    assert named(tmp_path) == {"best": 12}
    assert steps_saved(tmp_path) == [1, 12], "what came between was skipped"


def test_one_state_may_have_several_names_and_be_saved_by_itself_as_well(tmp_path: Path) -> None:
    class Twice(Trained):
        def stepped(self, job: outlast.Job) -> None:
            if job.steps_done + 1 in (4, 8):
                job.save("best")
                job.save("other")

    Twice(tmp_path, 8, every=4)
    assert named(tmp_path) == {"best": 8, "other": 8}
    assert steps_saved(tmp_path)[-1] == 8


def test_a_storage_that_fails_once_costs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, failed = writing.Writing.commit, []

    def fails_once(self: writing.Writing, job: Any) -> None:
        if not failed:
            failed.append(job.save.step)
            raise StorageFull("no space is left")
        commit(self, job)

    monkeypatch.setattr(writing.Writing, "commit", fails_once)
    naming(best=3)(tmp_path, 6, every="1h")
    assert failed == [3] and named(tmp_path) == {"best": 3}
    assert steps_saved(tmp_path) == [3, 6]


def test_what_cannot_be_saved_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: writing.Writing, job: Any) -> None:
        raise StorageFull("no space is left")

    monkeypatch.setattr(writing.Writing, "commit", fails)
    naming(best=3)(tmp_path, 6, every="1h")
    assert "the state after step 3 is NOT saved as best: no space is left" in caplog.text
    assert named(tmp_path) == {}


def test_a_place_to_save_to_is_needed() -> None:
    model = net()
    with outlast.join(model=model, optimizer=torch.optim.SGD(model.parameters())) as job:
        for step in job.steps(1):
            for _ in step:
                step.backward(model(torch.randn(4, 6)).sum())
            with pytest.raises(ConfigError, match=r"checkpoints="):
                job.save("best")


def test_where_and_how_a_save_cannot_be_asked_for(tmp_path: Path) -> None:
    model = net()
    with outlast.join(
        model=model, optimizer=torch.optim.SGD(model.parameters()), checkpoints=tmp_path
    ) as job:
        with pytest.raises(LoopError, match="before the first step"):
            job.save("best")
        for step in job.steps(1):
            for _ in step:
                step.backward(model(torch.randn(4, 6)).sum())
                with pytest.raises(LoopError, match="after the loop over the step's"):
                    job.save("best")
            with pytest.raises(ConfigError, match="letters, digits"):
                job.save("best model")
        job.save("final")
    assert named(tmp_path) == {"final": 1}


def test_a_save_behind_the_loop_has_the_state_that_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    model = net()
    with outlast.join(
        model=model, optimizer=torch.optim.SGD(model.parameters()), checkpoints=tmp_path, every="1h"
    ) as job:
        for step in job.steps(2):
            for _ in step:
                step.backward(model(torch.randn(4, 6)).sum())
        job.save("final")
        before = state_digest(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    saved = net()
    outlast.load(tmp_path, "final").load_into(saved)
    assert state_digest(saved) == before


def test_other_places_have_the_names_too(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    naming(best=3)([near, far], 9, keep_last=1)
    assert named(near) == named(far) == {"best": 3}
    assert steps_saved(far) == [3, 9]
