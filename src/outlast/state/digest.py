"""One hash for a training state: equal if and only if every bit of it is.

Exact replicas hold the same bits, so comparing two short strings tells whether they still do; tests compare a
run that lost machines with one that did not. The hash covers names, dtypes, shapes and raw bytes, so a NaN
counts with its payload and -0.0 is not 0.0. It does not depend on the order in which dicts were filled, on
which objects hold the values, on strides or devices, or on whether the model is compiled.
"""

from __future__ import annotations

import hashlib
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from outlast.state.contents import PIECE_BYTES, encode_image, pieces
from outlast.state.image import copy_piece, describe
from outlast.state.nodes import encode
from outlast.state.optimizer import capture_optimizer
from outlast.state.structure import buffers_of, parameters_of
from outlast.state.tree import flatten


def state_digest(model: Module, *optimizers: Optimizer) -> str:
    """A hex hash over parameters, buffers and the optimizers' state, learning rates included."""
    value = {
        "parameters": dict(parameters_of(model)),
        "buffers": dict(buffers_of(model)),
        "optimizers": [_optimizer_values(optimizer, index) for index, optimizer in enumerate(optimizers)],
    }
    flat = flatten(_in_order(value))
    image = describe(flat.paths, flat.tensors, encode(flat.plain), b"")
    digest = hashlib.blake2b(encode_image(image), digest_size=32)
    buffer = memoryview(bytearray(min(PIECE_BYTES, image.total_bytes)))
    for piece in pieces(image.total_bytes):
        part = buffer[: len(piece)]
        copy_piece(image, flat.tensors, piece, part)
        digest.update(part)
    return digest.hexdigest()


def _optimizer_values(optimizer: Optimizer, index: int) -> dict[str, Any]:
    values = capture_optimizer(optimizer, str(index))
    for group in values["groups"]:
        # Names are in the digest already, and these have the prefixes of compiled modules.
        group.pop("param_names", None)
    return values


def _in_order(value: Any) -> Any:
    """The same value with all dicts in the order of their keys."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value, key=repr)}
    if type(value) in (list, tuple):
        return type(value)(_in_order(item) for item in value)
    return value
