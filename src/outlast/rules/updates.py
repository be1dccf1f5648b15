"""What users hold (tensors, state_dicts) as slices of rows, without copying it, and the result back in that
form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outlast.errors import ConfigError
from outlast.rules.gram import Rows

INTEGER_BLOCK = 1 << 14


@dataclass(frozen=True)
class Updates:
    """n contributions: `slices` has one set of n rows for each floating-point tensor of a contribution."""

    count: int
    slices: list[Rows]
    shapes: list[torch.Size]
    keys: list[str] | None
    """The keys of state_dicts that hold floating-point tensors; None if contributions are plain tensors."""
    dicts: list[Mapping[str, Tensor]]

    @staticmethod
    def of(updates: Any) -> Updates:
        if isinstance(updates, Tensor):
            if updates.ndim == 0 or len(updates) == 0:
                raise ConfigError(
                    "there are no contributions: give an (n, d) tensor with one per row, or a list"
                )
            _check_tensor(updates, "updates")
            rows = updates.detach().reshape(len(updates), updates[0].numel())
            return Updates(len(updates), [rows], [updates.shape[1:]], None, [])
        if not isinstance(updates, Sequence) or not updates:
            raise ConfigError(
                "there are no contributions: give a list of tensors or state_dicts, or one tensor"
            )
        if isinstance(updates[0], Tensor):
            return Updates(len(updates), [_flat(updates, "updates")], [updates[0].shape], None, [])
        if isinstance(updates[0], Mapping):
            return _of_dicts(updates)
        raise ConfigError(f"contributions are tensors or state_dicts, not {type(updates[0]).__name__}")

    def slices_of(self, one: Any) -> list[Tensor] | list[None]:
        """A single update, such as the last result, cut as the contributions are."""
        if one is None:
            return [None] * len(self.slices)
        if self.keys is None:
            tensors = [one]
        else:
            tensors = [one[key] for key in self.keys if key in one] if isinstance(one, Mapping) else []
        if [tensor.shape for tensor in tensors if isinstance(tensor, Tensor)] != self.shapes:
            raise ConfigError("the centre has other keys or shapes than the contributions")
        return [tensor.detach().reshape(-1) for tensor in tensors]

    def places(self, out: Tensor | None) -> Sequence[Tensor | None]:
        """Where the results go: None is new memory."""
        if out is None:
            return [None] * len(self.slices)
        if self.keys is not None or out.shape != self.shapes[0] or out.dtype != self.slices[0][0].dtype:
            raise ConfigError(
                "out has another shape or dtype than the contributions, or these are state_dicts"
            )
        if not out.is_contiguous() or out.requires_grad:
            raise ConfigError("out has to be contiguous, and no tensor that requires gradients")
        return [out.view(-1)]

    def rebuilt(self, results: list[Tensor], counted: Sequence[int]) -> Any:
        """An update again. Whole numbers come from those that counted."""
        tensors = [result.view(shape) for result, shape in zip(results, self.shapes, strict=True)]
        if self.keys is None:
            return tensors[0]
        by_key = dict(zip(self.keys, tensors, strict=True))
        those = [self.dicts[k] for k in counted if k < self.count]
        return {
            key: by_key[key] if key in by_key else _lower_median([one[key] for one in those])
            for key in self.dicts[0]
        }


def _of_dicts(dicts: Sequence[Any]) -> Updates:
    keys = list(dicts[0])
    for index, one in enumerate(dicts):
        if not isinstance(one, Mapping) or set(one) != set(keys):
            raise ConfigError(f"contribution {index} has other keys than the first one")
    for key in keys:
        if not isinstance(dicts[0][key], Tensor):
            raise ConfigError(f"{key!r} is not a tensor but {type(dicts[0][key]).__name__}: leave it out")
    floating = [key for key in keys if dicts[0][key].is_floating_point()]
    slices: list[Rows] = [_flat([one[key] for one in dicts], repr(key)) for key in floating]
    for key in set(keys) - set(floating):
        _check_alike([one[key] for one in dicts], repr(key))
        if dicts[0][key].is_complex():
            raise ConfigError(
                f"{key!r} has complex numbers, which have no order: give real and imaginary parts"
            )
    if not floating:
        raise ConfigError("there is no floating-point tensor in the contributions")
    return Updates(len(dicts), slices, [dicts[0][key].shape for key in floating], floating, list(dicts))


def _flat(tensors: Sequence[Tensor], name: str) -> list[Tensor]:
    _check_alike(tensors, name)
    _check_tensor(tensors[0], name)
    # A view, but for tensors that are not contiguous.
    return [tensor.detach().reshape(-1) for tensor in tensors]


def _check_alike(tensors: Sequence[Any], name: str) -> None:
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor) or tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise ConfigError(
                f"{name} of contribution {index} is not a {first.dtype} of shape {tuple(first.shape)}"
            )
        if tensor.device.type != "cpu":
            raise ConfigError(f"{name} of contribution {index} is on {tensor.device}: move it to the CPU")


def _check_tensor(tensor: Tensor, name: str) -> None:
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ConfigError(
            f"{name} has the dtype {tensor.dtype}: rules work on float16, bfloat16, float32 and float64"
        )
    if tensor.device.type != "cpu":
        raise ConfigError(f"{name} is on {tensor.device}: move it to the CPU")
    if tensor.layout != torch.strided:
        raise ConfigError(f"{name} is not a dense tensor: call to_dense() first")


def _lower_median(tensors: list[Tensor]) -> Tensor:
    """Per value the lower median, which is one of the values, and no minority's."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    out = torch.empty_like(flat[0])
    for begin in range(0, out.numel(), INTEGER_BLOCK):
        block = torch.stack([row[begin : begin + INTEGER_BLOCK] for row in flat])
        out[begin : begin + INTEGER_BLOCK] = block.sort(dim=0).values[(len(flat) - 1) // 2]
    return out.view(tensors[0].shape)
