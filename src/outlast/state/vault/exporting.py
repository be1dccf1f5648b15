"""A checkpoint in the formats of other tools: safetensors, and torch's distributed checkpoints (DCP).

By default it is the model: parameters and buffers by the names that they have in a state dict, without the
`_orig_mod` of torch.compile. A parameter with several names is there once, under the first of them. With
`everything`, optimizers and the extra state come as well; in safetensors only their tensors, since it holds
nothing else. Only chunks that hold what is exported are read, and all of them are verified.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from outlast.errors import ConfigError, UsageError
from outlast.state.contents import Image
from outlast.state.image import Assembly
from outlast.state.parts import holds_weights_only, model_tensors, parts_of, tensors_within
from outlast.state.structure import decode_structure
from outlast.state.tree import unflatten
from outlast.state.vault.chunks import THREADS, read_chunks
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.vault import Vault


def load_tensors(
    vault: Vault, manifest: Manifest, indices: Mapping[str, int], threads: int = THREADS
) -> dict[str, Tensor]:
    """Some tensors of a checkpoint, under the names given. Memory is used for what is read, and no more."""
    assembly = Assembly(manifest.image, ranges=[range(c.start, c.stop) for c in manifest.chunks])
    wanted = {piece for index in indices.values() for piece in assembly.pieces_of(index)}
    read_chunks(vault.storage, manifest, assembly, sorted(wanted), threads=threads)
    return {name: assembly.tensor(index) for name, index in indices.items()}


def export_safetensors(vault: Vault, manifest: Manifest, out: Path, *, everything: bool = False) -> list[str]:
    """Write one file; the names of the tensors in it."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigError(
            'Writing safetensors needs a package that is not installed: pip install "outlast[safetensors]".'
        ) from error
    image = manifest.image
    indices = {**model_tensors(image), **(_other_tensors(image) if everything else {})}
    tensors = load_tensors(vault, manifest, indices)
    about = {"format": "pt", "outlast.step": str(manifest.step), "outlast.run": manifest.run}

    def write(draft: Path) -> None:
        try:
            save_file(tensors, draft, metadata=about)
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            if "I/O error" in str(error):
                raise OSError(str(error)) from error
            raise ConfigError(
                f"safetensors cannot hold this checkpoint ({error}). Try --format dcp."
            ) from error

    _in_one_move(out, write)
    return list(tensors)


def export_dcp(vault: Vault, manifest: Manifest, out: Path, *, everything: bool = False) -> list[str]:
    """Write a folder that torch.distributed.checkpoint.load reads; the names of the model's tensors in it.

    Its state dict is {"model": …}, and with `everything` also "optimizers", "extras" and "step".
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    image = manifest.image
    names = model_tensors(image)
    if everything and not holds_weights_only(image):
        assembled = load_tensors(vault, manifest, {str(i): i for i in range(len(image.entries))})
        tensors = [assembled[str(index)] for index in range(len(image.entries))]
        parts = parts_of(image.plain)
        state: dict[str, Any] = {
            "model": {name: tensors[index] for name, index in names.items()},
            "optimizers": _by_parameter(image, unflatten(parts["optimizers"], tensors)),
            "extras": unflatten(parts["extras"], tensors),
            "step": manifest.step,
        }
    else:
        state = {"model": load_tensors(vault, manifest, names)}

    def write(draft: Path) -> None:
        with warnings.catch_warnings():
            # That there is no process group is as it should be.
            warnings.simplefilter("ignore")
            try:
                save(state, checkpoint_id=draft, no_dist=True)
            except CheckpointException as error:
                # It is no Exception, and what happened is inside of it.
                raise next((why for why, _ in error.failures.values()), OSError(str(error))) from None

    _in_one_move(out, write)
    return list(names)


def _other_tensors(image: Image) -> dict[str, int]:
    """Optimizer state and extras as flat names: `optimizers.main.layer.weight.exp_avg`, `state.ema.…`."""
    if holds_weights_only(image):
        return {}
    parts = parts_of(image.plain)
    positions = _parameter_names(image)
    found: dict[str, int] = {}
    for path, index in tensors_within(parts["optimizers"]):
        match path:
            case (str(key), "state", int(position), *rest):
                path = (key, positions[key][position], *map(str, rest))
        found[".".join(["optimizers", *map(str, path)])] = index
    for path, index in tensors_within(parts["extras"]):
        found[".".join(["state", *map(str, path)])] = index
    return found


def _by_parameter(image: Image, optimizers: dict[str, Any]) -> dict[str, Any]:
    positions = _parameter_names(image)
    return {
        key: {
            "state": {positions[key][position]: values for position, values in saved["state"].items()},
            "param_groups": saved["groups"],
        }
        for key, saved in optimizers.items()
    }


def _parameter_names(image: Image) -> dict[str, list[str]]:
    """Each optimizer's parameters by their position."""
    return {
        shape.key: [name for group in shape.groups for name in group.parameters]
        for shape in decode_structure(image.structure).optimizers
    }


def _in_one_move(out: Path, write: Callable[[Path], None]) -> None:
    """Write beside the place and move it there, so that what has the name is whole."""
    if os.path.lexists(out):
        raise UsageError(f"{out} is there already; give another name, or remove it first")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent} to write {out.name} into")
    draft = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        write(draft)
        draft.rename(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error}") from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
