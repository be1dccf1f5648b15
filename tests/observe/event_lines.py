"""Lines of events as tests write them: short, and with a time that only grows."""

from __future__ import annotations

import itertools

from outlast.observe.written import Written
from outlast.protocol import events
from outlast.protocol.events import AnyEvent, Life

_clock = itertools.count(1)


def line(source: str, event: AnyEvent, *, incarnation: int = 0, pid: int = 1, dropped: int = 0) -> Written:
    now = float(next(_clock))
    return Written(
        time=now,
        monotonic=now,
        source=source,
        pid=pid,
        incarnation=incarnation,
        dropped=dropped,
        event=event,
    )


def said(replica: int, *told: AnyEvent, life: int = 1, pid: int = 1) -> list[Written]:
    """What one life of a replica has written."""
    return [line(f"replica-{replica}", event, incarnation=life, pid=pid) for event in told]


def view(number: int, *members: int, learners: tuple[int, ...] = (), life: int = 1) -> events.View:
    return events.View(
        number=number,
        lineage=1,
        members=tuple(Life(member, life) for member in members),
        learners=tuple(Life(learner, life) for learner in learners),
        planned_since=number,
        cause="a test",
    )


def step(number: int, in_view: int = 1, loss: float | None = 0.5, *, own: bool = True) -> events.Step:
    return events.Step(step=number, view=in_view, lineage=1, loss=loss, own=own)


def stable(number: int, in_view: int = 1) -> events.Stable:
    return events.Stable(step=number, view=in_view, lineage=1)
