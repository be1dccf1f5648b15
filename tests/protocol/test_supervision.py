"""An agent starts its replicas, tells what became of them until it is agreed, and starts them again."""

from dataclasses import replace

import pytest

from outlast.protocol.messages import Beat, BeatAck, Check, Departure, Ended, Fetch, Message, Phase, ViewNews
from outlast.protocol.restarts import Legacy, RestartPolicy
from outlast.protocol.supervision import (
    LAST_WORDS_LIMIT,
    AgentAction,
    AgentCore,
    AskToLeave,
    Exit,
    JobEnded,
    KillReplica,
    Sample,
    StartReplica,
    TellCoordinator,
    TellPeople,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, Outcome, View, boot_of, process_number

TIMING = Timing()
KILLED = Exit(how="was killed by SIGKILL", killed=True)
CLEAN = Exit(how="exited with status 0", clean=True)
CRASHED = Exit(how="exited with status 1", own_fault=True, last_words="Traceback …\nNameError: x")
OUTCOME = Outcome(finished=True, reason="all work is done")


def agent(*replicas: int, boot: int = 1, limit: int = 5, legacy: Legacy | None = None) -> AgentCore:
    """An agent that has started its replicas at time 0."""
    core = AgentCore(
        agent="agent-0",
        boot=boot,
        replicas=replicas or (0,),
        timing=TIMING,
        policy=RestartPolicy(limit=limit, healthy_after_s=10.0),
        legacy=legacy,
    )
    core.start(0.0)
    return core


def told(actions: list[AgentAction]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, TellCoordinator)]


def beat_in(actions: list[AgentAction]) -> Beat:
    (beat,) = [message for message in told(actions) if isinstance(message, Beat)]
    return beat


def starts(actions: list[AgentAction]) -> list[StartReplica]:
    return [action for action in actions if isinstance(action, StartReplica)]


def kills(actions: list[AgentAction]) -> list[KillReplica]:
    return [action for action in actions if isinstance(action, KillReplica)]


def seen_training(core: AgentCore, replica: int, now: float, incarnation: int = 1, step: int = 0) -> None:
    core.sampled({replica: Sample(incarnation=incarnation, step=step, phase=Phase.COMPUTING)}, now)


def news(number: int, *members: tuple[int, int]) -> ViewNews:
    return ViewNews(view=View(number=number, members=tuple(Member(*member) for member in members)))


def restarted_after(core: AgentCore, replica: int, died_at: float) -> float:
    """Let time pass until the replica is started again."""
    for n in range(1000):
        now = died_at + n * TIMING.tick_every_s
        if any(start.replica == replica for start in starts(core.tick(now))):
            return now - died_at
    raise AssertionError("it was not started again")


def test_it_starts_every_replica_once() -> None:
    core = AgentCore(agent="a", boot=1, replicas=(3, 4, 7), timing=TIMING, policy=RestartPolicy())
    actions = core.start(0.0)
    assert [start.replica for start in starts(actions)] == [3, 4, 7]
    assert len({start.process for start in starts(actions)}) == 3
    assert core.living() == {start.replica: start.process for start in starts(actions)}
    assert starts(core.tick(1.0)) == []


def test_processes_are_numbered_in_the_order_of_their_start_across_restarts_of_the_agent() -> None:
    core = agent(0)
    first = core.living()[0]
    core.exited(0, first, KILLED, 1.0)
    restarted_after(core, 0, 1.0)
    second = core.living()[0]
    reborn = agent(0, boot=2).living()[0]
    assert first < second < reborn
    assert (boot_of(second), boot_of(reborn)) == (1, 2)


def test_it_beats_at_every_interval_and_not_in_between() -> None:
    core = agent(0)
    first = beat_in(core.tick(0.0))
    assert core.tick(TIMING.beat_every_s / 2) == []
    second = beat_in(core.tick(TIMING.beat_every_s))
    assert (second.agent, second.boot) == ("agent-0", 1)
    assert second.number == first.number + 1


def test_a_beat_tells_what_is_seen_of_every_living_process() -> None:
    core = agent(0, 1)
    core.sampled(
        {1: Sample(incarnation=2, view=5, step=9, phase=Phase.WAITING, quiet_s=0.4, stopped_s=0.1)}, 0.0
    )
    pulses = {pulse.replica: pulse for pulse in beat_in(core.tick(0.0)).pulses}
    assert set(pulses) == {0, 1}
    one = pulses[1]
    assert (one.process, one.incarnation, one.view, one.step) == (core.living()[1], 2, 5, 9)
    assert (one.phase, one.quiet_s, one.stopped_s) == (Phase.WAITING, 0.4, 0.1)


def test_a_doubt_is_answered_at_once() -> None:
    core = agent(0)
    core.tick(0.0)
    assert beat_in(core.received(Check(), 0.01)).pulses


def test_an_exit_is_told_at_once_and_repeated_until_it_is_noted() -> None:
    core = agent(0)
    process = core.living()[0]
    expected = Departure(replica=0, process=process, how="was killed by SIGKILL")
    assert beat_in(core.exited(0, process, KILLED, 1.0)).departures == (expected,)
    core.received(BeatAck(number=1, view=0), 1.0)
    assert beat_in(core.tick(1.2)).departures == (expected,), "heard is not agreed"
    core.received(BeatAck(number=2, view=0, noted=(process,)), 1.3)
    assert beat_in(core.tick(1.4)).departures == ()


def test_noting_one_exit_does_not_silence_another() -> None:
    core = agent(0, 1)
    first, second = core.living()[0], core.living()[1]
    core.exited(0, first, KILLED, 1.0)
    core.exited(1, second, KILLED, 1.0)
    core.received(BeatAck(number=1, view=0, noted=(first,)), 1.1)
    assert [d.process for d in beat_in(core.tick(1.2)).departures] == [second]


def test_the_exit_of_a_process_that_was_replaced_already_is_no_news() -> None:
    core = agent(0)
    old = core.living()[0]
    core.exited(0, old, KILLED, 1.0)
    restarted_after(core, 0, 1.0)
    assert core.exited(0, old, KILLED, 2.0) == []
    assert 0 in core.living()


def test_a_replica_that_was_killed_in_the_midst_of_its_work_is_started_again_at_the_next_tick() -> None:
    core = agent(0)
    for life in range(20):
        born = float(life)
        seen_training(core, 0, born, incarnation=life + 1, step=0)
        seen_training(core, 0, born + 0.2, incarnation=life + 1, step=1)
        core.exited(0, core.living()[0], KILLED, born + 0.3)
        assert restarted_after(core, 0, born + 0.3) == 0.0
    assert beat_in(core.beat(30.0)).gave_up is None


def test_a_replica_that_is_killed_again_and_again_without_any_progress_is_given_up() -> None:
    core = agent(0, limit=2)
    seen_training(core, 0, 0.0)
    core.exited(0, core.living()[0], KILLED, 1.0)
    restarted_after(core, 0, 1.0)
    seen_training(core, 0, 2.0, incarnation=2)
    assert beat_in(core.exited(0, core.living()[0], KILLED, 3.0)).gave_up is not None


def test_each_further_short_life_is_followed_by_a_longer_wait() -> None:
    core = agent(0)
    waits, now = [], 0.0
    for life in range(1, 5):
        seen_training(core, 0, now, incarnation=life)
        core.exited(0, core.living()[0], CRASHED, now + 1.0)
        waits.append(restarted_after(core, 0, now + 1.0))
        now += 1.0 + waits[-1]
    assert waits == sorted(set(waits)), "strictly longer each time"


def test_it_gives_up_with_the_replicas_own_last_words() -> None:
    core = agent(0, limit=1)
    seen_training(core, 0, 0.0)
    beat = beat_in(core.exited(0, core.living()[0], CRASHED, 1.0))
    assert beat.gave_up is not None
    assert beat.gave_up.replica == 0
    assert "exited with status 1" in beat.gave_up.reason
    assert beat.gave_up.last_words == CRASHED.last_words
    assert starts(core.tick(1000.0)) == []
    assert beat_in(core.tick(1001.0)).gave_up == beat.gave_up, "told until the job has ended"


def test_a_program_that_never_joins_is_given_up_early_and_the_reason_says_how_often_it_was_tried() -> None:
    core = agent(0)
    core.exited(0, core.living()[0], CRASHED, 1.0)
    restarted_after(core, 0, 1.0)
    gave_up = beat_in(core.exited(0, core.living()[0], CRASHED, 3.0)).gave_up
    assert gave_up is not None
    assert "2 times in a row" in gave_up.reason


def test_last_words_are_bounded_and_keep_their_end() -> None:
    core = agent(0, limit=1)
    seen_training(core, 0, 0.0)
    long_winded = Exit(how="exited with status 1", last_words="x" * 100_000 + "the point")
    gave_up = beat_in(core.exited(0, core.living()[0], long_winded, 1.0)).gave_up
    assert gave_up is not None
    assert len(gave_up.last_words) == LAST_WORDS_LIMIT
    assert gave_up.last_words.endswith("the point")


def test_the_first_to_give_up_has_the_last_word() -> None:
    core = agent(0, 1, limit=1)
    seen_training(core, 0, 0.0)
    seen_training(core, 1, 0.0)
    core.exited(1, core.living()[1], CRASHED, 1.0)
    gave_up = beat_in(core.exited(0, core.living()[0], KILLED, 1.1)).gave_up
    assert gave_up is not None
    assert gave_up.replica == 1


def test_a_replica_that_has_done_its_work_is_not_started_again() -> None:
    core = agent(0)
    (departure,) = beat_in(core.exited(0, core.living()[0], CLEAN, 1.0)).departures
    assert departure.finished
    assert starts(core.tick(100.0)) == []


AT_WORK = Sample(incarnation=1, step=17, shard=3, phase=Phase.COMPUTING)
"""It has the result of step 17, and computes a shard of the next one."""
JOINED_NO_MORE = Sample(joined=True)
"""It was evicted, and has no incarnation until it is let in again."""


@pytest.mark.parametrize("sample", [AT_WORK, JOINED_NO_MORE])
def test_an_exit_with_status_0_before_it_has_said_that_it_is_done_is_a_death(sample: Sample) -> None:
    core = agent(0)
    core.sampled({0: sample}, 1.0)
    actions = core.exited(0, core.living()[0], CLEAN, 1.0)
    (departure,) = beat_in(actions).departures
    assert (departure.finished, departure.in_order) == (False, False)
    assert "exited with status 0 in the middle of the job" in departure.how
    assert [a.what for a in actions if isinstance(a, TellPeople)] == [departure.how]
    assert restarted_after(core, 0, 1.0) <= 0.2


def test_an_exit_in_the_middle_of_a_shard_is_a_failure_of_that_shard() -> None:
    departure = departure_of(agent(), CLEAN, AT_WORK)
    assert (departure.step, departure.shard) == (18, 3)


def test_an_exit_after_it_has_said_that_it_is_done_is_the_end() -> None:
    core = agent(0)
    departure = departure_of(core, CLEAN, Sample(incarnation=1, joined=True, step=17, phase=Phase.DONE))
    assert (departure.finished, departure.in_order, departure.how) == (True, True, "has finished")
    assert starts(core.tick(100.0)) == []


def test_only_the_end_of_the_chief_closes_the_job() -> None:
    last = Sample(incarnation=1, joined=True, step=17, phase=Phase.DONE, ended=True)
    assert not departure_of(agent(0), CLEAN, last).closes
    chief = replace(last, closes=True)
    assert departure_of(agent(0), CLEAN, chief).closes
    assert not departure_of(agent(0), KILLED, chief).closes


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(Sample(incarnation=1, joined=True, step=17, phase=Phase.ASIDE, ended=True), id="inside"),
        pytest.param(Sample(incarnation=1, joined=True, step=17, phase=Phase.DONE), id="behind the block"),
    ],
)
def test_what_fails_after_the_last_step_ends_the_job_at_once(sample: Sample) -> None:
    core = agent(0)
    core.sampled({0: sample}, 1.0)
    beat = beat_in(core.exited(0, core.living()[0], replace(CRASHED, last_words="OSError: disk full"), 1.0))
    assert beat.gave_up is not None
    assert "after the last step (17)" in beat.gave_up.reason
    assert beat.gave_up.last_words == "OSError: disk full"
    assert starts(core.tick(100.0)) == []


def test_an_agent_takes_on_a_replica_whose_own_agent_has_left() -> None:
    core = agent(0)
    newest = process_number(1, 40)
    ack = BeatAck(number=1, view=0, adopted=((7, newest),))
    (start,) = starts(core.received(ack, 1.0))
    assert (start.replica, start.process > newest) == (7, True)
    assert starts(core.received(ack, 1.1)) == [], "it has it already"
    core.exited(7, core.living()[7], KILLED, 2.0)
    assert [again.replica for again in starts(core.tick(3.0))] == [7]


def test_one_that_is_killed_after_the_last_step_is_started_again() -> None:
    core = agent(0)
    core.sampled({0: Sample(incarnation=1, joined=True, step=17, ended=True)}, 1.0)
    beat = beat_in(core.exited(0, core.living()[0], KILLED, 1.0))
    assert beat.gave_up is None
    assert len(starts(core.tick(2.0))) == 1


@pytest.mark.parametrize("lives_s", [1.0, 11.0])
@pytest.mark.parametrize(
    ("ending", "sample", "tries"),
    [
        pytest.param(CRASHED, Sample(), 2, id="before joining"),
        pytest.param(CRASHED, Sample(incarnation=1), 5, id="after joining"),
        pytest.param(CRASHED, Sample(incarnation=1, step=12, contributed=12), 5, id="at a fixed step"),
        pytest.param(CLEAN, Sample(incarnation=1, step=12, contributed=12), 5, id="by an exit"),
        pytest.param(
            Exit(how="was killed by SIGSEGV", killed=True, own_fault=True),
            Sample(incarnation=1, step=12, contributed=12),
            5,
            id="by a crash",
        ),
    ],
)
def test_a_script_that_always_fails_ends_the_job_however_long_it_takes_to(
    lives_s: float, ending: Exit, sample: Sample, tries: int
) -> None:
    core, now = agent(0, 1), 0.0
    for life in range(1, tries + 1):
        core.sampled({0: Sample(incarnation=sample.incarnation, phase=Phase.COMPUTING)}, now + 0.1)
        core.sampled({0: sample}, now + 0.2)
        gave_up = beat_in(core.exited(0, core.living()[0], ending, now + lives_s)).gave_up
        assert (gave_up is not None) == (life == tries)
        if gave_up is None:
            now += lives_s + restarted_after(core, 0, now + lives_s)
    assert gave_up is not None and f"{tries} times in a row" in gave_up.reason
    assert starts(core.tick(1000.0)) == []


def fails_at(core: AgentCore, step: int, now: float) -> Beat:
    """A life of replica 0 takes part until this step has a result, and ends by its own fault."""
    core.sampled({0: Sample(incarnation=1, step=step, contributed=step, phase=Phase.COMPUTING)}, now)
    return beat_in(core.exited(0, core.living()[0], CRASHED, now))


def test_a_replica_with_which_the_job_comes_further_every_time_may_fail_for_ever() -> None:
    core = agent(0)
    for life in range(1, 21):
        assert fails_at(core, life, 10.0 * life).gave_up is None
        restarted_after(core, 0, 10.0 * life)


def test_a_script_that_always_fails_is_given_up_although_its_agent_is_replaced_in_between() -> None:
    core = agent(0)
    for life in range(1, 6):
        gave_up = fails_at(core, 12, 20.0 * life).gave_up
        assert (gave_up is not None) == (life == 5)
        core = agent(0, boot=life + 1, legacy=core.legacy)


def test_steps_that_another_life_has_come_to_before_are_no_progress() -> None:
    core = agent(0, 1)
    core.sampled({1: Sample(incarnation=1, step=50, phase=Phase.COMPUTING)}, 0.0)
    for life in range(1, 5):
        assert fails_at(core, 10 + life, 20.0 * life).gave_up is None
        restarted_after(core, 0, 20.0 * life)
    core.received(BeatAck(number=1, view=1, furthest=70), 85.0)
    # This one began before that was known, and 51 was new to all that was.
    assert fails_at(core, 51, 90.0).gave_up is None
    restarted_after(core, 0, 90.0)
    for life in range(1, 5):
        gave_up = fails_at(core, 60 + life, 100.0 + 20.0 * life).gave_up
        assert (gave_up is not None) == (life == 4)
        if gave_up is None:
            restarted_after(core, 0, 100.0 + 20.0 * life)


def test_what_a_life_is_given_by_others_is_no_progress_of_its_own() -> None:
    core = agent(0, 1)
    for life in range(1, 6):
        now = 20.0 * life
        core.sampled({1: Sample(incarnation=1, step=100 * life, phase=Phase.COMPUTING)}, now)
        core.sampled({0: Sample(incarnation=life, step=100 * life, phase=Phase.COMPUTING)}, now)
        gave_up = beat_in(core.exited(0, core.living()[0], CRASHED, now)).gave_up
        assert (gave_up is not None) == (life == 5)
        if gave_up is None:
            restarted_after(core, 0, now)


def test_kills_from_outside_neither_count_as_failures_of_its_own_nor_make_up_for_them() -> None:
    core = agent(0)
    for life in range(1, 5):
        now = 100.0 * life
        fails_at(core, 12, now)
        restarted_after(core, 0, now)
        for _ in range(3):
            now += 20.0
            seen_training(core, 0, now, step=0)
            seen_training(core, 0, now + 0.1, step=5)
            assert beat_in(core.exited(0, core.living()[0], KILLED, now + 11.0)).gave_up is None
            restarted_after(core, 0, now + 11.0)
    assert fails_at(core, 12, 600.0).gave_up is not None


def test_the_pace_of_a_life_is_told_once_it_is_warm_and_begins_anew_with_the_next_incarnation() -> None:
    core = agent(0)
    for step in range(10):
        seen_training(core, 0, step * 0.2, incarnation=1, step=step)
    assert beat_in(core.beat(2.0)).pulses[0].pace_s == pytest.approx(0.2)
    seen_training(core, 0, 2.0, incarnation=2, step=10)
    assert beat_in(core.beat(2.0)).pulses[0].pace_s == 0.0


def evicted_at(core: AgentCore, now: float, stopped_s: float = 0.0) -> None:
    """The coordinator says that the present life of replica 0 is void."""
    core.sampled({0: Sample(incarnation=1, phase=Phase.COMPUTING, stopped_s=stopped_s)}, now)
    core.received(BeatAck(number=1, view=2, evicted=(core.living()[0],)), now)


def test_an_evicted_replica_may_linger_and_is_killed_when_it_does_not_come_back() -> None:
    core = agent(0)
    evicted_at(core, 5.0)
    assert kills(core.tick(5.0 + TIMING.linger_s - 0.01)) == []
    (kill,) = kills(core.tick(5.0 + TIMING.linger_s))
    assert (kill.replica, kill.process) == (0, core.living()[0])
    assert kills(core.tick(60.0)) == [], "once is enough"


def test_an_evicted_replica_that_is_stopped_may_linger_longer() -> None:
    core = agent(0)
    evicted_at(core, 5.0, stopped_s=1.0)
    assert kills(core.tick(5.0 + TIMING.linger_s)) == []
    assert kills(core.tick(5.0 + TIMING.linger_stopped_s)) != []


def test_an_evicted_replica_that_wakes_has_its_time_from_then_on() -> None:
    core = agent(0)
    evicted_at(core, 5.0, stopped_s=1.0)
    slept = 5.0 + TIMING.linger_stopped_s / 2
    core.sampled({0: Sample(incarnation=1, stopped_s=3.0, quiet_s=3.0)}, slept)
    # Awake, but it has not had its turn yet: all of its quiet time is from its sleep.
    core.sampled({0: Sample(incarnation=1, quiet_s=3.1)}, slept + 0.1)
    assert kills(core.tick(slept + TIMING.detect_within_s / 2)) == []
    core.sampled({0: Sample(incarnation=1, quiet_s=0.1)}, slept + 1.0)
    assert kills(core.tick(slept + TIMING.linger_s - 0.1)) == []
    assert kills(core.tick(slept + TIMING.linger_s)) != []


def test_an_evicted_replica_that_begins_a_new_life_is_left_alone() -> None:
    core = agent(0)
    evicted_at(core, 5.0)
    core.sampled({0: Sample(incarnation=2)}, 6.0)
    assert kills(core.tick(50.0)) == [], "however long it takes until a view holds it"
    core.received(news(3, (0, 2), (1, 1)), 50.0)
    assert kills(core.tick(60.0)) == []


def test_a_replica_that_the_coordinator_takes_back_is_left_alone() -> None:
    core = agent(0)
    evicted_at(core, 5.0)
    core.received(BeatAck(number=2, view=3), 6.0)
    assert kills(core.tick(60.0)) == []


def test_news_of_an_older_view_changes_nothing() -> None:
    core = agent(0)
    core.received(news(7, (0, 1)), 1.0)
    core.received(news(6, (1, 1)), 1.0)
    assert core.view.number == 7


def test_an_acknowledgement_from_a_newer_view_makes_it_fetch_that_view() -> None:
    core = agent(0)
    core.received(news(3, (0, 1)), 1.0)
    assert told(core.received(BeatAck(number=1, view=4), 1.0)) == [Fetch()]
    assert told(core.received(BeatAck(number=1, view=3), 1.0)) == []


def test_preemption_asks_every_replica_to_leave_and_starts_none_again() -> None:
    core = agent(0, 1)
    seen_training(core, 1, 0.0)
    core.exited(1, core.living()[1], KILLED, 1.0)
    actions = core.preempted(1.0)
    asked = [action for action in actions if isinstance(action, AskToLeave)]
    assert asked == [AskToLeave(0, core.living()[0])]
    assert starts(core.tick(100.0)) == [], "not even the one whose restart was due"
    (_, left) = beat_in(core.exited(0, core.living()[0], CLEAN, 101.0)).departures
    assert (left.how, left.finished) == ("leaves", False)
    assert starts(core.tick(200.0)) == []


def test_preemption_does_not_kill_an_evicted_replica_on_its_way_out() -> None:
    core = agent(0)
    evicted_at(core, 5.0)
    core.preempted(5.0)
    assert kills(core.tick(60.0)) == []


def test_it_is_settled_when_nothing_runs_and_everything_has_been_agreed_on() -> None:
    core = agent(0)
    process = core.living()[0]
    assert not core.settled, "one runs"
    core.preempted(1.0)
    core.exited(0, process, CLEAN, 1.0)
    assert not core.settled, "its exit is not agreed on"
    core.received(BeatAck(number=3, view=1, noted=(process,)), 1.1)
    assert core.settled


def test_one_that_waits_to_be_started_again_is_not_settled() -> None:
    core = agent(0)
    process = core.living()[0]
    core.exited(0, process, CRASHED, 1.0)
    core.received(BeatAck(number=3, view=1, noted=(process,)), 1.0)
    assert not core.settled


def test_the_end_of_the_job_is_told_once_and_stops_every_restart() -> None:
    core = agent(0, 1)
    core.exited(1, core.living()[1], CRASHED, 1.0)
    assert core.received(Ended(outcome=OUTCOME), 1.1) == [JobEnded(OUTCOME)]
    assert core.received(Ended(outcome=OUTCOME), 1.2) == []
    core.exited(0, core.living()[0], CRASHED, 1.3)
    assert starts(core.tick(100.0)) == []
    assert core.living() == {}


def test_what_ends_after_the_job_has_ended_needs_no_agreement() -> None:
    core = agent(0)
    core.received(Ended(outcome=OUTCOME), 1.0)
    assert core.exited(0, core.living()[0], CLEAN, 1.1) == []
    assert core.settled


def test_an_evicted_replica_that_hangs_is_replaced_sooner() -> None:
    core = agent(0)
    evicted_at(core, 5.0)
    core.sampled({0: Sample(incarnation=1, phase=Phase.COMPUTING, quiet_s=TIMING.detect_within_s)}, 5.0)
    assert kills(core.tick(5.0 + TIMING.linger_still_s)) != []


def departure_of(core: AgentCore, ending: Exit, sample: Sample, now: float = 1.0) -> Departure:
    process = core.living()[0]
    core.sampled({0: sample}, now)
    (departure,) = beat_in(core.exited(0, process, ending, now)).departures
    return departure


def test_one_that_dies_by_its_own_fault_is_told_with_what_it_was_computing() -> None:
    ending = Exit(how="exited with status 1", own_fault=True, last_words="ValueError")
    departure = departure_of(agent(), ending, AT_WORK)
    assert (departure.step, departure.shard, departure.last_words) == (18, 3, "ValueError")


def test_what_was_done_to_it_from_outside_is_no_fault_of_its_shard() -> None:
    departure = departure_of(agent(), KILLED, AT_WORK)
    assert (departure.step, departure.shard, departure.last_words) == (-1, -1, "")


def test_one_that_fails_between_two_shards_names_neither() -> None:
    ending = Exit(how="exited with status 1", own_fault=True, last_words="ValueError")
    departure = departure_of(agent(), ending, Sample(incarnation=1, step=17, phase=Phase.COMPUTING))
    assert (departure.step, departure.shard) == (-1, -1)


def test_an_exit_is_in_order_if_the_replica_had_said_that_it_is_done() -> None:
    done = Sample(incarnation=1, step=17, phase=Phase.DONE)
    assert departure_of(agent(), CLEAN, done).in_order
    assert not departure_of(agent(), KILLED, done).in_order
    assert not departure_of(agent(), CLEAN, AT_WORK).in_order
    leaving = agent()
    leaving.preempted(0.5)
    assert departure_of(leaving, CLEAN, done).in_order
    assert not departure_of(agent(), KILLED, done).in_order


def test_a_beat_says_which_shard_is_being_computed() -> None:
    core = agent()
    core.sampled({0: AT_WORK}, 1.0)
    assert beat_in(core.beat(1.0)).pulses[0].shard == 3


def test_only_the_first_start_in_a_run_is_not_a_start_again() -> None:
    core = AgentCore(agent="agent-0", boot=1, replicas=(0, 1), timing=TIMING, policy=RestartPolicy())
    first = starts(core.start(0.0))
    assert [start.again for start in first] == [False, False]
    core.exited(0, first[0].process, KILLED, 1.0)
    (second,) = [start for n in range(20) for start in starts(core.tick(1.0 + n * 0.1))]
    assert (second.replica, second.again) == (0, True)
    later = AgentCore(agent="agent-0", boot=2, replicas=(0,), timing=TIMING, policy=RestartPolicy())
    assert [start.again for start in starts(later.start(0.0))] == [True]


def test_killing_one_that_is_failing_does_not_make_its_life_a_healthy_one() -> None:
    for announced, delay_s in ((False, 0.0), (True, RestartPolicy().first_delay_s)):
        core = agent()
        process = core.living()[0]
        for step in range(3):
            seen_training(core, 0, 1.0 + step, step=step)
        failing = (process,) if announced else ()
        core.received(BeatAck(number=1, view=2, evicted=(process,), failing=failing), 4.0)
        core.exited(0, process, KILLED, 5.0)
        assert restarted_after(core, 0, 5.0) == pytest.approx(delay_s, abs=TIMING.tick_every_s)


def test_one_that_is_failing_has_time_for_its_slow_exit() -> None:
    core = agent()
    process = core.living()[0]
    core.sampled({0: Sample(incarnation=1, quiet_s=100.0)}, 1.0)
    core.received(BeatAck(number=1, view=2, evicted=(process,), failing=(process,)), 1.0)
    assert kills(core.tick(1.0 + TIMING.linger_s - 0.01)) == []
    assert kills(core.tick(1.0 + TIMING.linger_s)) != []


def test_who_is_barred_is_ended_and_not_started_again() -> None:
    core = agent(0, 1, limit=1)
    core.received(BeatAck(number=1, view=1, barred=(1, 7)), 1.0)
    [kill] = kills(core.tick(1.0))
    assert (kill.replica, kill.process) == (1, core.living()[1])
    assert kills(core.tick(1.1)) == []
    beat = beat_in(core.exited(1, kill.process, KILLED, 1.2))
    assert [departure.replica for departure in beat.departures] == [1]
    assert beat.gave_up is None
    assert starts(core.tick(60.0)) == []
    assert list(core.living()) == [0]


def test_who_is_barred_while_it_waits_to_be_started_stays_down() -> None:
    core = agent(0)
    core.exited(0, core.living()[0], CRASHED, 1.0)
    core.received(BeatAck(number=1, view=1, barred=(0,)), 1.05)
    assert starts(core.tick(60.0)) == []


def test_work_that_was_done_under_an_agent_that_could_not_tell_is_not_done_again() -> None:
    core = AgentCore(
        agent="agent-0", boot=2, replicas=(0, 1, 2), timing=TIMING, policy=RestartPolicy(limit=5)
    )
    done = (Sample(incarnation=1, step=7, phase=Phase.DONE), CLEAN)
    killed = (Sample(incarnation=1, step=7, phase=Phase.COMPUTING), KILLED)
    actions = core.start(0.0, {0: done, 1: killed})
    assert [start.replica for start in starts(actions)] == [2]
    departures = {departure.replica: departure for departure in beat_in(core.beat(0.0)).departures}
    assert (departures[0].finished, departures[0].in_order) == (True, True)
    assert not departures[1].finished
    assert {boot_of(departure.process) for departure in departures.values()} == {2}
    assert [start.replica for start in starts(core.tick(60.0))] == [1]
