"""The state at the end of the loop of steps, kept for those who come back after it.

The chief may be killed while it does what there is to do after the last step; its next life has to be given
the final state by one whose own script has gone on meanwhile, and may have changed the model: loaded other
weights, or cast it to half precision. So this is a copy. It is made before the last state is compared with
that of the others: what is in it is what was compared, or all go back and it is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from outlast.protocol.step_words import Pin
from outlast.state.contents import encode_image, pieces
from outlast.state.image import copy_piece, fresh_memory
from outlast.state.training import TrainingState


class FinalState:
    """The state after one step; nobody writes to it any more."""

    def __init__(self, step: int, state: TrainingState, overrides: Mapping[int, Tensor]) -> None:
        image, tensors = state.capture(overrides)
        self.step = step
        self.image = encode_image(image)
        self._ranges = pieces(image.total_bytes)
        self._memory = memoryview(fresh_memory(max(1, image.total_bytes)))
        for piece in self._ranges:
            copy_piece(image, tensors, piece, self._memory[piece.start : piece.stop])

    def share(self, pin: Pin, replica: int) -> list[tuple[int, memoryview]]:
        """The pieces that this replica gives, by their numbers."""
        indices = range(pin.servers.index(replica), len(self._ranges), len(pin.servers))
        return [(i, self._memory[self._ranges[i].start : self._ranges[i].stop]) for i in indices]
