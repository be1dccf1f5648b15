"""What follows from what a leader has heard: proof acts at once, suspicion needs trust in one's own ears."""

from rosters import formed

from outlast.protocol.evidence import Evidence, outstanding
from outlast.protocol.messages import Beat, Departure, Pulse, Register, Report
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
    assert (change.removals, change.ready, change.adopted) == ({}, set(), set())


def test_only_reports_of_the_present_view_show_that_it_was_adopted() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=0, incarnation=1, view=0), 0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1), 0.0)
    assert evidence.change(trained(), 0.0).adopted == {1}


def test_a_report_of_an_older_view_that_comes_late_is_ignored() -> None:
    evidence = Evidence(TIMING, now=0.0)
    evidence.note_report(Report(replica=1, incarnation=1, view=1), 0.0)
    assert not evidence.note_report(Report(replica=1, incarnation=1, view=0, unreachable=(0,)), 0.1)
    assert evidence.change(trained(), 0.1).adopted == {1}


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
