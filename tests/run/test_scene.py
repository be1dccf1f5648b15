"""How a run stands, in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from statuses import pulse, seat, status, view

from outlast.protocol.messages import Phase, Pulse, Status
from outlast.protocol.views import Charge, Member, Outcome, Seat, Standing, View
from outlast.run.picture import render
from outlast.run.scene import TRAINING, Scene, lacking, scene_of

JARGON = ("incarnation", "life ", "learner", "view ", "lineage", "member")


def drawn(scene: Scene) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(render(scene))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_run_that_trains_fits_into_80_columns_and_has_no_words_of_ours() -> None:
    scene = scene_of(
        status(
            240,
            pulses=(
                pulse(
                    0,
                    240,
                    total=1500,
                    samples=128,
                    loss=0.3121,
                    pace_s=0.05,
                    saves=True,
                    saved=200,
                    saved_ago_s=8.2,
                ),
                pulse(1, 239, total=1500, pace_s=0.05),
            ),
            seats=(seat(2, Standing.GONE), seat(1, Standing.LEARNER), seat(0)),
            view=view(3, (0,), (1,)),
        ),
        fault="replica 1 was killed by SIGKILL (out of memory?) at step 240; back after 1.9 s",
    )
    lines = drawn(scene)
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["job", "training"]
    assert "240 of 1,500" in lines[1]
    assert "16%" in lines[1]
    assert lines[2].rstrip() == "loss 0.3121 · 2,560 samples/s · 1 min 3 s left · 1 of 3 replicas training"
    assert lines[3].rstrip() == "checkpoint: step 200, 8.2 s ago"
    assert lines[4].startswith("last fault: replica 1 was killed by SIGKILL")
    assert [line.split()[:4] for line in lines[5:]] == [
        ["replica", "0", "training", "step"],
        ["replica", "1", "catching", "up"],
        ["replica", "2", "restarting"],
    ]
    assert not any(word in line for word in JARGON for line in lines)


def test_long_text_is_cut_and_never_taken_for_markup() -> None:
    trouble = "[red]not red[/red] [/]"
    lines = drawn(Scene(run="[b]job", stage="x" * 100, fault="y" * 100, troubles=(trouble,)))
    assert lines[0].startswith("[b]job  xxx")
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].rstrip() == trouble


def born(replica: int, pid: int) -> Pulse:
    return Pulse(replica=replica, process=5 + replica, pid=pid)


@pytest.mark.parametrize(
    ("given", "stage", "detail"),
    [
        ({"view": View(), "seats": (), "pulses": ()}, "importing torch", ""),
        ({"view": View(), "seats": (), "pulses": (), "starting": (born(0, 0),)}, "importing torch", ""),
        ({"view": View(), "seats": (), "pulses": (), "starting": (born(0, 7),)}, "starting replicas", ""),
        (
            {"view": View(), "seats": (seat(0, Standing.LEARNER),), "pulses": ()},
            "starting replicas",
            "1 of 3 has joined",
        ),
        (
            {"view": View(), "seats": tuple(seat(n, Standing.LEARNER) for n in range(3)), "pulses": ()},
            "forming the group",
            "",
        ),
        ({"pulses": (pulse(0, 0, Phase.STARTING),)}, "giving all replicas the same state", ""),
        (
            {"pulses": (pulse(0, 0, Phase.STARTING, saves=True),)},
            "looking for a checkpoint to go on from",
            "",
        ),
        ({"pulses": (pulse(0, 0, Phase.STARTING), pulse(1, 3))}, TRAINING, ""),
        ({"view": view(2, ())}, "all replicas were lost, and are being started again", ""),
        ({"pulses": (pulse(0, 9, Phase.DONE),)}, "finishing", ""),
        ({"outcome": Outcome(finished=True, reason="all work is done")}, "finished", ""),
        ({"outcome": Outcome(finished=False, reason="it broke")}, "failed: it broke", ""),
    ],
)
def test_stages(given: dict[str, object], stage: str, detail: str) -> None:
    scene = scene_of(status(0, **given), preload=["torch"])
    assert (scene.stage, scene.detail) == (stage, detail)


@pytest.mark.parametrize(
    ("seated", "seen", "words"),
    [
        (seat(0), pulse(0, 5), "training"),
        (seat(0), pulse(0, 5, Phase.WAITING, quiet_s=0.1), "training"),
        (seat(0), pulse(0, 5, Phase.WAITING, quiet_s=12.0), "waiting for others since 12 s"),
        (seat(0), pulse(0, 5, Phase.STARTING), "getting its state"),
        (seat(0), pulse(0, 5, Phase.ASIDE), "at other work (job.aside)"),
        (seat(0), pulse(0, 5, Phase.DONE), "done, waiting for the others"),
        (seat(0), pulse(0, 5, stopped_s=3.0), "stopped for 3.0 s"),
        (seat(0), None, "not heard from"),
        (seat(0, Standing.LEARNER), pulse(0, 5), "catching up"),
        (seat(3, Standing.LEARNER), None, "following, to save checkpoints"),
        (seat(0, Standing.EVICTED), pulse(0, 5), "restarting"),
        (seat(0, Standing.GONE), None, "restarting"),
        (seat(0, Standing.GONE, offences=3), None, "excluded after 3 wrong results"),
        (seat(0, Standing.FINISHED), None, "finished"),
    ],
)
def test_what_a_replica_does(seated: Seat, seen: Pulse | None, words: str) -> None:
    told = status(5, seats=(seated,), pulses=(seen,) if seen is not None else ())
    assert [line.does for line in scene_of(told).replicas] == [words]


def test_replicas_that_have_not_joined_are_shown_too() -> None:
    told = status(0, view=View(), seats=(), pulses=(), starting=(born(1, 0), born(0, 7)))
    assert [(line.replica, line.does) for line in scene_of(told, preload=["torch"]).replicas] == [
        (0, "starting"),
        (1, "importing torch"),
    ]
    again = status(5, (0,), starting=(Pulse(replica=0, process=9),))
    assert scene_of(again).replicas[0].does == "restarting"


def test_a_run_that_goes_on_is_where_its_checkpoint_was() -> None:
    scene = scene_of(status(0, pulses=(pulse(0, 0, saves=True, saved=1500, total=2000),)))
    assert (scene.step, scene.total, scene.checkpoint) == (1500, 2000, "step 1,500")
    trouble = status(
        9, pulses=(pulse(0, 9, saves=True),), saving="nothing saved yet; the last try failed: full"
    )
    assert scene_of(trouble).checkpoint == "none yet; the last try failed: full"


def test_speed_without_data_or_without_a_total() -> None:
    assert Scene(run="job", step=7, step_s=0.1).progress() == ["10 steps/s"]
    assert Scene(run="job", step=7).steps() == "step 7"
    assert Scene(run="job", step=7, total=5, step_s=0.1).left_s is None


def test_a_lack_of_replicas_is_said() -> None:
    one = View(number=3, members=(Member(0, 1),), paused=True)
    paused = Status(job="job", view=one, seats=(seat(0),), needed=2)
    assert lacking(paused) == "waiting: 1 of at least 2 replicas"
    assert scene_of(paused).stage == lacking(paused)
    forming = Status(job="job", view=View(), seats=(seat(0, Standing.LEARNER),), needed=2)
    assert lacking(forming) == "waiting: 1 of at least 2 replicas"
    assert lacking(Status(job="job", view=View(), seats=())) == ""
    assert lacking(Status(job="job", view=View(number=3, members=(Member(0, 1),)), seats=())) == ""
    ended = Outcome(finished=True, reason="all work is done")
    assert lacking(Status(job="job", view=one, seats=(), needed=2, outcome=ended)) == ""


def test_every_trouble_is_shown() -> None:
    charge = Charge(view=2, step=7, reason="it sent other bits", replica=1)
    scene = scene_of(
        status(
            9,
            silent=("agent-1",),
            rejected={"malformed": 2, "credentials": 1},
            trouble="the disk is full",
            charges=(charge,),
        )
    )
    assert scene.troubles == (
        "not heard from: agent-1",
        "turned away: 1 credentials, 2 malformed",
        "the disk is full",
    )
    assert scene.fault == "step 7, replica 1: it sent other bits"
