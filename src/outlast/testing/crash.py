"""Make a replica die at a chosen place: `crash_at("gather", step=7, replica=1)` in a training script.

The process kills itself with SIGKILL when it gets there, in its first life by default, so that the next one
gets through. `crash_by_plan` reads the same from a string, for scripts that are told from outside:

    crash_by_plan("gather@7:1 forward@12:0 joining@any:1.2")

that is point@step:replica[.life], separated by spaces.
"""

from __future__ import annotations

from typing import NamedTuple

from outlast import crashpoints
from outlast.errors import ConfigError
from outlast.wire.handover import handover


class _Death(NamedTuple):
    point: str
    step: int | None
    life: int | None


_plan: list[_Death] = []


def crash_at(
    point: str, *, step: int | None = None, replica: int | None = None, life: int | None = 1
) -> None:
    """Die at this point of that step (None: of any), if this process is that replica in that life of it
    (None: in every one). See `outlast.crashpoints` for the points."""
    known = (*crashpoints.POINTS, *crashpoints.HEARING_POINTS, *crashpoints.SAVE_POINTS)
    if point not in known:
        raise ConfigError(f"there is no crash point {point!r}; there are {', '.join(known)}")
    given = handover()
    if replica is not None and (given is None or given.replica != replica):
        return
    _plan.append(_Death(point, step, life))
    crashpoints.armed = _is_planned


def crash_by_plan(plan: str) -> None:
    for word in plan.split():
        point, _, rest = word.partition("@")
        step, _, who = rest.partition(":")
        replica, _, life = who.partition(".")
        crash_at(
            point,
            step=None if step in ("", "any") else int(step),
            replica=int(replica) if replica else None,
            life=int(life) if life else 1,
        )


def _is_planned(point: str, step: int) -> bool:
    return any(
        death.point == point and death.step in (None, step) and death.life in (None, crashpoints.life)
        for death in _plan
    )
