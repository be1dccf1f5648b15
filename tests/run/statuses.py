"""Statuses of a small run, as a coordinator would tell them."""

from __future__ import annotations

from outlast.protocol.messages import Phase, Pulse, Status
from outlast.protocol.views import Member, Seat, Standing, View


def pulse(replica: int, step: int = 0, phase: Phase = Phase.COMPUTING, **more: object) -> Pulse:
    return Pulse(
        replica=replica, process=1 << 20 | replica, pid=1000 + replica, step=step, phase=phase, **more
    )  # type: ignore[arg-type]


def seat(replica: int, standing: Standing = Standing.MEMBER, **more: object) -> Seat:
    given = {"incarnation": 1, "process": 1 << 20 | replica, "agent": "agent-0", **more}
    return Seat(replica=replica, standing=standing, **given)  # type: ignore[arg-type]


def view(number: int, members: tuple[int, ...], learners: tuple[int, ...] = (), **more: object) -> View:
    """A view of first lives; `lives` says which replicas are in another one."""
    lives = more.pop("lives", {})
    assert isinstance(lives, dict)
    given = {"lineage": 1, "planned_since": number, **more}
    return View(
        number=number,
        members=tuple(Member(replica, lives.get(replica, 1)) for replica in members),
        learners=tuple(Member(replica, lives.get(replica, 1)) for replica in learners),
        **given,  # type: ignore[arg-type]
    )


def status(step: int, members: tuple[int, ...] = (0, 1, 2), number: int = 1, **more: object) -> Status:
    """All of these members are at that step."""
    given = {
        "view": view(number, members),
        "seats": tuple(seat(replica) for replica in members),
        "pulses": tuple(pulse(replica, step, total=1500, samples=128, loss=0.25) for replica in members),
        "replicas": 3,
        **more,
    }
    return Status(job="job", **given)  # type: ignore[arg-type]
