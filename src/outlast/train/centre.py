"""The point that clipping starts from: the last update that the rule came to.

Rules such as `CentredClipping` measure how far contributions are from their last result. That is state: all
members must start from the same point, and so must one that joins or a run that is resumed. Members need not
agree on it, since they hold the same records; it is the vector of the last one. Who lacks that record is
given the point with the rest of the training state, parameter by parameter, under the same names.

A run begins at the origin. An update that is not finite, or that no sample had a part in, is no point to
start from: then it stays where it was, for everybody, since everybody sees the same record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outlast.errors import ProtocolError
from outlast.train.layout import Layout
from outlast.train.records import Record


class Centre:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._size = layout.entries[layout.parameter_count - 1].span.stop
        self._vector: Tensor | None = None
        self._record: Record | None = None
        """Keeps the vector from being used for something else."""

    def part(self, lo: int, hi: int) -> Tensor | None:
        """These coordinates of the point; None is the origin."""
        return None if self._vector is None else self._vector[lo:hi]

    def follow(self, record: Record) -> None:
        """This record has been applied. It is never written to again, so a reference to it is enough."""
        if record.note.weight and bool(record.vector[: self._size].isfinite().all()):
            self._vector, self._record = record.vector, record

    def state(self) -> dict[str, Tensor] | None:
        if self._vector is None:
            return None
        views = self._layout.views(self._vector)[: self._layout.parameter_count]
        entries = self._layout.entries[: self._layout.parameter_count]
        return {entry.name: view for entry, view in zip(entries, views, strict=True)}

    def load(self, state: Mapping[str, Any] | None) -> None:
        self._vector = self._record = None
        if state is None:
            return
        vector = torch.zeros(self._layout.size, dtype=self._layout.dtype)
        views = self._layout.views(vector)
        entries = self._layout.entries[: self._layout.parameter_count]
        if state.keys() != {entry.name for entry in entries}:
            raise ProtocolError("the centre of the rule is not one for this model's parameters")
        for entry, view in zip(entries, views, strict=False):
            if state[entry.name].shape != entry.shape:
                raise ProtocolError(f"the centre of the rule has another shape for {entry.name}")
            view.copy_(state[entry.name])
        self._vector = vector
