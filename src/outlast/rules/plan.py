"""What a rule has decided: the same for every slice, and carried out slice by slice.

A plan mixes contributions (or picks some of them, or takes all as they are) and reduces the mixtures
coordinate by coordinate with a kernel. It is a pure function of the Gram matrix, so all members hold the
same.

Nothing here holds more than a block of rows beside its input and output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.rules import exchanges
from outlast.rules.compiling import PAYS_ELEMENTS, run
from outlast.rules.gram import Rows, is_ready, load, one_thread, product_dtype, workspace
from outlast.rules.kernels import Blend, Kernel, Middle

BLOCK = 1 << 16
TINY = 2.0**-100
"""Coefficients below that would lose digits in float32, whose smallest normal number is 2⁻¹²⁶."""


@dataclass(frozen=True)
class Plan:
    """Reduce `mix` x contributions with `kernel`."""

    kernel: Kernel
    mix: Tensor
    """Mixtures x sources, float64."""
    sources: tuple[int, ...]
    """The contributions that take part, by number; len(rows) stands for the centre."""

    def apply(self, rows: Rows, centre: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """Carries the plan out on one slice, whose rows are all the contributions."""
        out = rows[0].new_empty(rows[0].numel()) if out is None else out
        # A centre that is not given is the origin, which adds nothing.
        present = [k for k, source in enumerate(self.sources) if source < len(rows) or centre is not None]
        mix = self.mix[:, present]
        sources = [
            centre if centre is not None and self.sources[k] == len(rows) else rows[self.sources[k]]
            for k in present
        ]
        wide = out.dtype == torch.float64 or bool(((mix != 0) & (mix.abs() < TINY)).any())
        dtype = torch.float64 if wide else torch.float32
        if isinstance(self.kernel, Blend):
            _blend(sources, mix[0], dtype, out)
        elif (picked := _picked(mix)) is not None:
            run(self.kernel, [sources[k] for k in picked], torch.empty(0, dtype=dtype), out)
        elif (swapped := _swapped(self.kernel, mix, out.numel())) is not None:
            kernel, given = swapped
            run(kernel, [sources[k] for k in given], torch.empty(0, dtype=dtype), out)
        else:
            whole = isinstance(rows, Tensor) and self.sources == tuple(range(len(rows)))
            _mix(self.kernel, rows if whole else sources, mix, dtype, out)
        return out


def _blend(sources: list[Tensor], coefficients: Tensor, dtype: torch.dtype, out: Tensor) -> None:
    used = [k for k, coefficient in enumerate(coefficients.tolist()) if coefficient != 0]
    if not used:
        out.zero_()
    elif len(used) == 1 and coefficients[used[0]] == 1:
        out.copy_(sources[used[0]])
    else:
        # What has no part in the sum must not be read: zero times Inf is NaN. Something else is read in its
        # place, so that the kernel need not be compiled for every number of sources.
        stand_in = sources[used[0]]
        chosen = set(used)
        sources = [source if k in chosen else stand_in for k, source in enumerate(sources)]
        run(Blend(), sources, coefficients.to(dtype), out)


def _picked(mix: Tensor) -> list[int] | None:
    """Which source each mixture is, if all of them are plainly that."""
    if ((mix == 0) | (mix == 1)).all() and ((mix != 0).sum(1) == 1).all():
        return [int(k) for k in mix.argmax(1)]
    return None


def _swapped(kernel: Kernel, mix: Tensor, d: int) -> tuple[Kernel, list[int]] | None:
    """Where there is much to do, a kernel that need not make the mixtures. It is not left to compilers'
    presence whether that is so, since sums are rounded differently.
    """
    if not isinstance(kernel, Middle) or len(mix) * d < exchanges.PAYS_ELEMENTS:
        return None
    return exchanges.as_exchanges(kernel, mix)


def _mix(kernel: Kernel, sources: Rows, mix: Tensor, dtype: torch.dtype, out: Tensor) -> None:
    if dtype == torch.float32:
        dtype = product_dtype(dtype)
    count, d = len(mix), out.numel()
    factors = mix.to(dtype)
    direct = sources if is_ready(sources, dtype) else None
    loaded = workspace(0 if direct is not None else len(sources), min(BLOCK, d), dtype)
    mixed = workspace(count, min(BLOCK, d), dtype)
    nothing = torch.empty(0, dtype=dtype)
    pays = count * d >= PAYS_ELEMENTS
    for begin in range(0, d, BLOCK):
        block = slice(begin, min(begin + BLOCK, d))
        width = block.stop - block.start
        if direct is not None:
            part = direct[:, block]
        else:
            part = loaded[:, :width]
            load(sources, block, part)
        with one_thread():
            torch.mm(factors, part, out=mixed[:, :width])
        run(kernel, list(mixed[:, :width].unbind(0)), nothing, out[block], pays=pays)
