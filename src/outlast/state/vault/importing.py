"""Weights from other tools as the first checkpoint of a run.

What is imported is a model's tensors by name: from safetensors, from a `torch.save` of a state dict, or
from a distributed checkpoint of torch (DCP). It becomes a checkpoint of step 0 that holds weights and
nothing else. A run that starts from it takes the weights, and begins with fresh optimizers at the first
sample (`weights`).

Nothing is unpickled that could run code: `torch.save` files are read with weights_only. DCP keeps its table
of contents as a pickle, which torch reads without looking; so that needs to be allowed explicitly.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outlast.errors import CheckpointError, ConfigError, UsageError
from outlast.state.contents import Image
from outlast.state.image import copy_piece
from outlast.state.vault.chunking import chunk_ranges
from outlast.state.vault.chunks import ChunkWriter
from outlast.state.vault.manifest import RAW, Codec, Manifest
from outlast.state.vault.occupancy import Beating, Watch
from outlast.state.vault.vault import Vault, now_as_text, program_versions
from outlast.state.weights import describe_weights

CONTAINERS = ("model", "state_dict", "model_state_dict")
"""Where scripts keep the model's state dict in a file that holds more than that."""


def import_weights(
    vault: Vault, weights: Mapping[str, Tensor], *, codec: Codec = RAW, watch: Watch | None = None
) -> Manifest:
    """Make the checkpoint of step 0 from these tensors, in a vault that has none."""
    if not weights:
        raise UsageError("there are no tensors to import")
    image, tensors = describe_weights(weights)
    if vault.trunk():
        raise CheckpointError(
            f"There are checkpoints in {vault.storage.url} already, and a run would go on from the newest of "
            "them. Import into a URL of its own."
        )
    claim = vault.make_claim(run=f"import-{secrets.token_hex(4)}", lineage=0, base=None, watch=watch)
    with Beating(vault.storage, claim):
        writer = ChunkWriter(vault.storage, {}, codec=codec)
        chunks = writer.write(_copies(image, tensors))
        manifest = Manifest(
            step=0,
            claim=claim.number,
            base=None,
            run=claim.run,
            lineage=claim.lineage,
            view=0,
            saved_at=now_as_text(),
            writers={"0": claim.host},
            versions=program_versions(),
            replicas=0,
            shards=0,
            tensor_bytes=sum(entry.size_bytes for entry in image.entries),
            new_bytes=writer.written_bytes,
            chunks=tuple(chunks),
            image=image,
        )
        vault.commit(manifest)
    return manifest


def read_weights(
    source: Path, *, key: str | None = None, strip: str = "", allow_pickle: bool = False
) -> dict[str, Tensor]:
    """The tensors of a file or folder, by name. `key` says where in it the model is, and `strip` what to
    take off the beginning of every name."""
    if not source.exists():
        raise UsageError(f"there is no file or folder {source}")
    if source.is_dir():
        shards = sorted(source.glob("*.safetensors"))
        if shards:
            found = _below(_from_safetensors(shards), key, source)
        elif (source / ".metadata").is_file():
            found = _from_dcp(source, key, allow_pickle)
        else:
            raise UsageError(f"{source} holds neither *.safetensors nor a distributed checkpoint of torch")
    elif source.suffix == ".safetensors":
        found = _below(_from_safetensors([source]), key, source)
    else:
        found = _from_torch(source, key)
    return _by_name(((name.removeprefix(strip), tensor) for name, tensor in found.items()), source)


def _from_safetensors(paths: Iterable[Path]) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ConfigError(
            'Reading safetensors needs a package that is not installed: pip install "outlast[safetensors]".'
        ) from error
    found: dict[str, Tensor] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 (it is not a dict)
                    if name in found:
                        raise UsageError(f"{name} is in {path} and in a file before it")
                    found[name] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{path} cannot be read as safetensors: {error}") from error
    return found


def _from_torch(path: Path, key: str | None) -> dict[str, Tensor]:
    loaded: Any
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:
        # Files of an old format cannot be mapped into memory.
        loaded = _loaded_whole(path)
    except Exception as error:
        raise _unfit(path, error) from error
    while isinstance(loaded, Mapping):
        inner = key.split(".") if key else [c for c in CONTAINERS if isinstance(loaded.get(c), Mapping)][:1]
        if not inner:
            break
        for part in inner:
            if not isinstance(loaded, Mapping) or part not in loaded:
                raise UsageError(f"{path} has no {key!r}; it has {_some(loaded)}")
            loaded = loaded[part]
        key = None
    return _only_tensors(loaded, path)


def _loaded_whole(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unfit(path, error) from error


def _from_dcp(folder: Path, key: str | None, allow_pickle: bool) -> dict[str, Tensor]:
    if not allow_pickle:
        raise UsageError(
            f"{folder} is a distributed checkpoint of torch, whose table of contents is a pickle: reading it "
            "runs whatever code its maker put there. If you trust where it is from, say --allow-pickle."
        )
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        metadata = FileSystemReader(folder).read_metadata()
        empty = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        chosen = _chosen_of_dcp(empty, metadata.planner_data or {}, key, folder)
        state = {name: torch.empty_like(empty[name], device="cpu") for name in chosen.values()}
        with warnings.catch_warnings():
            # That there is no process group is as it should be.
            warnings.simplefilter("ignore")
            load(state, checkpoint_id=folder, no_dist=True)
    except UsageError:
        raise
    except (Exception, CheckpointException) as error:
        # Torch's own is no Exception, and what happened is inside of it.
        failures = error.failures.values() if isinstance(error, CheckpointException) else ()
        reason = next((why for why, _ in failures), error)
        raise UsageError(f"{folder} cannot be read as a distributed checkpoint: {reason}") from error
    return {name: state[flat_name] for name, flat_name in chosen.items()}


def _chosen_of_dcp(
    found: Mapping[str, Tensor], paths: Mapping[str, tuple[Any, ...]], key: str | None, folder: Path
) -> dict[str, str]:
    """The model's tensors by their own names, each with the flat name that it has in the checkpoint.

    A flat name joins the keys of nested dicts by dots; `paths` knows the keys. In the names alone,
    "model.x" could be x of a model as well as the model.x that many models have.
    """
    if key is None:
        nested = {path[0] for name, path in paths.items() if name in found and len(path) > 1}
        key = next((container for container in CONTAINERS if container in nested), None)
    if key is None:
        return {name: name for name in found}
    below = {name.removeprefix(f"{key}."): name for name in found if name.startswith(f"{key}.")}
    if not below:
        raise UsageError(f"{folder} has no tensors below {key!r}; it has {_some(found)}")
    return below


def _below(found: dict[str, Tensor], key: str | None, source: Path) -> dict[str, Tensor]:
    prefix = f"{key}." if key else ""
    below = {name.removeprefix(prefix): tensor for name, tensor in found.items() if name.startswith(prefix)}
    if not below:
        raise UsageError(f"{source} has no tensors below {key!r}; it has {_some(found)}")
    return below


def _only_tensors(loaded: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{path} holds a {type(loaded).__name__} and not a state dict")
    # A module's own extra state is code's business: a fresh module has it as at its start.
    named = ((str(name), value) for name, value in loaded.items())
    kept = _by_name(((name, value) for name, value in named if not name.endswith("_extra_state")), path)
    strange = [name for name, value in kept.items() if not isinstance(value, Tensor)]
    if strange:
        raise UsageError(
            f"{path} is no state dict of a model: {', '.join(strange[:5])} are no tensors. If the model is "
            "further inside, say where with --key."
        )
    return kept


def _by_name(named: Iterable[tuple[str, Any]], source: Path) -> dict[str, Any]:
    """None of them may take the place of another one unnoticed."""
    found: dict[str, Any] = {}
    for name, value in named:
        if name in found:
            raise UsageError(f"{source} has two tensors that would be called {name!r}: rename one of them")
        found[name] = value
    return found


def _copies(image: Image, tensors: list[Tensor]) -> Iterator[tuple[range, memoryview]]:
    """Chunk by chunk, when somebody is free to write it."""
    for place in chunk_ranges(image):
        data = memoryview(bytearray(len(place)))
        copy_piece(image, tensors, place, data)
        yield place, data


def _some(names: Any) -> str:
    listed = sorted(map(str, names)) if isinstance(names, Mapping) else []
    return ", ".join(listed[:8]) + (" …" if len(listed) > 8 else "") if listed else "nothing by name"


def _unfit(path: Path, error: Exception) -> UsageError:
    reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return UsageError(
        f"{path} cannot be read as a file of torch.save that holds plain tensors ({reason}). Save "
        "model.state_dict() itself, or convert it to safetensors."
    )
