"""Weights without the rest of a training state: how they become an image, and how a model takes them.

Files of other tools hold a model's tensors by name and nothing else. A run that begins with them takes the
weights, and has its optimizers, schedules and data as they are at a start. So what is compared is what such
a file can get wrong: names, shapes and kinds of numbers. As in torch, precision may differ (float32 weights
fit a bfloat16 model) and buffers that a state dict leaves out may be missing. Of a tensor with several
names, one of them is enough, and torch.compile's `_orig_mod` in a name means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Module

from outlast.errors import ConfigError
from outlast.state.contents import Image
from outlast.state.dtypes import DTYPES
from outlast.state.image import describe
from outlast.state.nodes import DictNode, encode
from outlast.state.parts import WEIGHTS, model_tensors
from outlast.state.structure import VERSION, Structure, encode_structure, listed, plain_name, shape_of
from outlast.state.tree import flatten


def describe_weights(weights: Mapping[str, Tensor]) -> tuple[Image, list[Tensor]]:
    """The image of tensors by name, and the tensors in its order."""
    named: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if plain_name(name) in named:
            raise ConfigError(f"There are two tensors {plain_name(name)!r}, one with _orig_mod in its name.")
        named[plain_name(name)] = tensor
    flat = flatten(named, "model")
    shapes = tuple(shape_of(name, tensor.detach()) for name, tensor in named.items())
    structure = encode_structure(Structure(VERSION, shapes, (), (), {}))
    return describe(flat.paths, flat.tensors, encode(DictNode("dict", [(WEIGHTS, flat.plain)])), structure), (
        flat.tensors
    )


def check_weights(model: Module, image: Image) -> None:
    """Raises ConfigError if the model cannot take these weights; says why."""
    saved = model_tensors(image)
    ours = _names_of(model)
    by_name = {name: tensor for names, tensor, _ in ours for name in names}
    shapes = {name: image.entries[index].shape for name, index in saved.items()}
    dtypes = {name: DTYPES.get(image.entries[index].dtype) for name, index in saved.items()}
    both = [name for name in saved if name in by_name]
    reshaped = [
        f"{name} ({shapes[name]} there, {tuple(by_name[name].shape)} here)"
        for name in both
        if shapes[name] != tuple(by_name[name].shape)
    ]
    retyped = [
        f"{name} ({image.entries[saved[name]].dtype} there, {by_name[name].dtype} here)"
        for name in both
        if not _convertible(dtypes[name], by_name[name].dtype)
    ]
    missing = [names[0] for names, _, needed in ours if needed and not any(name in saved for name in names)]
    found = [
        *listed(
            "tensor is not in this model",
            "tensors are not in this model",
            [n for n in saved if n not in by_name],
        ),
        *listed("tensor of this model is missing", "tensors of this model are missing", missing),
        *listed("tensor has another shape", "tensors have another shape", reshaped),
        *listed("tensor holds another kind of numbers", "tensors hold another kind of numbers", retyped),
    ]
    if found:
        raise ConfigError(
            "These weights do not fit the model that is to begin with them. "
            + " ".join(found)
            + " Build the model that they were made for, or rename the tensors before importing them."
        )


def plan_weights(model: Module, image: Image, tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Which tensor of the model takes which value, once `check_weights` is content."""
    saved = model_tensors(image)
    writes: list[tuple[Tensor, Tensor]] = []
    for names, target, _ in _names_of(model):
        values = [(name, tensors[saved[name]]) for name in names if name in saved]
        for name, value in values[1:]:
            if not _same(value, values[0][1]):
                raise ConfigError(
                    f"{values[0][0]} and {name} are one tensor in this model, but the weights have two "
                    "different ones. Leave one of them out when importing, or untie them in the model."
                )
        if values:
            writes.append((target, values[0][1]))
    return writes


def _names_of(model: Module) -> list[tuple[list[str], Tensor, bool]]:
    """Each parameter and buffer with all of its names, and whether a state dict would have it."""
    in_state_dict = {plain_name(name) for name in model.state_dict(keep_vars=True)}
    found: dict[int, tuple[list[str], Tensor]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names, _ = found.setdefault(id(tensor), ([], tensor))
        names.append(plain_name(name))
    return [(names, tensor, not in_state_dict.isdisjoint(names)) for names, tensor in found.values()]


def _convertible(theirs: torch.dtype | None, ours: torch.dtype) -> bool:
    return theirs is not None and (theirs == ours or (theirs.is_floating_point and ours.is_floating_point))


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that a NaN is like itself."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
