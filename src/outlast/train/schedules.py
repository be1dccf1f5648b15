"""Schedules that nobody handed over: found before they do harm.

A learning-rate schedule counts its steps. One that is not in `state=` is not given to a replica that comes
back, which then begins its schedule anew and trains with other rates than the others, while nothing is wrong
with its machine. The mistake is easy to make, since torch keeps schedules apart from optimizers, and it shows
only after the first failure.

Who refers to an optimizer is known to the garbage collector, so its schedules can be found. Those that can be
reached from `state=`, directly or inside of something that is handed over (a chain of schedules, a trainer
that has them as attributes), are in good hands. Of something too large to be searched, nothing is said.
"""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from outlast.errors import ConfigError

DEPTH_MOST = 8
OBJECTS_MOST = 20_000
ITEMS_MOST = 200
"""Of a list or dict no more are looked at: schedules do not come by the hundred."""

_LEAVES = (
    str | bytes | int | float | complex | bool | None | Tensor | Optimizer | type | types.ModuleType
    | types.FunctionType | types.BuiltinFunctionType | types.MethodType | types.CodeType
)  # fmt: skip


class Schedules:
    """Looks after the schedules of a job's optimizers."""

    def __init__(self, optimizers: Mapping[str, Optimizer], state: Mapping[str, Any]) -> None:
        self._optimizers = dict(optimizers)
        self._state = state
        self._scheduled: set[str] = set()
        """Optimizers that had a schedule when it was last looked for them."""
        self._checks = 0

    def check(self) -> None:
        """Raises ConfigError for a schedule that is not in the state."""
        self._scheduled = self._with_schedule()
        self._checks += 1
        for name, optimizer in self._optimizers.items():
            alive = list(_schedules_of(optimizer))
            if not alive:
                continue
            known, searched_all = _reachable(self._state)
            forgotten = [schedule for schedule in alive if id(schedule) not in known]
            if forgotten and searched_all:
                raise ConfigError(_refusal(name, forgotten[0]))

    def check_again(self) -> None:
        """Between steps: a schedule may have been made since. Looks closely before the first step, and then
        only if there is a sign of one: it takes some 10 ms."""
        if self._checks < 2 or not self._with_schedule() <= self._scheduled:
            self.check()

    def _with_schedule(self) -> set[str]:
        # A schedule marks the step() of its optimizer, to find out whether the two are called in order.
        return {
            name
            for name, optimizer in self._optimizers.items()
            if hasattr(optimizer.step, "_wrapped_by_lr_sched")
        }


def _refusal(name: str, schedule: LRScheduler) -> str:
    kind = type(schedule).__name__
    return (
        f"The optimizer {name!r} has a schedule ({kind}) that is in no entry of `state`: a replica that "
        "comes back would begin it anew, and train with other learning rates than the others. Make it before "
        'outlast.join, and hand it over: outlast.join(…, state={"sched": sched}). If nothing depends on it, '
        "unchecked_schedules=True lets it pass."
    )


def _schedules_of(optimizer: Optimizer) -> Iterator[LRScheduler]:
    """All that live."""
    for referrer in gc.get_referrers(optimizer):
        if issubclass(type(referrer), LRScheduler):
            yield referrer
        elif type(referrer) is dict and _looks_like_a_schedule(referrer, optimizer):
            # Attributes may be kept in a dict of their own; then it is this that refers to the optimizer.
            for owner in gc.get_referrers(referrer):
                if issubclass(type(owner), LRScheduler) and vars(owner) is referrer:
                    yield owner


def _looks_like_a_schedule(attributes: dict[Any, Any], optimizer: Optimizer) -> bool:
    return attributes.get("optimizer") is optimizer and "last_epoch" in attributes


def _reachable(state: Mapping[str, Any]) -> tuple[set[int], bool]:
    """All schedules that are in the state, by `id`, and whether all of it was looked at."""
    found: set[int] = set()
    seen: set[int] = set()
    queue: deque[tuple[object, int]] = deque((value, 0) for value in state.values())
    while queue:
        value, depth = queue.popleft()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        if len(seen) >= OBJECTS_MOST or depth > DEPTH_MOST:
            return found, False
        seen.add(id(value))
        if isinstance(value, LRScheduler):
            found.add(id(value))
        queue.extend((part, depth + 1) for part in _parts_of(value))
    return found, True


def _parts_of(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [item for item, _ in zip(value.values(), range(ITEMS_MOST), strict=False)]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [item for item, _ in zip(value, range(ITEMS_MOST), strict=False)]
    parts = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        parts += [getattr(value, name) for name in names if hasattr(value, name)]
    return parts
