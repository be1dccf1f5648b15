"""A model's buffers over one step: every shard starts from the step's own.

A forward pass may change buffers (a BatchNorm's running statistics, a counter). If a shard saw what the shard
before it left behind, the result would depend on who computed what. So the values with which a step begins
are remembered, each shard starts from them, and what the shards made of them is averaged like a gradient.

A buffer has changed if it was written to or has another content: the latter finds what came in by another
tensor, and what was written past autograd's eyes by way of `.data`. One that has not changed in any shard
keeps its bits.
"""

import torch
from torch import Tensor, nn

from outlast.errors import ConfigError
from outlast.train.layout import Layout
from outlast.train.sums import from_bytes, raw_bytes


class _Place:
    """One buffer's place in the model; the tensor there may be replaced at any time."""

    def __init__(self, model: nn.Module, name: str) -> None:
        path, _, self._key = name.rpartition(".")
        self._registry = model.get_submodule(path)._buffers
        self.name = name
        self.own = self.current()
        self.saved = self.own.detach().clone()
        self._version = -1

    def current(self) -> Tensor:
        buffer = self._registry.get(self._key)
        if buffer is None:
            raise ConfigError(
                f"The buffer {self.name} is gone. Buffers must stay registered while the job runs; to clear "
                "one, fill it with zeros."
            )
        return buffer

    def remember(self) -> None:
        # Moving or loading a model between steps replaces its buffers, so look again.
        self.own = self.current()
        if self.saved.shape != self.own.shape or self.saved.dtype != self.own.dtype:
            raise ConfigError(
                f"The buffer {self.name} became {self.own.dtype} {tuple(self.own.shape)}; it was "
                f"{self.saved.dtype} {tuple(self.saved.shape)} when the job was joined, and members must "
                "agree. Change buffers before joining."
            )
        self.saved.copy_(self.own)
        self._version = self.own._version

    def put(self, value: Tensor) -> None:
        self.own.copy_(value)
        self._registry[self._key] = self.own
        self._version = self.own._version

    def look(self) -> tuple[Tensor, bool]:
        """What is there now, and whether it differs from what the step began with."""
        now = self.current()
        if now.shape != self.saved.shape:
            raise ConfigError(
                f"The buffer {self.name} changed its shape from {tuple(self.saved.shape)} to "
                f"{tuple(now.shape)} in a shard, so the shards' values can't be merged. Keep its shape."
            )
        return now, now._version != self._version or not _same(now, self.saved)


def _same(one: Tensor, other: Tensor) -> bool:
    """NaN is the same as NaN here: a table that marks its gaps with it has not changed."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


class StepBuffers:
    """All buffers of a model, for one step after another."""

    def __init__(self, layout: Layout, model: nn.Module) -> None:
        self._floats = [_Place(model, entry.name) for entry in layout.float_entries]
        self._integers = [_Place(model, integer.name) for integer in layout.integers]
        self._all = self._floats + self._integers
        self._first = layout.parameter_count
        self._touched = False
        self._remembered = False
        """Whether what is saved is what the present step began with."""

    def remember(self) -> None:
        """These are the buffers of the step that begins."""
        if self._all:
            with torch.no_grad():
                for place in self._all:
                    place.remember()
            self._touched, self._remembered = False, True

    def begin_shard(self) -> None:
        """Undo what any shard before did."""
        if self._touched:
            with torch.no_grad():
                for place in self._all:
                    place.put(place.saved)
        self._touched = bool(self._all)

    def end_shard(self, weight: float, views: list[Tensor]) -> tuple[int, dict[int, bytes]]:
        """Write the shard's float buffers, times its weight, to their views. Returns the mask of those that
        changed, and the integer buffers that changed. Without weight a shard has no say in either."""
        if weight == 0:
            for view in views[self._first :]:
                view.zero_()
        elif self._all:
            with torch.no_grad():
                return self._write_floats(weight, views), self._changed_integers()
        return 0, {}

    def saved(self) -> dict[int, Tensor]:
        """The buffers in the model, by their `id`, and what they were when the step began: copies that stay
        as they are to its end. Empty between two steps, where the buffers themselves are what counts."""
        return {id(place.current()): place.saved for place in self._all} if self._remembered else {}

    def take(self, views: list[Tensor], mask: int, integers: dict[int, bytes]) -> None:
        """The step's result: what changed in any shard is set, all else is what the step began with."""
        if not self._all:
            return
        with torch.no_grad():
            for index, place in enumerate(self._floats, start=self._first):
                if mask >> index & 1:
                    place.put(views[index])
                elif self._touched:
                    place.put(place.saved)
            for index, place in enumerate(self._integers):
                if index in integers:
                    place.put(from_bytes(integers[index], place.saved.dtype).view(place.saved.shape))
                elif self._touched:
                    place.put(place.saved)
        self._touched = self._remembered = False

    def _write_floats(self, weight: float, views: list[Tensor]) -> int:
        mask = 0
        factor = torch.tensor(weight, dtype=views[0].dtype)
        for index, place in enumerate(self._floats, start=self._first):
            now, changed = place.look()
            view = views[index]
            if now.dtype is view.dtype and now.device == view.device:
                torch.mul(now, factor, out=view)
            else:
                view.copy_(now).mul_(factor)
            mask |= changed << index
        return mask

    def _changed_integers(self) -> dict[int, bytes]:
        integers: dict[int, bytes] = {}
        for index, place in enumerate(self._integers):
            now, changed = place.look()
            if changed:
                integers[index] = raw_bytes(_mergeable(place, now))
        return integers


def _mergeable(place: _Place, now: Tensor) -> Tensor:
    if now.is_complex():
        raise ConfigError(
            f"The complex buffer {place.name} changed in a shard, and there is no way to merge the shards' "
            "values. Register its real and imaginary part as two buffers."
        )
    return now.to(place.saved.dtype)
