"""`outlast status --json`: how a run stands, for programs. docs/commands.md describes the fields.

Fields may be added; when one changes its meaning or goes, the version grows.
"""

import msgspec

from outlast.protocol.messages import Status
from outlast.run.ended import Ending, State
from outlast.run.scene import newest_saved, scene_of
from outlast.wire.rundir import RunDirectory, RunFile

VERSION = 1


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    replica: int
    does: str
    """In words."""
    step: int | None
    pid: int | None
    agent: str
    incarnation: int
    """Which life of this replica it is; 0 while it has not joined."""


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    step: int | None
    """None while nothing is saved."""
    age_s: float | None
    """None if it is older than the process that tells of it."""


class ViewReport(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    members: tuple[int, ...]
    learners: tuple[int, ...]
    cause: str


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    run: str
    directory: str
    command: tuple[str, ...]
    state: State
    stage: str = ""
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    left_s: float | None = None
    wanted: int = 0
    training: int = 0
    replicas: tuple[ReplicaReport, ...] = ()
    checkpoint: CheckpointReport | None = None
    troubles: tuple[str, ...] = ()
    view: ViewReport | None = None
    ended: Ending | None = None


def report_running(directory: RunDirectory, run: RunFile, status: Status) -> StatusReport:
    scene = scene_of(status, preload=run.preload)
    incarnations = {seat.replica: seat.incarnation for seat in status.seats if seat.present}
    agents = {seat.replica: seat.agent for seat in status.seats}
    saved = newest_saved(status)
    view = status.view
    return StatusReport(
        run=directory.name,
        directory=str(directory.path),
        command=run.argv,
        state="running",
        stage=scene.stage,
        step=scene.step,
        total=scene.total or None,
        loss=scene.loss,
        step_s=scene.step_s or None,
        samples_per_s=scene.samples / scene.step_s if scene.samples and scene.step_s else None,
        left_s=scene.left_s,
        wanted=scene.wanted,
        training=scene.training,
        replicas=tuple(
            ReplicaReport(
                replica=line.replica,
                does=line.does,
                step=line.step,
                pid=line.pid or None,
                agent=agents.get(line.replica, ""),
                incarnation=incarnations.get(line.replica, 0),
            )
            for line in scene.replicas
        ),
        checkpoint=None
        if saved is None
        else CheckpointReport(step=saved.saved if saved.saved >= 0 else None, age_s=saved.saved_ago_s),
        troubles=scene.troubles,
        view=ViewReport(
            number=view.number,
            members=tuple(member.replica for member in view.members),
            learners=tuple(member.replica for member in view.learners),
            cause=view.cause,
        ),
    )


def report_ended(directory: RunDirectory, run: RunFile, ended: Ending | None) -> StatusReport:
    """Of a run whose launcher is gone; without a word from it, it was interrupted."""
    return StatusReport(
        run=directory.name,
        directory=str(directory.path),
        command=run.argv,
        state=ended.state if ended is not None else "interrupted",
        step=ended.step if ended is not None else None,
        total=(ended.total or None) if ended is not None else None,
        wanted=run.spec.replicas,
        ended=ended,
    )
