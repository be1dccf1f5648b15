"""What `join` is given to train, whatever way a script holds it: one module, or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from outlast.errors import ConfigError


def one_model(model: nn.Module | Mapping[str, nn.Module]) -> nn.Module:
    """The model itself, or several put together: parameters are then called `G.weight`, and the like."""
    if isinstance(model, nn.Module):
        return model
    example = 'a torch.nn.Module, or several by name: model={"G": G, "D": D}'
    if not isinstance(model, Mapping):
        raise ConfigError(f"model is a {type(model).__name__}; give {example}.")
    if not model:
        raise ConfigError(f"model = {{}}: there is nothing to train; give {example}.")
    for name, module in model.items():
        if not isinstance(module, nn.Module):
            raise ConfigError(f"model[{name!r}] is a {type(module).__name__}; give {example}.")
    try:
        return nn.ModuleDict(dict(model))
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"model: a name in {list(model)} cannot be one ({error.args[0]}). Use letters and digits."
        ) from None


def named_optimizers(optimizer: Optimizer | Mapping[str, Optimizer] | None) -> dict[str, Optimizer]:
    if optimizer is None:
        return {}
    several = isinstance(optimizer, Mapping)
    named = dict(optimizer) if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
    for name, one in named.items():
        if not several and not isinstance(one, Optimizer):
            raise ConfigError(f"optimizer is a {type(one).__name__}, not a torch.optim.Optimizer.")
        if isinstance(one, torch.optim.LBFGS):
            raise ConfigError(
                f"The optimizer {name!r} is LBFGS, which computes gradients by itself, several times in a "
                "step and on this replica's data alone: replicas would drift apart. Use an optimizer that "
                "takes one gradient per step, such as AdamW or SGD with momentum."
            )
    return named


class GuardedClosure:
    """Stands in for what was given to `optimizer.step(closure)`. One that only returns a loss does no harm;
    one that computes gradients would put those of this replica's data in the place of the step's."""

    def __init__(self, closure: Any, optimizer: Optimizer) -> None:
        self._closure = closure
        self._optimizer = optimizer

    def __call__(self) -> Any:
        before = self._gradients()
        loss = self._closure()
        if self._gradients() != before:
            raise ConfigError(
                f"{type(self._optimizer).__name__}.step(closure): the closure computes gradients, of this "
                "replica's data only, and the step's own are lost. Compute the loss in the loop over the "
                "shards, with step.backward(loss), and call the optimizer's step() without a closure"
            )
        return loss

    def _gradients(self) -> list[tuple[int, int]]:
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return [(0, 0) if p.grad is None else (id(p.grad), p.grad._version) for p in parameters]


def guarded(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The arguments of `optimizer.step`, with the closure under guard; None if there is none."""
    if len(args) > 1 and callable(args[1]):
        return (args[0], GuardedClosure(args[1], optimizer), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": GuardedClosure(kwargs["closure"], optimizer)}
    return None
