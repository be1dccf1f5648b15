"""Snapshots between replicas: the state after one step, given by members, received by who lacks it.

The giver's training thread copies its share of the state when it stands exactly between two steps, and goes
on; the copy travels while it trains. The receiver puts the shares together. A snapshot is named by the view
in which it was decided on: a later view decides anew, since who gives which share has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.memory import bytes_of
from outlast.protocol.step_words import Pin
from outlast.state.contents import Image, decode_image, encode_image, pieces
from outlast.state.image import Assembly, copy_piece
from outlast.state.training import TrainingState


class Copy:
    """One giver's share of the state, copied at one moment."""

    def __init__(self, state: TrainingState, pin: Pin, replica: int, overrides: Mapping[int, Tensor]) -> None:
        image, tensors = state.capture(overrides)
        ranges = pieces(image.total_bytes)
        place = pin.servers.index(replica)
        self.image = encode_image(image)
        self._pieces: list[tuple[int, memoryview]] = []
        for index in range(place, len(ranges), len(pin.servers)):
            copy = torch.empty(len(ranges[index]), dtype=torch.uint8)
            copy_piece(image, tensors, ranges[index], copy)
            self._pieces.append((index, bytes_of(copy)))

    def __iter__(self) -> Iterator[tuple[int, memoryview]]:
        return iter(self._pieces)


class Arrival:
    """A snapshot on its way to this replica."""

    def __init__(self) -> None:
        self.view = -1
        self.step = -1
        self._assembly: Assembly | None = None
        self._image: bytes = b""

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
        elif encoded != self._image:
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
