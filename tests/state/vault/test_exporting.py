"""To other tools and back: safetensors, DCP and torch.save."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import claimed, manifest_of, written
from memory_storage import MemoryStorage
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from outlast.errors import CheckpointError, ConfigError, ObjectDamaged, UsageError
from outlast.state.image import Assembly
from outlast.state.training import TrainingState
from outlast.state.vault.chunks import read_chunks
from outlast.state.vault.exporting import export_dcp, export_safetensors
from outlast.state.vault.importing import import_weights, read_weights
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import chunk_name
from outlast.state.vault.vault import Vault

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.model = nn.Linear(600, 600)
        self.norm = nn.BatchNorm1d(600)
        self.head = nn.Linear(600, 600, bias=False)
        self.head.weight = self.model.weight


def trained(seed: int = 0) -> tuple[Net, TrainingState]:
    model = Net(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.norm(model.model(torch.ones(4, 600)))).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return model, TrainingState(model, {"main": optimizer}, {"schedule": schedule})


def saved(state: TrainingState) -> tuple[Vault, MemoryStorage, Manifest]:
    storage = MemoryStorage()
    vault = Vault(storage)
    image, tensors = state.capture()
    claim = claimed(vault)
    _, chunks = written(storage, image, tensors, {})
    manifest = manifest_of(claim, 7, image, chunks)
    vault.commit(manifest)
    return vault, storage, manifest


def begun_with(vault: Vault) -> Net:
    """What a job does that starts from the newest checkpoint."""
    model = Net(99)
    state = TrainingState(model, {"main": torch.optim.AdamW(model.parameters())})
    _, manifest = next(vault.newest())
    assert manifest.step == 0
    assembly = Assembly(manifest.image, ranges=[range(c.start, c.stop) for c in manifest.chunks])
    read_chunks(vault.storage, manifest, assembly)
    state.load(manifest.image, assembly.tensors())
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def imported(source: Path, **options: Any) -> Net:
    vault = Vault(MemoryStorage())
    manifest = import_weights(vault, read_weights(source, **options))
    assert manifest.new_bytes and manifest.step == 0
    return begun_with(vault)


def test_safetensors_there_and_back(tmp_path: Path) -> None:
    model, state = trained()
    vault, storage, manifest = saved(state)
    storage.calls.clear()
    out = tmp_path / "model.safetensors"
    names = export_safetensors(vault, manifest, out)
    assert len(storage.calls) < len(manifest.chunks), "optimizer state is not read"
    tensors = load_file(out)
    assert tensors.keys() == set(names) == model.state_dict().keys() - {"head.weight"}
    assert torch.equal(tensors["model.weight"], model.model.weight)
    assert same(imported(out), model)
    assert list(tmp_path.iterdir()) == [out]


def test_everything_in_safetensors(tmp_path: Path) -> None:
    model, state = trained()
    vault, _, manifest = saved(state)
    export_safetensors(vault, manifest, tmp_path / "all.safetensors", everything=True)
    tensors = load_file(tmp_path / "all.safetensors")
    moment = state.optimizers["main"].state[model.norm.weight]["exp_avg"]
    assert torch.equal(tensors["optimizers.main.norm.weight.exp_avg"], moment)


def test_dcp_there_and_back(tmp_path: Path) -> None:
    model, state = trained()
    vault, _, manifest = saved(state)
    export_dcp(vault, manifest, tmp_path / "dcp")
    empty = {
        name: torch.empty_like(value) for name, value in model.state_dict().items() if name != "head.weight"
    }
    dcp_load({"model": empty}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(empty["norm.running_mean"], model.norm.running_mean)
    with pytest.raises(UsageError, match="--allow-pickle"):
        read_weights(tmp_path / "dcp")
    assert same(imported(tmp_path / "dcp", allow_pickle=True), model)


def test_everything_in_dcp(tmp_path: Path) -> None:
    model, state = trained()
    vault, _, manifest = saved(state)
    export_dcp(vault, manifest, tmp_path / "dcp", everything=True)
    moment = torch.empty(600)
    step = {"step": 0, "optimizers": {"main": {"state": {"norm.weight": {"exp_avg": moment}}}}}
    dcp_load(step, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert step["step"] == 7
    assert torch.equal(moment, state.optimizers["main"].state[model.norm.weight]["exp_avg"])
    assert same(imported(tmp_path / "dcp", allow_pickle=True), model)


def test_a_flat_dcp_keeps_names_that_begin_with_model(tmp_path: Path) -> None:
    model, _ = trained()
    dcp_save(model.state_dict(), checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert same(imported(tmp_path / "dcp", allow_pickle=True), model)


@pytest.mark.parametrize("wrapped", [None, "model", "state_dict", "deep"])
@pytest.mark.parametrize("old_format", [False, True])
def test_files_of_torch_save(tmp_path: Path, wrapped: str | None, old_format: bool) -> None:
    model, _ = trained()
    content: Any = model.state_dict()
    if wrapped == "deep":
        content = {"epoch": 3, "nets": {"student": content}}
    elif wrapped:
        content = {wrapped: content, "epoch": 3}
    path = tmp_path / "model.pt"
    torch.save(content, path, _use_new_zipfile_serialization=not old_format)
    options = {"key": "nets.student"} if wrapped == "deep" else {}
    assert same(imported(path, **options), model)


def test_prefixes_of_wrappers(tmp_path: Path) -> None:
    model, _ = trained()
    torch.save({f"module._orig_mod.{k}": v for k, v in model.state_dict().items()}, tmp_path / "ddp.pt")
    assert same(imported(tmp_path / "ddp.pt", strip="module."), model)


@pytest.mark.parametrize(
    "tensors", [{"module.w": torch.ones(2), "w": torch.zeros(2)}, {1: torch.ones(2), "1": torch.zeros(2)}]
)
def test_two_tensors_that_would_have_one_name_are_refused(tmp_path: Path, tensors: dict[Any, Any]) -> None:
    torch.save(tensors, tmp_path / "two.pt")
    with pytest.raises(UsageError, match="two tensors"):
        read_weights(tmp_path / "two.pt", strip="module.")


def test_safetensors_in_several_files(tmp_path: Path) -> None:
    model, _ = trained()
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:3]}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[3:]}, tmp_path / "b.safetensors")
    assert same(imported(tmp_path), model)
    save_file({names[0]: tensors[names[0]]}, tmp_path / "c.safetensors")
    with pytest.raises(UsageError, match="and in a file before it"):
        read_weights(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('this must not run')",))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    (tmp_path / "x.pt").write_bytes(b"nonsense")
    torch.save({"w": Evil()}, tmp_path / "evil.pt")
    torch.save([1], tmp_path / "list.pt")
    torch.save({"epoch": 1, "net": {"w": torch.ones(1)}}, tmp_path / "odd.pt")
    (tmp_path / "empty").mkdir()
    for name, said in [
        ("x.safetensors", "safetensors"),
        ("x.pt", "cannot be read"),
        ("evil.pt", "cannot be read"),
        ("list.pt", "holds a list"),
        ("odd.pt", "--key"),
        ("empty", "neither"),
        ("nowhere", "no file"),
    ]:
        with pytest.raises(UsageError, match=said):
            read_weights(tmp_path / name)
    with pytest.raises(UsageError, match="it has epoch, net"):
        read_weights(tmp_path / "odd.pt", key="other")


def test_a_dcp_whose_files_are_gone(tmp_path: Path) -> None:
    vault, _, manifest = saved(trained()[1])
    export_dcp(vault, manifest, tmp_path / "dcp")
    for file in (tmp_path / "dcp").glob("*.distcp"):
        file.unlink()
    with pytest.raises(UsageError, match=r"cannot be read as a distributed checkpoint: .*distcp"):
        read_weights(tmp_path / "dcp", allow_pickle=True)


def test_importing_is_for_a_url_of_its_own() -> None:
    _, state = trained()
    vault, _, _ = saved(state)
    with pytest.raises(CheckpointError, match="a URL of its own"):
        import_weights(vault, {"a": torch.ones(1)})
    with pytest.raises(UsageError, match="no tensors"):
        import_weights(Vault(MemoryStorage()), {})


def test_damage_is_found_and_nothing_is_left_behind(tmp_path: Path) -> None:
    vault, storage, manifest = saved(trained()[1])
    storage.flip_bit(chunk_name(manifest.chunks[0].hash, ""))
    for export in (export_safetensors, export_dcp):
        with pytest.raises(ObjectDamaged):
            export(vault, manifest, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    vault, _, manifest = saved(trained()[1])
    (tmp_path / "there").write_text("precious")
    with pytest.raises(UsageError, match="already"):
        export_safetensors(vault, manifest, tmp_path / "there")
    with pytest.raises(UsageError, match="no folder"):
        export_dcp(vault, manifest, tmp_path / "no" / "where")


def test_what_safetensors_cannot_hold_is_said(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("z", torch.zeros(2, dtype=torch.complex128))
    vault, _, manifest = saved(TrainingState(model, {}))
    with pytest.raises(ConfigError, match="--format dcp"):
        export_safetensors(vault, manifest, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", [export_safetensors, export_dcp])
def test_a_place_that_cannot_be_written_to_is_said(export: Any) -> None:
    vault, _, manifest = saved(trained()[1])
    with pytest.raises(UsageError, match="/proc/out cannot be written"):
        export(vault, manifest, Path("/proc/out"))
