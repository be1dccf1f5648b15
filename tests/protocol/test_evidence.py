"""What follows from what a leader has heard: proof acts at once, suspicion needs trust in one's own ears."""

import msgspec
from rosters import formed

from outlast.protocol.evidence import Evidence, outstanding
from outlast.protocol.messages import Beat, Departure, Phase, Pulse, Register, Report
from outlast.protocol.roster import Change, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import Membership, Standing, process_number

TIMING = Timing()
FIRST = process_number(1, 1)


def trained() -> Membership:
    """Three replicas in view 1, each the first process of its agent's first boot."""
    arrivals = {
        r: Register(replica=r, process=FIRST, rejoin=0, agent=f"agent-{r}", address=f"host-{r}")
        for r in range(3)
    }
    membership = formed(3)
    return plan(Membership(spec=membership.spec), Change(arrivals=arrivals))


def beat(replica: int, number: int, *departures: Departure, boot: int = 1, stopped_s: float = 0.0) -> Beat:
    pulse = Pulse(replica=replica, process=FIRST, incarnation=1, view=1, stopped_s=stopped_s)
    return Beat(
        agent=f"agent-{replica}",
        boot=boot,
        number=number,
        pulses=() if departures else (pulse,),
        departures=departures,
    )


def exit_of(replica: int, process: int = FIRST, finished: bool = False) -> Departure:
    return Departure(replica=replica, process=process, how="was killed", finished=finished)


def hear(evidence: Evidence, replicas: tuple[int, ...], start: float, end: float) -> None:
    """These agents beat, and their replicas report, every beat."""
    for n in range(round((end - start) / TIMING.beat_every_s) + 1):
        now = start + n * TIMING.beat_every_s
        for replica in replicas:
            evidence.note_beat(f"agent-{replica}", beat(replica, round(now * 1000) + 1), now)
            evidence.note_report(Report(replica=replica, incarnation=1, view=1), now)


def test_an_exit_is_proof_even_to_a_leader_that_has_only_just_begun() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1)), 0.0)
    removal = evidence.change(trained(), 0.0).removals[1]
    assert removal.proven
    assert removal.standing is Standing.GONE


def test_the_exit_of_a_former_process_says_nothing_about_the_present_one() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1, process=process_number(0, 9))), 0.0)
    assert evidence.change(trained(), 0.0).removals == {}


def test_what_a_restarted_agent_tells_counts_for_more_than_that_it_was_restarted() -> None:
    evidence = Evidence(TIMING, now=0.0)
    told = exit_of(1, process=process_number(2, 1), finished=True)
    evidence.note_beat("agent-1", beat(1, 1, told, boot=2), 0.0)
    assert evidence.change(trained(), 0.0).removals == {}
    assert evidence.change(trained(), TIMING.settle_s).removals[1].standing is Standing.FINISHED


def test_a_finished_replica_leaves_a_moment_later() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1, finished=True)), 0.0)
    assert evidence.change(trained(), TIMING.settle_s - 0.01).removals == {}
    assert evidence.change(trained(), TIMING.settle_s).removals[1].standing is Standing.FINISHED


def test_a_restarted_agent_proves_that_its_replicas_are_dead() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", Beat(agent="agent-1", boot=2, number=1), 0.0)
    removals = evidence.change(trained(), 0.0).removals
    assert list(removals) == [1]
    assert removals[1].proven


def test_an_agent_that_is_silent_while_its_replica_reports_is_no_reason() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    for n in range(50):
        evidence.note_report(Report(replica=1, incarnation=1, view=1), 2.1 + n * 0.1)
    hear(evidence, (0, 2), 2.1, 7.0)
    assert evidence.change(trained(), 7.0).removals == {}


def test_a_replica_that_is_silent_while_its_agent_beats_is_no_reason() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    for n in range(50):
        evidence.note_beat("agent-1", beat(1, 10_000 + n), 2.1 + n * 0.1)
    hear(evidence, (0, 2), 2.1, 7.0)
    assert evidence.change(trained(), 7.0).removals == {}


def test_silence_of_both_is_suspicion_and_not_proof() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    hear(evidence, (0, 2), 2.1, 3.0)
    removals = evidence.change(trained(), 3.0).removals
    assert list(removals) == [1]
    assert not removals[1].proven
    assert removals[1].standing is Standing.EVICTED


def test_repeated_or_late_beats_are_no_sign_of_life() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    hear(evidence, (0, 2), 2.1, 3.0)
    evidence.note_beat("agent-1", beat(1, 5), 2.9)
    assert list(evidence.change(trained(), 3.0).removals) == [1]


def test_a_new_leader_suspects_nobody_for_a_window() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, stopped_s=100.0), 0.0)
    assert evidence.change(trained(), TIMING.trust_for_s - 0.01).removals == {}
    assert 1 in evidence.change(trained(), TIMING.trust_for_s).removals


def test_a_leader_that_was_asleep_suspects_nobody_for_a_window() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    evidence.note_report(Report(replica=0, incarnation=1, view=1, unreachable=(1,)), 2.0)
    evidence.wake(10.0)
    assert evidence.change(trained(), 10.0).removals == {}
    assert evidence.change(trained(), 10.0 + TIMING.trust_for_s - 0.01).removals == {}
    assert sorted(evidence.change(trained(), 10.0 + TIMING.trust_for_s).removals) == [0, 1, 2]


def test_a_silence_that_was_slept_through_does_not_earn_patience() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    evidence.wake(10.0)
    hear(evidence, (0, 1, 2), 10.1, 12.0)
    hear(evidence, (0, 2), 12.1, 13.0)
    assert list(evidence.change(trained(), 13.0).removals) == [1]


def test_a_stopped_replica_is_suspected_after_half_a_window() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    evidence.note_beat("agent-1", beat(1, 9000, stopped_s=TIMING.stopped_for_s - 0.01), 2.0)
    assert evidence.change(trained(), 2.0).removals == {}
    evidence.note_beat("agent-1", beat(1, 9001, stopped_s=TIMING.stopped_for_s), 2.0)
    assert list(evidence.change(trained(), 2.0).removals) == [1]


def test_a_pulse_of_an_earlier_life_says_nothing_about_the_present_one() -> None:
    rejoined = Register(replica=1, process=FIRST, rejoin=1, agent="agent-1")
    membership = plan(trained(), Change(arrivals={1: rejoined}))
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    evidence.note_beat("agent-1", beat(1, 9000, stopped_s=100.0), 2.0)
    assert evidence.change(membership, 2.0).removals == {}


def test_who_asks_to_leave_is_let_go_at_once_and_is_not_promoted() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1, ready=True, leaving=True), 0.0)
    change = evidence.change(trained(), 0.0)
    assert list(change.removals) == [1]
    assert change.removals[1].proven, "it goes, whether or not others hold the state"
    assert change.removals[1].standing is Standing.EVICTED, "its process still runs"
    assert change.ready == set()


def test_a_learner_that_asks_to_leave_is_not_promoted_however_ready() -> None:
    learning = plan(
        trained(), Change(arrivals={1: Register(replica=1, process=FIRST, rejoin=1, agent="agent-1")})
    )
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=1, incarnation=2, view=2, ready=True), 0.0)
    assert evidence.change(learning, 0.0).ready == {1}
    evidence.note_report(Report(replica=1, incarnation=2, view=2, ready=True, leaving=True), 0.0)
    assert evidence.change(learning, 0.0).ready == set()


def test_a_process_that_is_known_to_be_dead_cannot_register() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1)), 0.0)
    gone = plan(trained(), evidence.change(trained(), 0.0))
    late = Register(replica=1, process=FIRST, rejoin=1, agent="agent-1")
    evidence.note_register("replica-1", late, 0.1)
    assert evidence.change(gone, 0.1).arrivals == {}
    evidence.note_register(
        "replica-1", Register(replica=1, process=FIRST + 1, rejoin=0, agent="agent-1"), 0.2
    )
    assert list(evidence.change(gone, 0.2).arrivals) == [1]


def test_complaints_about_a_life_that_is_over_do_not_fall_on_the_next() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    for now in (2.0, 2.25, 2.5):
        evidence.note_report(Report(replica=0, incarnation=1, view=1, unreachable=(1,)), now)
        evidence.note_report(Report(replica=1, incarnation=1, view=1), now)
        evidence.note_report(Report(replica=2, incarnation=1, view=1), now)
    change = evidence.change(trained(), 2.5)
    assert list(change.removals) == [1]
    evicted = plan(trained(), change)
    evidence.settle(evicted)
    rejoined = Register(replica=1, process=FIRST, rejoin=1, agent="agent-1")
    back = plan(plan(evicted, Change(arrivals={1: rejoined})), Change(ready={1}))
    assert back.seats[1].standing is Standing.MEMBER
    assert evidence.change(back, 2.5).removals == {}


def test_reports_of_a_life_that_is_over_count_for_nothing() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=1, incarnation=7, view=1, ready=True, leaving=True), 0.0)
    change = evidence.change(trained(), 0.0)
    assert (change.removals, change.ready, change.adopted) == ({}, set(), {})


def test_reports_show_which_view_each_member_has_adopted() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=0, incarnation=1, view=0), 0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1), 0.0)
    assert evidence.change(trained(), 0.0).adopted == {0: 0, 1: 1}


def test_a_report_of_an_older_view_that_comes_late_is_ignored() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1), 0.0)
    assert not evidence.note_report(Report(replica=1, incarnation=1, view=0, unreachable=(0,)), 0.1)
    assert evidence.change(trained(), 0.1).adopted == {1: 1}


def test_an_exit_is_outstanding_until_the_membership_says_so() -> None:
    before = trained()
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1)), 0.0)
    after = plan(before, evidence.change(before, 0.0))
    assert outstanding(exit_of(1), before)
    assert not outstanding(exit_of(1), after)
    assert not outstanding(exit_of(0, process=FIRST - 1), before), "a former process has long been replaced"
    assert outstanding(exit_of(0, process=FIRST + 1), before), "a later process was not heard of yet"


def test_the_wait_for_the_first_view_begins_with_the_first_that_is_there() -> None:
    evidence = Evidence(TIMING, now=0.0)
    nobody = Membership(spec=trained().spec)
    assert not evidence.change(nobody, 100.0).form_now
    one = plan(nobody, Change(arrivals={0: Register(replica=0, process=FIRST, rejoin=0, agent="agent-0")}))
    assert not evidence.change(one, 100.0).form_now
    assert not evidence.change(one, 100.0 + TIMING.form_within_s - 0.1).form_now
    assert evidence.change(one, 100.0 + TIMING.form_within_s).form_now


def test_what_is_heard_while_the_document_is_read_keeps_everybody_from_looking_silent() -> None:
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    for n in range(20):
        now = 2.1 + n * 0.1
        evidence.overhear("agent-0", beat(0, 10_000 + n), now)
        evidence.overhear("replica-1", Report(replica=1, incarnation=1, view=1), now)
        evidence.overhear("replica-2", Register(replica=2, process=FIRST, rejoin=0, agent="agent-2"), now)
    assert evidence.change(trained(), 4.0).removals == {}


def left(replica: int = 1) -> Membership:
    """All train in view 1, and one is out of the planned view that follows."""
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=replica, incarnation=1, view=1, leaving=True), 0.0)
    return plan(trained(), evidence.change(trained(), 0.0))


def see(evidence: Evidence, now: float, **pulses: Phase | tuple[Phase, int]) -> None:
    """A beat of every agent at that moment; `r0=Phase.WAITING`, or `r0=(Phase.WAITING, view)`."""
    for name, seen in pulses.items():
        phase, view = seen if isinstance(seen, tuple) else (seen, 1)
        replica = int(name[1:])
        pulse = Pulse(
            replica=replica,
            process=FIRST,
            incarnation=1,
            view=view,
            step=7,
            phase=phase,
            quiet_s=5.0,
            pace_s=0.1,
        )
        beat = Beat(agent=f"agent-{replica}", boot=1, number=round(now * 1000) + 1, pulses=(pulse,))
        evidence.note_beat(f"agent-{replica}", beat, now)


def see_for_long(evidence: Evidence, **pulses: Phase | tuple[Phase, int]) -> float:
    """The same for longer than any window; returns the moment after."""
    for n in range(21):
        see(evidence, n * TIMING.beat_every_s, **pulses)
    return 20 * TIMING.beat_every_s


def test_who_asks_to_leave_leaves_as_planned() -> None:
    membership = left(1)
    assert membership.view.planned
    assert [member.replica for member in membership.departing] == [1]


def test_a_leaver_that_hangs_or_falls_silent_while_it_is_counted_on_is_doubted() -> None:
    evidence = Evidence(TIMING, now=0.0)
    now = see_for_long(evidence, r0=Phase.WAITING, r1=Phase.COMPUTING, r2=Phase.WAITING)
    assert list(evidence.change(left(1), now).removals) == [1]
    silent = Evidence(TIMING, now=0.0)
    for n in range(round(TIMING.silent_at_most_s / TIMING.beat_every_s) + 1):
        see(silent, n * TIMING.beat_every_s, r0=Phase.COMPUTING, r2=Phase.COMPUTING)
    assert list(silent.change(left(1), TIMING.silent_at_most_s).removals) == [1]


def test_a_leaver_that_nobody_counts_on_any_more_is_left_alone() -> None:
    evidence = Evidence(TIMING, now=0.0)
    now = see_for_long(evidence, r0=Phase.COMPUTING, r1=Phase.COMPUTING, r2=Phase.WAITING)
    moved_on = plan(left(1), Change(adopted={0: 2, 2: 2}))
    assert 1 not in evidence.change(moved_on, now).removals


def test_a_leaver_out_of_sight_keeps_others_from_being_blamed_for_waiting() -> None:
    evidence = Evidence(TIMING, now=0.0)
    now = see_for_long(evidence, r0=(Phase.WAITING, 2), r2=(Phase.WAITING, 1))
    assert 2 not in evidence.change(left(1), now).removals


def promoted() -> Membership:
    """Replica 1 is a member by a planned view that follows view 1."""
    registers = {
        r: Register(replica=r, process=FIRST, rejoin=0, agent=f"agent-{r}", address="") for r in range(3)
    }
    membership = Membership(spec=trained().spec)
    membership = plan(membership, Change(arrivals={0: registers[0], 2: registers[2]}))
    membership = plan(membership, Change(form_now=True))
    membership = plan(membership, Change(arrivals={1: registers[1]}))
    return plan(membership, Change(ready={1}))


def test_nobody_waits_for_a_learner_before_its_promotion_is_in_force() -> None:
    membership = promoted()
    assert (membership.view.number, membership.view.planned_since) == (3, 1)
    evidence = Evidence(TIMING, now=0.0)
    now = see_for_long(evidence, r0=Phase.COMPUTING, r1=Phase.COMPUTING, r2=Phase.WAITING)
    assert list(evidence.change(membership, now).removals) == [0], "replica 1 has no part in that step"
    evidence = Evidence(TIMING, now=0.0)
    now = see_for_long(evidence, r0=(Phase.WAITING, 3), r1=(Phase.COMPUTING, 3), r2=(Phase.WAITING, 3))
    assert list(evidence.change(membership, now).removals) == [1], "now it has"


def test_how_long_a_learner_was_quiet_says_nothing_about_it_once_it_is_a_member() -> None:
    """Those who fed it stood still, and it did with them (simulator, seed 903346)."""
    membership, evidence = promoted(), Evidence(TIMING, now=0.0)
    began = see_for_long(evidence, r0=Phase.WAITING, r1=(Phase.WAITING, 0), r2=Phase.WAITING)
    assert evidence.change(membership, began).removals == {}, "nobody waits for it yet"
    found_after_s = 0.0
    while not (removals := evidence.change(membership, began + found_after_s).removals):
        found_after_s += TIMING.beat_every_s
        now = began + found_after_s
        see(evidence, now, r0=(Phase.WAITING, 3), r1=(Phase.WAITING, 0), r2=(Phase.WAITING, 3))
    assert list(removals) == [1], "it hangs as a member"
    assert TIMING.detect_within_s < found_after_s < 2 * TIMING.detect_within_s


def test_nobody_hangs_while_training_is_paused() -> None:
    spec = msgspec.structs.replace(trained().spec, min_replicas=3)
    membership = msgspec.structs.replace(trained(), spec=spec)
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1)), 0.0)
    without = plan(membership, evidence.change(membership, 0.0))
    assert without.view.paused
    now = see_for_long(evidence, r0=(Phase.WAITING, 2), r2=Phase.COMPUTING)
    assert evidence.change(without, now).removals == {}


def test_one_that_asks_to_leave_is_still_judged_until_it_is_let_go() -> None:
    """It may have to stay for one that it cannot reach (simulator, seed 60154)."""
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    for now in (2.0, 2.25, 2.5):
        evidence.note_report(Report(replica=0, incarnation=1, view=1, leaving=True), now)
        evidence.note_report(Report(replica=1, incarnation=1, view=1, unreachable=(0,)), now)
        evidence.note_report(Report(replica=2, incarnation=1, view=1, unreachable=(0,)), now)
    assert not evidence.change(trained(), 2.5).removals[0].planned


def test_the_time_of_a_pause_is_no_hang_afterwards() -> None:
    """Some are in the next view at once, others a moment later, and all have been quiet for long."""
    spec = msgspec.structs.replace(trained().spec, min_replicas=3)
    membership = msgspec.structs.replace(trained(), spec=spec)
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_beat("agent-1", beat(1, 1, exit_of(1)), 0.0)
    without = plan(membership, evidence.change(membership, 0.0))
    now = see_for_long(evidence, r0=(Phase.WAITING, 3), r2=(Phase.WAITING, 2))
    assert evidence.change(without, now).removals == {}
    enough = msgspec.structs.replace(without, view=msgspec.structs.replace(without.view, paused=False))
    assert evidence.change(enough, now + 0.01).removals == {}


def test_a_hang_before_a_pause_that_is_planned_is_a_hang() -> None:
    membership = trained()
    pause = msgspec.structs.replace(membership.view, number=2, paused=True)
    planned = msgspec.structs.replace(membership, view=pause)
    evidence = Evidence(TIMING, now=0.0)
    now = see_for_long(evidence, r0=Phase.WAITING, r1=Phase.WAITING, r2=Phase.COMPUTING)
    assert list(evidence.change(planned, now).removals) == [2]


def failing(replica: int, step: int = 17, shard: int = 3) -> Report:
    return Report(
        replica=replica,
        incarnation=1,
        view=1,
        failing="ValueError: bad sample",
        failing_step=step,
        failing_shard=shard,
    )


def test_a_replica_that_says_it_is_failing_is_removed_at_once() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(failing(1), 0.0)
    change = evidence.change(trained(), 0.0)
    removal = change.removals[1]
    assert (removal.standing, removal.proven, removal.planned) == (Standing.EVICTED, True, False)
    assert removal.cause == "replica 1 fails at step 17: ValueError: bad sample"
    assert (change.failures[1].step, change.failures[1].shard) == (17, 3)
    after = plan(trained(), change)
    assert after.seats[1].failing
    assert not after.view.planned


def test_a_life_that_says_that_it_cannot_go_on_is_not_waited_for() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1, given_up="its branch was left"), 0.0)
    removal = evidence.change(trained(), 0.0).removals[1]
    assert removal.proven and not removal.planned and not removal.failing
    assert removal.cause == "replica 1 begins anew: its branch was left"


def test_nobody_waits_for_a_learner_that_cannot_go_on() -> None:
    membership, evidence = promoted(), Evidence(TIMING, now=0.0)
    given_up = Report(replica=1, incarnation=1, view=1, given_up="its branch was left")
    evidence.note_report(given_up, 0.0)
    assert list(evidence.change(membership, 0.0).removals) == [1]
    seat = msgspec.structs.replace(membership.seats[1], standing=Standing.LEARNER, member_since=0)
    learning = msgspec.structs.replace(membership, seats={**membership.seats, 1: seat})
    assert evidence.change(learning, 0.0).removals == {}


def test_there_is_no_way_back_from_failing() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(failing(1), 0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1, leaving=True), 0.1)
    assert not evidence.change(trained(), 0.1).removals[1].planned


def test_a_failure_outside_of_any_shard_is_no_shards_fault() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(failing(1, step=-1, shard=-1), 0.0)
    change = evidence.change(trained(), 0.0)
    assert change.removals[1].cause == "replica 1 fails: ValueError: bad sample"
    assert change.failures == {}


def test_an_exit_in_the_middle_of_a_shard_is_told_with_the_last_line_that_was_said() -> None:
    evidence = Evidence(TIMING, now=0.0)
    departure = Departure(
        replica=1,
        process=FIRST,
        how="exited with status 1",
        step=17,
        shard=3,
        last_words="Traceback …\nValueError: bad sample\n",
    )
    evidence.note_beat("agent-1", beat(1, 1, departure), 0.0)
    change = evidence.change(trained(), 0.0)
    assert change.failures[1].reason == "exited with status 1: ValueError: bad sample"
    assert change.last_words[1] == departure.last_words
    gone = plan(trained(), change)
    assert gone.seats[1].standing is Standing.GONE
    assert evidence.change(gone, 0.0).failures == {}


def test_the_exit_of_one_that_said_it_is_failing_is_the_same_failure() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(failing(1), 0.0)
    evicted = plan(trained(), evidence.change(trained(), 0.0))
    evidence.settle(evicted)
    departure = Departure(replica=1, process=FIRST, how="exited with status 1", step=17, shard=3)
    evidence.note_beat("agent-1", beat(1, 1, departure), 0.5)
    gone = plan(evicted, evidence.change(evicted, 0.5))
    assert gone.seats[1].standing is Standing.GONE
    assert len(gone.failures) == 1
    assert gone.view == evicted.view


def test_an_exit_in_order_is_planned_and_any_other_is_not() -> None:
    for in_order in (True, False):
        evidence = Evidence(TIMING, now=0.0)
        departure = Departure(replica=1, process=FIRST, how="has finished", finished=True, in_order=in_order)
        evidence.note_beat("agent-1", beat(1, 1, departure), 0.0)
        assert evidence.change(trained(), TIMING.settle_s).removals[1].planned is in_order


def wait_together(evidence: Evidence, replicas: tuple[int, ...], until: float) -> None:
    """All wait after step 7, since the beginning, and the leader looks at it now and then."""
    membership = trained()
    for n in range(round(until / TIMING.beat_every_s) + 1):
        now = n * TIMING.beat_every_s
        for replica in replicas:
            pulse = Pulse(
                replica=replica,
                process=FIRST,
                incarnation=1,
                view=1,
                step=7,
                phase=Phase.WAITING,
                quiet_s=now,
                pace_s=0.1,
            )
            beat_ = Beat(agent=f"agent-{replica}", boot=1, number=n + 1, pulses=(pulse,))
            evidence.note_beat(f"agent-{replica}", beat_, now)
            evidence.note_report(Report(replica=replica, incarnation=1, view=1), now)
        if now < until:
            evidence.change(membership, now)


def test_where_all_wait_for_each_other_the_view_is_renewed_and_nobody_is_suspected() -> None:
    evidence, membership = Evidence(TIMING, now=0.0), trained()
    late = TIMING.standstill_s + TIMING.trust_for_s + 2.0
    wait_together(evidence, (0, 1, 2), late)
    change = evidence.change(membership, late)
    assert change.removals == {}
    renewed = plan(membership, change).view
    assert renewed.members == membership.view.members
    assert renewed.number == renewed.planned_since == membership.view.number + 1, "it interrupts"
    assert "waited for each other" in renewed.cause


def test_where_one_is_not_seen_the_others_may_wait_for_it() -> None:
    evidence = Evidence(TIMING, now=0.0)
    late = TIMING.standstill_s + TIMING.trust_for_s + 2.0
    wait_together(evidence, (0, 1), late)
    assert not evidence.change(trained(), late).standstill


def test_nobody_is_suspected_before_replicas_could_say_again_what_was_not_heard() -> None:
    """Their reports may explain what agents see; seed 1013128."""
    evidence = Evidence(TIMING, now=0.0)
    hear(evidence, (0, 1, 2), 0.0, 2.0)
    stuck = Pulse(replica=0, process=FIRST, incarnation=1, view=1, step=6, quiet_s=3.0, pace_s=0.1)
    ahead = Pulse(replica=1, process=FIRST, incarnation=1, view=1, step=7, phase=Phase.WAITING, quiet_s=3.0)
    for number, pulse in ((0, stuck), (1, ahead), (2, msgspec.structs.replace(ahead, replica=2))):
        seen = Beat(agent=f"agent-{number}", boot=1, number=99_999, pulses=(pulse,))
        evidence.overhear(f"agent-{number}", seen, 2.05)
    for replica in range(3):
        evidence.note_report(Report(replica=replica, incarnation=1, view=1), 2.06)
    assert evidence.change(trained(), 2.06).removals == {}
    assert list(evidence.change(trained(), 2.06 + 3 * TIMING.beat_every_s).removals) == [0]


def test_of_several_machines_one_that_stays_silent_is_given_up_though_it_may_hold_the_only_state() -> None:
    placed = msgspec.structs.replace(
        trained(), spec=msgspec.structs.replace(trained().spec, per_machine=1), hosts={}
    )
    for membership, given_up in ((trained(), False), (placed, True)):
        evidence = Evidence(TIMING, now=0.0)
        hear(evidence, (0, 1), 0.0, TIMING.given_up_after_s - 1.0)
        assert not evidence.change(membership, TIMING.given_up_after_s - 1.0).removals[2].proven
        hear(evidence, (0, 1), TIMING.given_up_after_s - 0.9, TIMING.given_up_after_s + 1.0)
        assert evidence.change(membership, TIMING.given_up_after_s + 1.0).removals[2].proven is given_up
