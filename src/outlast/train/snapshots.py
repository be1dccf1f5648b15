"""Snapshots between replicas: a giver's share of the state after one step.

It is that of the moment when its training thread stands exactly between two steps. It is copied while the
next step computes (`copying.py`), and travels while it trains on. The receiver puts the shares together
(`protocol/inbox.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from outlast.protocol.step_words import Pin
from outlast.state.contents import encode_image, pieces
from outlast.state.training import TrainingState
from outlast.train.copying import Room, ShareCopy


class Gift:
    """One giver's share of the state as it is now. It is copied until `settle` at the latest."""

    def __init__(self, state: TrainingState, pin: Pin, replica: int, overrides: Mapping[int, Tensor]) -> None:
        image, tensors = state.capture(overrides)
        ranges = pieces(image.total_bytes)
        self._indices = range(pin.servers.index(replica), len(ranges), len(pin.servers))
        self.image = encode_image(image)
        lasting = state.lasting(overrides)
        self._share = ShareCopy(
            image,
            tensors,
            [ranges[index] for index in self._indices],
            Room(),
            lasting=lambda tensor: id(tensor) in lasting,
        )

    def start(self) -> None:
        """Copy beside whatever else is done."""
        self._share.start()

    def settle(self) -> list[tuple[int, memoryview]]:
        """The pieces by their numbers; from here on the state may change. CheckpointError if it has already,
        so that the copy is of no moment at all."""
        self._share.settle()
        return [
            (index, memory) for index, (_, memory) in zip(self._indices, self._share.parts(), strict=True)
        ]
