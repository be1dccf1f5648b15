"""Snapshots between replicas: the state after one step, given by members, received by who lacks it.

The giver's share is that of the moment when its training thread stands exactly between two steps. It is
copied while the next step computes (`copying.py`), and travels while it trains on. The receiver puts the
shares together. A snapshot is named by the view in which it was decided on: a later view decides anew, since
who gives which share has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.protocol.step_words import Pin
from outlast.state.contents import Image, decode_image, encode_image, pieces
from outlast.state.image import Assembly
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


class Arrival:
    """A snapshot on its way to this replica."""

    def __init__(self) -> None:
        self.view = -1
        self.step = -1
        self._assembly: Assembly | None = None
        self._image: bytes = b""
        self.final = False
        """Whether all who give it say that it is what the run ends with."""

    @property
    def complete(self) -> bool:
        return self._assembly is not None and self._assembly.complete

    @property
    def image(self) -> Image:
        assert self._assembly is not None
        return self._assembly.image

    def tensors(self) -> list[Tensor]:
        assert self._assembly is not None
        return self._assembly.tensors()

    def described(self, header: Header, encoded: bytes) -> None:
        """The table of contents has come, from one of the givers."""
        if header.view < self.view:
            return
        if header.view > self.view:
            self._assembly = Assembly(decode_image(encoded))
            self.view, self.step, self._image = header.view, header.step, encoded
            self.final = True
        self.final &= bool(header.flags)
        if header.view == self.view and encoded != self._image:
            raise ProtocolError(
                f"two members hold different states after step {header.step}; their descriptions differ"
            )

    def slot(self, header: Header) -> memoryview | None:
        if header.view != self.view or self._assembly is None:
            return None
        if header.lo >= len(self._assembly.pieces) or header.size != len(self._assembly.pieces[header.lo]):
            raise ProtocolError(f"piece {header.lo} of the state after step {header.step} has a wrong size")
        return self._assembly.slot(header.lo)

    def arrived(self, header: Header) -> bool:
        """A piece is there; whether it was the last one."""
        if header.view != self.view or self._assembly is None or self._assembly.complete:
            return False
        self._assembly.note(header.lo)
        return self._assembly.complete
