"""What two programs must have in common for one to load the other's training state.

A joiner runs the user's script like everybody else, but perhaps an older copy of it, or with another flag. If
its model has another shape, or its optimizer another weight decay, then loading the members' state either
fails in the middle or, worse, works and gives a replica that computes something else. So the sender describes
its program in a `Structure`, which travels with the state, and the joiner compares it with its own before it
touches anything. What differs is said in words and by name.

Values that training changes are not part of it: learning rates are loaded, not compared. Other
hyper-parameters are compared as they were when the program began, since a script may schedule them as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from outlast.errors import ProtocolError
from outlast.state.nodes import malformed

VERSION = 1
NAMED_AT_MOST = 3
"""How many names a message lists before it only counts."""

_SCHEDULED = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "params", "param_names"})
_CYCLED = frozenset({"momentum", "betas", "base_momentum", "max_momentum"})


class TensorShape(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    trains: bool


class GroupShape(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    parameters: tuple[str, ...]
    constants: dict[str, str]


class OptimizerShape(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    key: str
    kind: str
    groups: tuple[GroupShape, ...]


class Structure(msgspec.Struct, tag="outlast-structure", frozen=True, forbid_unknown_fields=True):
    version: int
    parameters: tuple[TensorShape, ...]
    buffers: tuple[TensorShape, ...]
    optimizers: tuple[OptimizerShape, ...]
    extras: dict[str, str]
    """The type of each extra, by its key."""


_decoder = msgspec.msgpack.Decoder(Structure)


def encode_structure(structure: Structure) -> bytes:
    return msgspec.msgpack.encode(structure)


def decode_structure(encoded: bytes) -> Structure:
    """The structure, or ProtocolError."""
    try:
        structure = _decoder.decode(encoded)
    except Exception as error:
        raise malformed("structure", error) from error
    if structure.version != VERSION:
        raise ProtocolError(f"the structure has version {structure.version}; this program reads {VERSION}")
    return structure


def parameters_of(model: Module) -> dict[str, Parameter]:
    """By name; a parameter that is tied to another one is there once, under the first of its names."""
    return {plain_name(name): parameter for name, parameter in model.named_parameters()}


def buffers_of(model: Module) -> dict[str, Tensor]:
    """By name, and all of them: also those that a state dict leaves out are state that training changes."""
    return {plain_name(name): buffer for name, buffer in model.named_buffers()}


def plain_name(name: str) -> str:
    """The name without what torch.compile puts into it, so that compiled and eager replicas can mix."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def shape_of(name: str, tensor: Tensor, *, trains: bool | None = None) -> TensorShape:
    """`trains`, if that is not for the tensor to say."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorShape(name, dtype, tuple(tensor.shape), tensor.requires_grad if trains is None else trains)


def optimizer_shape(
    key: str, optimizer: Optimizer, names: Mapping[int, str], constants: Sequence[dict[str, str]]
) -> OptimizerShape:
    """`names` has the name of each parameter by `id`."""
    groups = tuple(
        GroupShape(tuple(names[id(parameter)] for parameter in group["params"]), values)
        for group, values in zip(optimizer.param_groups, constants, strict=True)
    )
    return OptimizerShape(key, type(optimizer).__qualname__, groups)


def constants_of(group: Mapping[str, object]) -> dict[str, str]:
    """The hyper-parameters of a group that are not known to be scheduled, as text."""
    # OneCycleLR and CyclicLR leave these keys in the groups whose momentum they move, too.
    cycled = _CYCLED if {"base_momentum", "max_momentum"} & group.keys() else frozenset[str]()
    return {
        key: repr(value.tolist() if isinstance(value, Tensor) else value)
        for key, value in sorted(group.items())
        if key not in _SCHEDULED and key not in cycled
    }


def changed_constants(theirs: Structure, ours: Structure) -> set[str]:
    """The names of hyper-parameters that differ, in optimizers that are the same otherwise."""
    here = {optimizer.key: optimizer for optimizer in ours.optimizers}
    return {
        name
        for there in theirs.optimizers
        if there.key in here
        for a, b in zip(there.groups, here[there.key].groups, strict=False)
        for name in a.constants.keys() & b.constants.keys()
        if a.constants[name] != b.constants[name]
    }


def differences(theirs: Structure, ours: Structure, changed: Collection[str] = ()) -> list[str]:
    """What differs, one sentence each; none if our program can load their state. Hyper-parameters that are
    named in `changed` may."""
    return [
        *_tensor_differences("parameter", theirs.parameters, ours.parameters),
        *_tensor_differences("buffer", theirs.buffers, ours.buffers),
        *_optimizer_differences(theirs, ours, changed),
        *_extra_differences(theirs.extras, ours.extras),
    ]


def _tensor_differences(what: str, theirs: Iterable[TensorShape], ours: Iterable[TensorShape]) -> list[str]:
    there = {tensor.name: tensor for tensor in theirs}
    here = {tensor.name: tensor for tensor in ours}
    both = [(there[name], here[name]) for name in there if name in here]
    reshaped = [f"{a.name} ({a.shape} there, {b.shape} here)" for a, b in both if a.shape != b.shape]
    retyped = [f"{a.name} ({a.dtype} there, {b.dtype} here)" for a, b in both if a.dtype != b.dtype]
    frozen = [f"{a.name} ({_trains(a)} there, {_trains(b)} here)" for a, b in both if a.trains != b.trains]
    return [
        *listed(f"{what} is missing here", f"{what}s are missing here", [n for n in there if n not in here]),
        *listed(f"{what} is only here", f"{what}s are only here", [n for n in here if n not in there]),
        *listed(f"{what} has another shape", f"{what}s have another shape", reshaped),
        *listed(f"{what} has another dtype", f"{what}s have another dtype", retyped),
        *listed(f"{what} is frozen on one side", f"{what}s are frozen on one side", frozen),
    ]


def _optimizer_differences(theirs: Structure, ours: Structure, changed: Collection[str]) -> list[str]:
    there = {optimizer.key: optimizer for optimizer in theirs.optimizers}
    here = {optimizer.key: optimizer for optimizer in ours.optimizers}
    found = [
        *listed(
            "optimizer is missing here", "optimizers are missing here", sorted(there.keys() - here.keys())
        ),
        *listed("optimizer is only here", "optimizers are only here", sorted(here.keys() - there.keys())),
    ]
    for key in sorted(there.keys() & here.keys()):
        a, b = there[key], here[key]
        if a.kind != b.kind:
            found.append(f"Optimizer {key!r} is {a.kind} there and {b.kind} here.")
        elif len(a.groups) != len(b.groups):
            found.append(
                f"Optimizer {key!r} has {len(a.groups)} parameter groups there and {len(b.groups)} here."
            )
        else:
            pairs = enumerate(zip(a.groups, b.groups, strict=True))
            found += [
                text for index, (x, y) in pairs for text in _group_differences(key, index, x, y, changed)
            ]
    return found


def _group_differences(
    key: str, index: int, theirs: GroupShape, ours: GroupShape, changed: Collection[str]
) -> list[str]:
    where = f"Optimizer {key!r}, group {index}"
    found = []
    if theirs.parameters != ours.parameters:
        found.append(
            f"{where}: it has {len(theirs.parameters)} parameters ({_names(theirs.parameters)}) there and "
            f"{len(ours.parameters)} ({_names(ours.parameters)}) here, or in another order."
        )
    for name in sorted(theirs.constants.keys() | ours.constants.keys()):
        a, b = theirs.constants.get(name, "not set"), ours.constants.get(name, "not set")
        if a != b and name not in changed and not (name in _CYCLED and "not set" in (a, b)):
            found.append(f"{where}: {name} is {a} there and {b} here.")
    return found


def _extra_differences(theirs: dict[str, str], ours: dict[str, str]) -> list[str]:
    return [
        *listed(
            "entry of `state` is missing here",
            "entries of `state` are missing here",
            sorted(theirs.keys() - ours.keys()),
        ),
        *listed(
            "entry of `state` is only here",
            "entries of `state` are only here",
            sorted(ours.keys() - theirs.keys()),
        ),
        *(
            f"Entry {key!r} of `state` is a {theirs[key]} there and a {ours[key]} here."
            for key in sorted(theirs.keys() & ours.keys())
            if theirs[key] != ours[key]
        ),
    ]


def listed(one: str, many: str, names: Sequence[str]) -> list[str]:
    """One sentence that counts and names them; none if there are none."""
    return [f"{len(names)} {one if len(names) == 1 else many}: {_names(names)}."] if names else []


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _trains(tensor: TensorShape) -> str:
    return "trained" if tensor.trains else "frozen"
