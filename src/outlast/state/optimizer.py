"""An optimizer's state, taken out and put back without a bit of difference.

`Optimizer.load_state_dict` can not be used for this. It casts the state of every parameter to the parameter's
dtype, so the float32 moments that some optimizers keep for bfloat16 weights lose half of their bits, and it
replaces the group dicts, which schedulers and the user's own code may hold on to. Here the state goes
straight into `optimizer.state`, in the dtypes that it had, and groups are updated in place.

Parameters are known by their position, counted through all groups, as in torch's own state dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from outlast.errors import ConfigError, ProtocolError


def parameters_in(optimizer: Optimizer) -> list[Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def capture_optimizer(optimizer: Optimizer, key: str) -> dict[str, Any]:
    """The optimizer's state with its live tensors: nothing is copied."""
    positions = {id(parameter): index for index, parameter in enumerate(parameters_in(optimizer))}
    by_position: dict[int, Any] = {}
    shared: dict[Any, Any] = {}
    for owner, state in cast("dict[Any, Any]", optimizer.state).items():
        if not isinstance(owner, Tensor):
            shared[owner] = state
        elif id(owner) not in positions:
            raise ConfigError(
                f"Optimizer {key!r} has state for a tensor of shape {tuple(owner.shape)} that is in none of "
                "its parameter groups, so it has no name to travel under. Delete it from optimizer.state."
            )
        elif state:
            # Merely looking at `state[p]` makes an empty dict, which means the same as none.
            by_position[positions[id(owner)]] = state
    return {
        "groups": [{name: v for name, v in g.items() if name != "params"} for g in optimizer.param_groups],
        "state": dict(sorted(by_position.items())),
        "shared": shared,
    }


def plan_optimizer_load(optimizer: Optimizer, saved: Any, key: str) -> Callable[[], None]:
    """Check `saved`, which may be anything, and prepare it; the result puts it in place and cannot fail.

    The tensors in `saved` become the optimizer's own where they fit, so they must be nobody else's.
    """
    groups, state, shared = _parts(optimizer, saved, key)
    writes: list[tuple[Tensor, Tensor]] = []
    new_groups = [
        {name: _settled(group.get(name), value, writes) for name, value in values.items()}
        for group, values in zip(optimizer.param_groups, groups, strict=True)
    ]
    owners = [
        (parameter, values)
        for group, values in zip(optimizer.param_groups, groups, strict=True)
        for parameter in group["params"]
    ]
    new_state: dict[Any, Any] = dict(shared)
    for index, values in state.items():
        parameter, group = owners[index]
        new_state[parameter] = _placed(values, parameter, group)

    def load() -> None:
        for group, values in zip(optimizer.param_groups, new_groups, strict=True):
            for name in group.keys() - values.keys() - {"params"}:
                del group[name]
            group.update(values)
        for target, source in writes:
            target.copy_(source)
        optimizer.state.clear()
        optimizer.state.update(new_state)

    return load


def _parts(optimizer: Optimizer, saved: Any, key: str) -> tuple[list[Any], dict[int, Any], dict[Any, Any]]:
    if not isinstance(saved, dict) or saved.keys() != {"groups", "state", "shared"}:
        raise ProtocolError(f"the state of optimizer {key!r} is not what it should be")
    groups, state, shared = saved["groups"], saved["state"], saved["shared"]
    count = len(parameters_in(optimizer))
    if not isinstance(groups, list) or len(groups) != len(optimizer.param_groups):
        raise ProtocolError(f"the state of optimizer {key!r} has another number of groups than its structure")
    if not all(isinstance(group, dict) and "params" not in group for group in groups):
        raise ProtocolError(f"the state of optimizer {key!r} has a malformed group")
    if not isinstance(state, dict) or not isinstance(shared, dict):
        raise ProtocolError(f"the state of optimizer {key!r} is malformed")
    for index, values in state.items():
        if type(index) is not int or not 0 <= index < count or not isinstance(values, dict):
            raise ProtocolError(f"the state of optimizer {key!r} belongs to no parameter that it has")
    return groups, state, shared


def _settled(current: object, value: Any, writes: list[tuple[Tensor, Tensor]]) -> Any:
    """What a group's entry shall be. A tensor stays the one that it is, for others may hold it, as compiled
    optimizers do with their `lr`; its new value is added to `writes`."""
    if not isinstance(value, Tensor) or not isinstance(current, Tensor):
        return value
    if current.shape != value.shape or current.dtype != value.dtype:
        return value.to(current.device)
    writes.append((current, value))
    return current


def _placed(values: dict[Any, Any], parameter: Parameter, group: dict[str, Any]) -> dict[Any, Any]:
    """Tensors live on the parameter's device; `step` stays on the host unless the kernels count there."""
    step_on_device = bool(group.get("capturable")) or bool(group.get("fused"))
    return {
        name: value if name == "step" and not step_on_device else _beside(parameter, value)
        for name, value in values.items()
    }


def _beside(parameter: Parameter, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.shape == parameter.shape and value.stride() != parameter.stride():
            # Moments have the strides of their weights (channels-last, say); other strides take slow kernels.
            with torch.no_grad():
                return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
        return value.to(parameter.device)
    if isinstance(value, dict):
        return {name: _beside(parameter, item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_beside(parameter, item) for item in value)
    return value
