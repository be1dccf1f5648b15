"""Parameters that are frozen or freed while the job runs.

What can be trained is fixed when the job is joined: it has its place in the vector that members exchange.
Within that, a script may freeze parameters and free them again. Which of them are frozen is part of the
state, so that who comes back computes gradients for the same ones. A parameter that was frozen at `join` has
no place in the vector, and cannot be freed: each replica would have a gradient of its own for it
(`gradients.py` looks for that).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from outlast.state.structure import parameters_of


class Freezing:
    def __init__(self, model: nn.Module) -> None:
        self._trainable = {name: p for name, p in parameters_of(model).items() if p.requires_grad}

    @property
    def frozen(self) -> list[str]:
        """Those that could be trained, and are not for the moment."""
        return [name for name, parameter in self._trainable.items() if not parameter.requires_grad]

    def freeze(self, names: Iterable[str]) -> None:
        """These and no others."""
        frozen = set(names)
        for name, parameter in self._trainable.items():
            wanted = name not in frozen
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
