"""Randomness that depends on what is computed, never on who computes it.

A shard may be computed by any replica, in any worker, at first or again after a failure, and must come out
with the same bits. So no generator is ever carried on from what happened to be computed before: it is seeded
anew from the numbers that name the work, such as (seed, step, shard). `mix` turns such numbers into a seed.

Three generators are seeded, since these are the ones that user code draws from without being asked: torch's,
Python's and numpy's. numpy is never imported for this, but torch imports it wherever it is installed.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

from outlast.train.mixing import MASK, Purpose, mix

chosen = 0
"""The seed of the run, as far as this process knows."""

_NUMPY = 1


def seed_everything(value: int) -> None:
    """Seed torch's CPU generator, Python's and, where numpy is loaded, numpy's (12 µs in all)."""
    torch.default_generator.manual_seed(value & MASK)
    random.seed(value & MASK)
    # Looked up by name, because `numpy.random` itself may be loaded only at its first use, which would
    # otherwise be in the middle of the first sample, too late to be seeded.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # torch and numpy run the same algorithm from 32 bits of seed: equal seeds would be equal streams.
        numpy.random.seed(mix(value, _NUMPY) >> 32)


def seed_shard(seed: int, step: int, shard: int) -> None:
    """Before the forward pass of a shard: everything above, and the generators of all GPUs in use."""
    value = mix(Purpose.COMPUTE, seed, step, shard)
    seed_everything(value)
    # Asking an unused CUDA for a seed would queue the call until somebody starts CUDA; leave it alone.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value)


@contextlib.contextmanager
def randomness_kept() -> Iterator[None]:
    """Put the state of the generators back at the end, as if nothing in between had drawn from them.

    That takes 0.15 ms, of which numpy's state takes most.
    """
    torch_state = torch.default_generator.get_state()
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def seed(value: int) -> None:
    """Seed torch, Python and numpy, and all randomness of the run that this process is to take part in."""
    global chosen
    chosen = value
    seed_everything(value)
