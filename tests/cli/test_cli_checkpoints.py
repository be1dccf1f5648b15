"""`outlast checkpoints` and `outlast rewind`, on checkpoints in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outlast.cli import checkpoints, rewind
from outlast.cli import main as outlast_main
from outlast.errors import CheckpointError, ConfigError, NoCheckpoint, UsageError, VaultTaken
from outlast.state.image import copy_piece
from outlast.state.storage.files import Files
from outlast.state.training import TrainingState
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter
from outlast.state.vault.housekeeping import holding_still
from outlast.state.vault.manifest import Claim, Manifest
from outlast.state.vault.names import ENDED, chunk_name, manifest_name
from outlast.state.vault.occupancy import Process, note_end
from outlast.state.vault.vault import Vault, now_as_text, program_versions


def save(vault: Vault, claim: Claim, step: int) -> Manifest:
    torch.manual_seed(step)
    model = torch.nn.Linear(20, 20)
    image, tensors = TrainingState(model, {"main": torch.optim.AdamW(model.parameters())}).capture()
    flat = torch.empty(image.total_bytes, dtype=torch.uint8)
    copy_piece(image, tensors, range(image.total_bytes), flat)
    space = memoryview(flat.numpy())
    writer = ChunkWriter(vault.storage, {})
    chunks = writer.write((r, space[r.start : r.stop]) for r in chunk_ranges(image))
    manifest = Manifest(
        step=step,
        claim=claim.number,
        base=claim.base,
        run=claim.run,
        lineage=1,
        view=2,
        saved_at=now_as_text(),
        writers={"0": "here"},
        versions=program_versions(),
        replicas=2,
        shards=4,
        tensor_bytes=sum(entry.size_bytes for entry in image.entries),
        new_bytes=writer.written_bytes,
        chunks=tuple(chunks),
        image=image,
    )
    assert vault.commit(manifest)
    return manifest


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    """Claim 1 with steps 10 to 40, of a run that has ended."""
    vault = Vault(Files(tmp_path / "checkpoints"))
    claim = vault.make_claim(run="first", lineage=1, base=None)
    for step in (10, 20, 30, 40):
        save(vault, claim, step)
    note_end(vault.storage, claim)
    return vault


def url(vault: Vault) -> str:
    return vault.storage.url


def path_of(vault: Vault, name: str) -> Path:
    return Path(url(vault)) / name


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def told(capsysbinary: pytest.CaptureFixture[bytes], *arguments: str, code: int = 0) -> Any:
    run = rewind.main if arguments[0] == "rewind" else checkpoints.main
    rest = arguments[1:] if arguments[0] == "rewind" else arguments
    assert run([*rest, "--json"]) == code
    return json.loads(capsysbinary.readouterr().out)


def steps(vault: Vault) -> list[int]:
    return [vault.read_manifest(name).step for name in vault.trunk()]


def test_listing(vault: Vault, capsys: pytest.CaptureFixture[str]) -> None:
    second = vault.make_claim(run="second", lineage=1, base=manifest_name(1, 20))
    save(vault, second, 25)
    lost = save(vault, second, 35).chunks[0]
    path_of(vault, chunk_name(lost.hash, "")).unlink()
    flip(path_of(vault, manifest_name(1, 10)), 100)
    assert checkpoints.main(["ls", url(vault)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "claim", "age", "size", "new", "run", "state", "names"]
    found = {int(line.split()[0]): line for line in lines[1:7]}
    assert found[25].endswith("good") or "good" in found[25]
    for step, state in [(35, "incomplete"), (40, "off trunk"), (20, "good"), (10, "unreadable")]:
        assert state in found[step], step
    assert "first" in found[40] and "second" in found[25]
    assert any("does not fit its seal" in line for line in lines)


def test_listing_for_programs(vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    found = told(capsysbinary, "ls", url(vault))
    assert [row["step"] for row in found["checkpoints"]] == [40, 30, 20, 10]
    assert {row["state"] for row in found["checkpoints"]} == {"good"}
    assert found["usage"]["manifests"] == 4


def test_showing(vault: Vault, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.main(["show", url(vault), "--step", "20"]) == 0
    shown = capsys.readouterr().out
    assert "model['weight']" in shown and "20 x 20" in shown and "float32" in shown
    assert "first (lineage 1, view 2)" in shown and "torch 2." in shown


def test_showing_for_programs(vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    shown = told(capsysbinary, "show", url(vault))
    assert shown["step"] == 40 and shown["image"]["entries"][0][1] == "float32"
    assert "plain" not in shown["image"]


@pytest.mark.parametrize("command", ["ls", "show"])
def test_looking_does_not_wait_for_torch(vault: Vault, command: str) -> None:
    code = (
        "import sys; from outlast.cli.checkpoints import main; "
        f"main([{command!r}, {url(vault)!r}]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_verifying(vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert told(capsysbinary, "verify", url(vault), "--all")["ok"]
    chunk = vault.read_manifest(manifest_name(1, 40)).chunks[0]
    name = chunk_name(chunk.hash, "")
    flip(path_of(vault, name), 7)
    found = told(capsysbinary, "verify", url(vault), code=1)
    assert [row["name"] for row in found["checkpoints"]] == [manifest_name(1, 40)]
    assert name in found["checkpoints"][0]["problems"][0]
    assert told(capsysbinary, "verify", url(vault), "--step", "30")["ok"]
    flip(path_of(vault, manifest_name(1, 10)), 100)
    found = told(capsysbinary, "verify", url(vault), "--all", code=1)
    assert [row["ok"] for row in found["checkpoints"]] == [False, True, True, False]
    assert checkpoints.main(["verify", url(vault), "--all"]) == 1
    said = capsysbinary.readouterr().out.decode()
    assert f"{manifest_name(1, 40)} is damaged" in said and "2 of 4 checkpoints are good" in said


def test_verifying_what_has_no_readable_manifest(
    vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for step in (10, 40):
        flip(path_of(vault, manifest_name(1, step)), 100)
    for chosen in ([], ["--step", "40"], ["--step", "10"]):
        found = told(capsysbinary, "verify", url(vault), *chosen, code=1)
        assert [row["ok"] for row in found["checkpoints"]] == [False]
        assert "seal" in found["checkpoints"][0]["problems"][0]
    assert told(capsysbinary, "verify", url(vault), "--step", "30")["ok"]


def test_there_and_back(vault: Vault, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.safetensors"
    assert checkpoints.main(["export", url(vault), str(out), "--step", "20"]) == 0
    assert load_file(out).keys() == {"weight", "bias"}
    assert checkpoints.main(["export", url(vault), str(tmp_path / "dcp"), "--format", "dcp", "--all"]) == 0
    other = tmp_path / "other"
    assert checkpoints.main(["import", str(out), str(other)]) == 0
    assert "the checkpoint of step 0" in capsys.readouterr().out
    assert steps(Vault(Files(other))) == [0]
    with pytest.raises(CheckpointError, match="a URL of its own"):
        checkpoints.main(["import", str(out), str(other)])


def test_pruning(vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    dry = told(capsysbinary, "prune", url(vault), "--keep-last", "2", "--dry-run")
    assert len(vault.manifests()) == 4 and len(dry["manifests"]) == 2
    real = told(capsysbinary, "prune", url(vault), "--keep-last", "2")
    assert real["manifests"] == dry["manifests"] and real["chunk_bytes"] == dry["chunk_bytes"] > 0
    assert steps(vault) == [40, 30]
    assert told(capsysbinary, "verify", url(vault), "--all")["ok"]
    with pytest.raises(ConfigError, match="at least one"):
        checkpoints.main(["prune", url(vault), "--keep-last", "0"])


def test_pruning_says_what_it_leaves_alone(vault: Vault, capsys: pytest.CaptureFixture[str]) -> None:
    flip(path_of(vault, manifest_name(1, 20)), 100)
    assert checkpoints.main(["prune", url(vault), "--keep-last", "1"]) == 0
    assert "--force gives it up" in capsys.readouterr().out
    assert checkpoints.main(["prune", url(vault), "--keep-last", "1", "--force"]) == 0
    assert vault.manifests() == [manifest_name(1, 40)]


def test_a_job_that_trains_keeps_others_out(vault: Vault) -> None:
    vault.make_claim(run="training", lineage=1, base=manifest_name(1, 40), process=Process.own())
    for command in (["prune", url(vault), "--keep-last", "1"],):
        with pytest.raises(VaultTaken, match="'training'"):
            checkpoints.main(command)
    with pytest.raises(VaultTaken, match="'training'"):
        rewind.main([url(vault), "--to", "10", "--yes"])
    assert len(vault.manifests()) == 4


def test_tidying_up_changes_nothing_about_what_comes_next(vault: Vault) -> None:
    before = vault.trunk()
    with holding_still(vault, "prune") as claim:
        assert claim.base == before[0] and vault.trunk() == before
        with pytest.raises(VaultTaken, match="prune-"):
            vault.make_claim(run="training", lineage=1, base=None)
    assert vault.make_claim(run="training", lineage=1, base=before[0]).number == 3


def test_a_last_checkpoint_in_the_middle_of_it_is_gone_on_from(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = vault.make_claim
    first = vault.read_claim(1)

    def late(**options: Any) -> Claim:
        monkeypatch.setattr(vault, "make_claim", claims)
        save(vault, first, 50)
        return claims(**options)

    monkeypatch.setattr(vault, "make_claim", late)
    with holding_still(vault, "prune"):
        assert steps(vault) == [50, 40, 30, 20, 10]


def test_rewinding(vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    found = told(capsysbinary, "rewind", url(vault), "--to", "20", "--yes")
    assert found["set_aside"] == [40, 30] and steps(vault) == [20, 10]
    assert rewind.main([url(vault), "--to", "40", "--yes"]) == 0
    assert steps(vault) == [40, 30, 20, 10], "what was set aside can be brought back"
    assert b"goes on from step 40" in capsysbinary.readouterr().out
    assert vault.make_claim(run="next", lineage=1, base=vault.trunk()[0]).number == 4


def test_rewinding_asks(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--yes"):
        rewind.main([url(vault), "--to", "20"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    with pytest.raises(UsageError, match="nothing was changed"):
        rewind.main([url(vault), "--to", "20"])
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert rewind.main([url(vault), "--to", "20"]) == 0 and steps(vault) == [20, 10]


def test_rewinding_to_what_is_not_whole_is_refused(vault: Vault) -> None:
    chunk = vault.read_manifest(manifest_name(1, 20)).chunks[0]
    os.truncate(path_of(vault, chunk_name(chunk.hash, "")), 5)
    with pytest.raises(CheckpointError, match="not whole"):
        rewind.main([url(vault), "--to", "20", "--yes"])


def test_several_checkpoints_of_one_step(vault: Vault, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    second = vault.make_claim(run="second", lineage=1, base=manifest_name(1, 20))
    save(vault, second, 30)
    assert told(capsysbinary, "show", url(vault), "--step", "30")["claim"] == 2
    assert told(capsysbinary, "show", url(vault), "--step", "30", "--claim", "1")["claim"] == 1
    note_end(vault.storage, second)
    vault.make_claim(run="third", lineage=1, base=None, goes_back=True)
    with pytest.raises(UsageError, match="--claim with one of 1, 2"):
        checkpoints.main(["show", url(vault), "--step", "30"])
    with pytest.raises(NoCheckpoint, match="checkpoints ls"):
        checkpoints.main(["show", url(vault)])


def test_errors_help(vault: Vault, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, code, said in [
        (["checkpoints", "ls", str(tmp_path / "nowhere")], 10, "There are no checkpoints in"),
        (["checkpoints", "ls", "ftp://somewhere"], 2, "no URL of a storage"),
        (["checkpoints", "show", url(vault), "--step", "15"], 2, "there are 10, 20, 30, 40"),
        (["rewind", url(vault), "--to", "15", "--yes"], 2, "there are 10, 20, 30, 40"),
        (["checkpoints", "export", url(vault), str(tmp_path)], 2, "already"),
        (["checkpoints", "show", url(vault), "--claim", "9"], 2, "--step"),
        (["checkpoints", "show", url(vault), "--step", "40", "--claim", "9"], 2, "and claim 9"),
    ]:
        assert outlast_main(command) == code, command
        assert said in capsys.readouterr().err
    Vault(Files(tmp_path / "begun")).make_claim(run="r", lineage=1, base=None)
    assert outlast_main(["checkpoints", "ls", str(tmp_path / "begun")]) == 10
    assert "saved nothing yet" in capsys.readouterr().err


def test_a_name_does_where_a_step_does(
    vault: Vault, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    vault.point("best", vault.read_manifest(manifest_name(1, 20)))
    vault.point(ENDED, vault.read_manifest(manifest_name(1, 40)))
    rows = {row["step"]: row["names"] for row in told(capsysbinary, "ls", url(vault))["checkpoints"]}
    assert rows == {40: ["(the end)"], 30: [], 20: ["best"], 10: []}
    assert told(capsysbinary, "show", url(vault), "best")["step"] == 20
    assert told(capsysbinary, "show", url(vault), "30")["step"] == 30
    assert told(capsysbinary, "verify", url(vault), "best")["checkpoints"][0]["name"] == manifest_name(1, 20)
    out = tmp_path / "best.safetensors"
    assert told(capsysbinary, "export", url(vault), "best", str(out))["step"] == 20
    assert load_file(out)["weight"].shape == (20, 20)
    pruned = told(capsysbinary, "prune", url(vault), "--keep-last", "1", "--dry-run")
    assert manifest_name(1, 20) in pruned["kept"]
    with pytest.raises(UsageError, match=r"no checkpoint 'bets'.*: best\."):
        checkpoints.main(["show", url(vault), "bets"])
    with pytest.raises(UsageError, match="once"):
        checkpoints.main(["show", url(vault), "best", "--step", "20"])
    assert told(capsysbinary, "rewind", url(vault), "--to", "best", "--yes")["step"] == 20
