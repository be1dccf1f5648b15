"""Kernels compiled by inductor where that pays, and run block by block where it does not: the same bits.

A compiled kernel reads each row once and keeps everything else in registers, which is several times as fast
as one operation after the other. But compiling takes seconds (once per machine: inductor keeps the result
on disk), needs a C++ compiler, and can fail. So whatever goes wrong is logged once, and the eager path does
the work; it is always right. Inputs of fewer than PAYS_ELEMENTS values are never worth it.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from outlast.rules.kernels import Compute, Kernel

BLOCK = 1 << 15
"""Coordinates per block on the eager path: a few dozen rows of that stay in a core's own cache."""

PAYS_ELEMENTS = 1 << 22

_log = logging.getLogger("outlast.rules")
_allowed: ContextVar[bool] = ContextVar("outlast_rules_compiled", default=True)
_Compiled = Callable[[list[Tensor], Tensor, Tensor], Any]
_compiled: dict[tuple[Kernel, int, torch.dtype, torch.dtype], _Compiled | None] = {}
_lock = threading.Lock()


@contextmanager
def eager() -> Iterator[None]:
    """Within this block nothing is compiled, and nothing compiled is used: results are the same, only
    later.
    """
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def run(
    kernel: Kernel, rows: list[Tensor], coefficients: Tensor, out: Tensor, *, pays: bool | None = None
) -> None:
    """out ← kernel(rows, coefficients), rounded to out's dtype. `pays` says that such calls add up."""
    if pays is None:
        pays = len(rows) * out.numel() >= PAYS_ELEMENTS
    if pays and _allowed.get() and _fits(rows, out):
        compiled = _get(kernel, rows, coefficients)
        if compiled is not None:
            try:
                compiled(rows, coefficients, out)
                return
            except Exception as error:
                _give_up(kernel, rows, coefficients, f"{type(error).__name__}: {error}")
    run_eagerly(kernel, rows, coefficients, out)


def run_eagerly(kernel: Kernel, rows: list[Tensor], coefficients: Tensor, out: Tensor) -> None:
    compute = kernel.of(len(rows))
    for begin in range(0, out.numel(), BLOCK):
        part = slice(begin, begin + BLOCK)
        out[part] = compute([row[part] for row in rows], coefficients)


def _fits(rows: list[Tensor], out: Tensor) -> bool:
    return out.device.type == "cpu" and out.numel() > 1 and all(row.is_contiguous() for row in [*rows, out])


def _get(kernel: Kernel, rows: list[Tensor], coefficients: Tensor) -> _Compiled | None:
    key = (kernel, len(rows), rows[0].dtype, coefficients.dtype)
    with _lock:
        if key not in _compiled:
            _compiled[key] = _compile(kernel.of(len(rows)))
        return _compiled[key]


def _compile(compute: Compute) -> _Compiled | None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        _log.warning("rules run uncompiled, several times slower: there is no C++ compiler (g++) on the path")
        return None

    def compute_into(rows: list[Tensor], coefficients: Tensor, out: Tensor) -> None:
        out.copy_(compute(rows, coefficients))

    # Compilations are counted per code object, and stop at a limit; so that many kernels do not use up one
    # limit, each has a code object of its own.
    compute_into.__code__ = compute_into.__code__.replace(co_name=f"compute_{len(_compiled)}")
    compiled: _Compiled = torch.compile(
        compute_into, dynamic=True, fullgraph=True, options={"compile_threads": 1}
    )
    return compiled


def _give_up(kernel: Kernel, rows: list[Tensor], coefficients: Tensor, reason: str) -> None:
    with _lock:
        _compiled[kernel, len(rows), rows[0].dtype, coefficients.dtype] = None
    _log.warning("a rule runs uncompiled, several times slower: %s of %d rows: %s", kernel, len(rows), reason)
