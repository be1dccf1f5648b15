"""What a run has gone through, and what that has cost."""

from __future__ import annotations

from typing import Any

from statuses import seat, status, view

from outlast.protocol import events
from outlast.protocol.messages import Pulse
from outlast.protocol.views import Standing, View
from outlast.run.faults import Fault, fault_of, survived
from outlast.run.pace import Pace, Toll
from outlast.run.story import Story


def happened(*args: Any, **more: Any) -> events.View:
    return events.View.of(view(*args, **more))


KILLED = "replica 1 was killed by SIGKILL (out of memory?)"


def test_one_that_is_killed_and_comes_back() -> None:
    story = Story("job", replicas=3, preload=["torch"])
    assert story.scene.stage == "importing torch"
    assert story.hear(happened(1, (0, 1, 2), cause="the first view"), 1.0) == ["3 of 3 replicas have joined"]
    assert story.heard_status(status(240), 2.0) == []
    assert story.hear(happened(2, (0, 2), cause=KILLED), 2.1) == [
        f"{KILLED} at step 240; 2 of 3 replicas go on"
    ]
    story.heard_status(status(250, (0, 2), number=2), 2.5)
    assert story.scene.fault == f"{KILLED} at step 240; not back yet"
    learning = happened(3, (0, 2), (1,), lives={1: 2}, cause="replica 1 is back", planned_since=2)
    assert story.hear(learning, 3.0) == []
    caught_up = happened(4, (0, 1, 2), lives={1: 2}, cause="replica 1 has caught up", planned_since=2)
    assert story.hear(caught_up, 4.0) == ["replica 1 is back after 1.9 s: 3 of 3 replicas train, at step 250"]
    assert story.hear(happened(2, (0, 2)), 5.0) == [], "old news"
    story.heard_status(status(300, number=4), 5.0)
    assert story.scene.fault == f"{KILLED} at step 240; back after 1.9 s"


def test_a_shadow_is_back_when_it_follows_again() -> None:
    story = Story("job", replicas=1)
    story.hear(happened(1, (0,), (1,)), 1.0)
    lost = happened(2, (0,), cause="replica 1 was killed by SIGKILL", planned_since=1)
    assert story.hear(lost, 2.0) == ["replica 1 was killed by SIGKILL at step 0; 1 of 1 replica goes on"]
    story.hear(happened(3, (0,), (1,), lives={1: 2}, planned_since=1), 4.0)
    assert not story.faults[0].open


def test_a_fault_that_is_over_before_the_next_look_has_its_price() -> None:
    story = Story("job", replicas=2)
    story.hear(happened(1, (0, 1)), 0.0)
    for tick in range(80):
        story.heard_status(status(10 * tick, (0, 1)), tick / 4)
    story.hear(happened(2, (0, 1), cause="a connection broke"), 20.0)
    for tick in range(80, 90):
        story.heard_status(status(10 * (tick - 8), (0, 1), number=2), tick / 4)
    assert abs(story.lost_s - 2.0) < 0.3


def test_who_finishes_or_leaves_is_no_fault_and_nor_is_an_end() -> None:
    story = Story("job", replicas=2)
    story.hear(happened(1, (0, 1)), 1.0)
    assert story.hear(happened(2, (0,), cause="replica 1 leaves", planned_since=1), 2.0) == [
        "replica 1 leaves; 1 of 2 replicas goes on"
    ]
    assert story.hear(happened(3, (), cause="replica 0 has finished"), 3.0) == []
    story.close()
    assert story.hear(happened(4, (1,), cause="replica 0 was killed by SIGKILL"), 4.0) == []
    assert story.faults == []


def test_all_at_once_and_a_connection_that_breaks() -> None:
    story = Story("job", replicas=2)
    story.hear(happened(1, (0, 1)), 1.0)
    assert story.hear(happened(2, (0, 1), cause="a connection broke"), 2.0) == [
        "a connection broke at step 0; 2 of 2 replicas go on"
    ]
    both = "replica 0 was killed by SIGKILL; replica 1 died with its agent agent-0"
    (said,) = story.hear(happened(3, (), cause=both), 3.0)
    assert said.endswith("nobody is left to go on; all are being started again")
    assert story.hear(happened(4, (0, 1), lives={0: 2, 1: 2}, lineage=2), 4.5) == [
        (
            "no replica was left that had the state: 2 of 2 replicas begin again, after 1.5 s, from the "
            "start, since the script gives no checkpoints= to outlast.join"
        )
    ]
    assert len(story.faults) == 3
    assert not any(fault.open for fault in story.faults)


def test_one_that_dies_before_it_joins_is_counted_once() -> None:
    story = Story("job", replicas=3)
    starting = (Pulse(replica=1, process=7, pid=99),)
    gone = (seat(1, Standing.GONE, process=7),)
    story.heard_status(status(0, (), view=View(), seats=(), pulses=(), starting=starting), 1.0)
    for now in (2.0, 3.0):
        story.heard_status(status(0, (), view=View(), seats=gone, pulses=()), now)
    later = (Pulse(replica=1, process=8, pid=100),)
    story.heard_status(status(0, (), view=View(), seats=gone, pulses=(), starting=later), 3.2)
    joined = (seat(1, Standing.LEARNER, process=8),)
    story.heard_status(status(0, (), view=View(), seats=joined, pulses=()), 3.4)
    died = (seat(1, Standing.GONE, process=8),)
    story.heard_status(status(0, (), view=View(), seats=died, pulses=()), 3.6)
    assert [fault.sentence() for fault in story.faults] == ["replica 1 died before it joined"]
    story.hear(happened(1, (0, 1, 2)), 4.0)
    assert story.faults[0].back_at == 4.0


def test_what_was_known_last_stays_when_all_have_left() -> None:
    story = Story("job", replicas=3)
    story.heard_status(status(500), 1.0)
    story.heard_status(status(0, (), number=2, seats=(), pulses=()), 2.0)
    assert story.scene.step == 500
    assert story.scene.training == 0
    story.close()
    story.heard_status(status(501), 3.0)
    assert story.scene.stage == "stopping"


def test_where_a_run_went_on_from() -> None:
    story = Story("job", replicas=1)
    old = Pulse(replica=0, process=1, step=1501, saves=True, saved=1500)
    story.heard_status(status(0, (0,), pulses=(old,)), 1.0)
    new = Pulse(replica=0, process=1, step=1601, saves=True, saved=1600, saved_ago_s=0.5)
    story.heard_status(status(0, (0,), pulses=(new,)), 2.0)
    assert story.resumed_from == 1500
    (said,) = story.hear(happened(5, (0,), lives={0: 2}, lineage=2), 3.0)
    assert said.endswith("begins again, from a checkpoint, of step 1,600 or newer")


def test_causes_of_views_as_people_say_them() -> None:
    cause = f"{KILLED}; replica 11 leaves; nothing is heard of replica 2; replica 3 is back"
    assert fault_of(cause, 1) == KILLED
    assert fault_of(cause, 11) is None
    assert fault_of(cause, 2) == "nothing is heard of replica 2"
    assert fault_of(cause, 3) == "replica 3 was lost"
    barred = (
        "replica 1 of agent-0, step 7: it is wrong; replica 1 has done so 3 times, and is not let in again"
    )
    assert fault_of(f"{barred}; replica 2 leaves", 1) == barred


def test_all_faults_in_one_line() -> None:
    def fault(why: str, step: int, replica: int | None = 1) -> Fault:
        return Fault(why=why, replica=replica, step=step, at=1.0)

    assert survived([], 3.0) == ""
    two = [fault(KILLED, 240), fault("replica 0 is stopped", 700, 0)]
    assert survived(two, 3.14) == (
        "survived 2 faults (replica 1 killed at step 240, replica 0 stopped at step 700), "
        "which cost about 3.1 s"
    )
    hung = "replica 1 hangs at step 12 while others wait for it"
    assert fault(hung, 12).sentence() == hung
    assert survived([fault(hung, 12)], 0.2).endswith("hung at step 12), which cost less than half a second")
    many = [fault(KILLED, step) for step in range(9)]
    assert "replica 1 killed at step 3, and 5 more)" in survived(many, 60)
    assert fault("the coordinator was killed and replaced", 9, None).in_short() == (
        "the coordinator was killed and replaced at step 9"
    )


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace(window_s=10.0)
    assert pace.step_s == 0.0
    pace.saw(100, 1.0)
    pace.saw(101, 1.5)
    assert pace.step_s == 0.0, "too little to say"
    for second in range(2, 40):
        pace.saw(100 + 2 * second, float(second))
    assert pace.step_s == 0.5
    pace.saw(3, 50.0)
    assert pace.step_s == 0.0, "it began again"


def steady(toll: Toll, start: float, until: float, step: int, *, step_s: float = 0.1) -> int:
    """Looks every quarter of a second at a run that makes its steps."""
    now = start
    while now < until:
        now += 0.25
        toll.saw(step + round((now - start) / step_s), now, disturbed=False)
    return step + round((now - start) / step_s)


def test_a_fault_costs_what_the_same_steps_would_not_have_taken() -> None:
    toll = Toll()
    step = steady(toll, 0.0, 20.0, 0)
    # Nothing is done for two seconds, of which the first half is not known to be a fault yet.
    toll.saw(step, 21.0, disturbed=False)
    toll.saw(step, 22.0, disturbed=True)
    # It goes on at half the speed for four seconds, and is as before after that.
    toll.saw(step + 20, 26.0, disturbed=True)
    toll.saw(step + 25, 26.5, disturbed=False)
    assert abs(toll.lost_s - 4.0) < 0.3
    steady(toll, 26.5, 40.0, step + 25)
    toll.close()
    assert abs(toll.lost_s - 4.0) < 0.3


def test_steps_that_are_done_again_cost_and_other_work_does_not() -> None:
    toll = Toll()
    step = steady(toll, 0.0, 20.0, 0)
    toll.saw(step, 20.25, disturbed=True)
    toll.saw(step - 100, 23.0, disturbed=True)
    toll.saw(step - 100, 100.0, disturbed=True, aside=True)
    toll.saw(step, 110.0, disturbed=True)
    toll.saw(step, 300.0, disturbed=True)
    toll.close()
    assert abs(toll.lost_s - 13.0) < 0.3, "until the last step; what came after it is not the fault's"


def test_a_fault_before_any_pace_is_known_costs_nothing_that_can_be_told() -> None:
    toll = Toll()
    toll.saw(1, 1.0, disturbed=True)
    toll.saw(2, 9.0, disturbed=False)
    toll.close()
    assert toll.lost_s == 0.0


def test_a_coordinator_that_is_replaced_is_a_fault_and_an_agent_is_told_of_by_its_replicas() -> None:
    story = Story("job", replicas=2)
    assert story.hear(events.Restarted(who="coordinator", cause="was killed by SIGKILL"), 1.0) == []
    assert story.hear(events.Restarted(who="agent-0", cause="was killed by SIGKILL"), 2.0) == []
    assert [fault.why for fault in story.faults] == ["the coordinator was killed and replaced"]
    story.hear(events.Ended(state="finished", reason=""), 3.0)
    assert story.closed
