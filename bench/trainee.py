"""A training that saves when it is told to, by itself in one process, and what can be heard of its saves.

An MLP with AdamW whose layers all have the same size, so that a tenth of ten layers is one of them. It joins
like any other script, with `checkpoints`, and saves as any other does; only the wish to save comes from here
instead of the clock, so that a benchmark knows which of its steps hold one.
"""

import logging
import math
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor, nn

import outlast
from outlast.train.saving import Saving

LAYERS = 10
STATE_BYTES_PER_PARAMETER = 12
"""A weight and two moments."""
LEARNING_RATE = 1e-4
ENDLESS = 1_000_000_000
WITHIN_S = 120.0
COMMITTED = re.compile(
    r"the checkpoint of step (\d+) is committed, ([\d.]+) s after it was decided; training was held for "
    r"([\d.]+) s; ([\d.]+) s of CPU time and (\d+) bytes were written here"
)


@dataclass(frozen=True)
class Saved:
    """What the library says of a save that it committed."""

    step: int
    took_s: float
    """From the decision until the manifest was there."""
    held_s: float
    worked_s: float
    new_bytes: int


class Heard(logging.Handler):
    """Hears of saves, and lets warnings through to where people see them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.saved: list[Saved] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = COMMITTED.match(record.getMessage())
        if found is not None:
            step, took_s, held_s, worked_s, new_bytes = found.groups()
            self.saved.append(Saved(int(step), float(took_s), float(held_s), float(worked_s), int(new_bytes)))
        elif record.levelno >= logging.WARNING:
            print(record.getMessage(), file=sys.stderr, flush=True)


class Trainee:
    """Use it in a `with` block."""

    def __init__(self, width: int, batch: int, **checkpoints: Any) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.optimizer = torch.optim.AdamW(self.layers.parameters(), lr=LEARNING_RATE)
        self.used = LAYERS
        """How many layers take part: what is not used does not change, nor do its moments."""
        self._batch = torch.randn(batch, width)
        self.job = outlast.join(model=self.layers, optimizer=self.optimizer, **checkpoints)
        self._saving: Saving | None = None
        self._steps: Iterator[outlast.Step] | None = None
        self._wish = 0
        self._decided_after = 0
        self._heard = Heard()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        # The package's logger, since which module says it is nobody's business but the library's.
        log = logging.getLogger("outlast.train")
        log.addHandler(self._heard)
        log.setLevel(logging.INFO)
        self._stack.callback(log.removeHandler, self._heard)
        own_wish = Saving.wish

        def wish(saving: Saving, step: int) -> int:
            self._saving = saving
            found = own_wish(saving, step)
            return found if found == 2 else self._wish

        self._stack.enter_context(patch.object(Saving, "wish", wish))
        self._stack.enter_context(self.job)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def step(self) -> float:
        """One step as any loop has it; how long it took, all included."""
        if self._steps is None:
            self._steps = self.job.steps(ENDLESS)  # Alone, one may leave the loop whenever one likes.
        begin = time.perf_counter()
        step = next(self._steps)
        for _ in step:
            step.backward(self._loss())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin

    def step_and_decide(self) -> float:
        """A step after which the state is to be saved; the next one has the copying in it."""
        self._wish, self._decided_after = 1, len(self._heard.saved)
        try:
            return self.step()
        finally:
            self._wish = 0

    def until_saved(self) -> tuple[list[float], Saved]:
        """Train on until the save that was decided is committed, and nothing is left to do for it."""
        deadline = time.monotonic() + WITHIN_S
        steps = []
        while self._decided_after == len(self._heard.saved):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no save was committed within {WITHIN_S} s")
            steps.append(self.step())
        self.wait_until_idle()
        return steps, self._heard.saved[-1]

    def wait_until_idle(self) -> None:
        """No save is under way, and nothing is being pruned."""
        while self._saving is not None and not self._saving.idle:
            time.sleep(0.001)

    @property
    def saving(self) -> Saving:
        assert self._saving is not None, "known after the first step"
        return self._saving

    @property
    def saved(self) -> list[Saved]:
        return self._heard.saved

    def state(self) -> dict[str, Any]:
        """As another library would be given it."""
        return {"model": self.layers.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[Tensor]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [parameter.detach() for parameter in self.layers.parameters()] + moments

    def _loss(self) -> Tensor:
        values = self._batch
        for layer in list(self.layers)[: self.used]:
            values = torch.nn.functional.gelu(layer(values))
        return values.square().mean()


def width_for(state_bytes: int) -> int:
    """A round width with which the state has about this size."""
    exact = math.sqrt(state_bytes / STATE_BYTES_PER_PARAMETER / LAYERS)
    return max(16, round(exact / 16) * 16)
