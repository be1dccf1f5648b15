"""Schedules are drawn from their seed alone, and from everything that there is to draw from."""

import pytest
from quiet import LONGEST
from schedule import EXITS, KINDS, PROCESSES, draw, draw_cuts

SEEDS = range(400)


def test_a_seed_is_one_schedule() -> None:
    assert draw(17) == draw(17)
    assert draw(17) != draw(18)
    assert draw_cuts(17) == draw_cuts(17)


def test_everything_is_drawn_sooner_or_later() -> None:
    faults = [fault for seed in SEEDS for fault in draw(seed).faults]
    assert {fault.kind for fault in faults} == set(KINDS)
    for kind in ("kill", "stop"):
        assert {fault.target for fault in faults if fault.kind == kind} == set(PROCESSES)
    assert {fault.how for fault in faults if fault.kind == "exit"} == set(EXITS)
    for kind in ("cut", "lose", "add"):
        assert {fault.target for fault in faults if fault.kind == kind} == {"mesh", "control"}


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_can_be_drawn_alone(kind: str) -> None:
    for seed in range(50):
        schedule = draw(seed, [kind])
        assert {fault.kind for fault in schedule.faults} == {kind}


def test_a_job_has_what_its_faults_need_and_outlasts_them() -> None:
    for schedule in map(draw, SEEDS):
        assert schedule.steps <= LONGEST
        steps = [fault.step for fault in schedule.faults]
        assert steps == sorted(steps) and steps and steps[-1] < schedule.steps
        for fault in schedule.faults:
            assert schedule.every or fault.target != "vault"
            assert schedule.workers or fault.target != "worker"
            assert (fault.kind, fault.target) != ("hold", "launcher"), "nobody could wake it"
        launchers = [f for f in schedule.faults if (f.kind, f.target) == ("kill", "launcher")]
        assert len(launchers) <= 1


def test_cuts_are_many_and_of_nothing_else() -> None:
    for seed in range(12):
        schedule = draw_cuts(seed)
        assert len(schedule.faults) == 25
        assert {(fault.kind, fault.target) for fault in schedule.faults} == {("cut", "mesh")}
    assert {draw_cuts(seed).replicas for seed in range(6)} == {2, 3, 4}
    assert {(draw_cuts(seed).replicas, draw_cuts(seed).verify) for seed in range(6)} == {
        (replicas, verify) for replicas in (2, 3, 4) for verify in ("auto", "None")
    }
