"""Rules of the coordinator that hold in every scene; the scenes themselves are in `tests/transcripts`."""

import pytest

from outlast.protocol.coordinator import (
    Action,
    Commit,
    Committed,
    CoordinatorCore,
    Event,
    Load,
    Loaded,
    LoadFailed,
    NotStored,
    Publish,
    Received,
    Refused,
    Send,
    Tick,
    Unknown,
)
from outlast.protocol.election import Campaign, Campaigned, Renewed, WatchProgress
from outlast.protocol.messages import (
    Ask,
    Beat,
    BeatAck,
    Departure,
    Ended,
    Evicted,
    Fetch,
    GaveUp,
    Message,
    NotLeading,
    Pulse,
    Register,
    Report,
    ReportAck,
    ViewNews,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership, View, process_number

TIMING = Timing()
TERM = 5
SPEC = JobSpec(name="job", replicas=2, shards=2)
PROCESS = process_number(1, 1)


def leading(document: Membership | None = None, revision: int = 0) -> CoordinatorCore:
    """A coordinator that has just read what is agreed."""
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    core.handle(Loaded(document, revision, TERM), 0.0)
    assert core.leading
    return core


def training() -> CoordinatorCore:
    """Two replicas train in view 1, which the store holds at revision 11."""
    core = leading()
    core.handle(register(0), 0.0)
    core.handle(Committed(1, revision=10), 0.0)
    core.handle(register(1), 0.0)
    core.handle(Committed(2, revision=11), 0.0)
    assert core.membership is not None
    assert core.membership.view.number == 1
    return core


def register(replica: int) -> Received:
    message = Register(replica=replica, process=PROCESS, rejoin=0, agent=f"agent-{replica}")
    return Received(f"replica-{replica}", message)


def beat(replica: int, number: int, *departures: Departure, gave_up: GaveUp | None = None) -> Received:
    message = Beat(
        agent=f"agent-{replica}",
        boot=1,
        number=number,
        pulses=() if departures else (Pulse(replica=replica, process=PROCESS),),
        departures=departures,
        gave_up=gave_up,
    )
    return Received(f"agent-{replica}", message)


def death(replica: int, number: int = 1) -> Received:
    return beat(replica, number, Departure(replica=replica, process=PROCESS, how="was killed"))


def commit_in(actions: list[Action]) -> Commit:
    (commit,) = [action for action in actions if isinstance(action, Commit)]
    return commit


def told(actions: list[Action]) -> list[Action]:
    """What goes out about views and the outcome."""
    return [
        action
        for action in actions
        if isinstance(action, Send | Publish) and isinstance(action.message, ViewNews | Ended)
    ]


def test_a_view_is_published_after_it_is_committed_and_not_before() -> None:
    core = training()
    actions = core.handle(death(1), 0.1)
    commit = commit_in(actions)
    assert told(actions) == []
    assert told(core.handle(Tick(), 0.15)) == []
    assert core.handle(Received("replica-0", Fetch()), 0.2) == [
        Send("replica-0", ViewNews(view=core.membership.view if core.membership else View()))
    ]
    assert core.membership is not None
    assert core.membership.view.number == 1, "who asks meanwhile is told what is agreed"
    published = told(core.handle(Committed(commit.ticket, revision=12), 0.3))
    assert published == [Publish(ViewNews(view=commit.membership.view))]


def test_why_somebody_goes_is_known_with_the_document_without_it_and_not_after_it_was_read_again() -> None:
    core = training()
    commit = commit_in(core.handle(death(1), 0.1))
    assert core.causes == {}
    core.handle(Committed(commit.ticket, revision=12), 0.2)
    assert core.causes == {1: "replica 1 was killed"}
    last = commit_in(core.handle(death(0), 0.3))
    core.handle(Unknown(last.ticket), 0.4)
    core.handle(Loaded(last.membership, 13, TERM), 0.5)
    assert core.causes == {}


def test_every_write_compares_the_leaders_term_and_the_revision_of_the_document() -> None:
    core = training()
    commit = commit_in(core.handle(death(1), 0.1))
    assert (commit.term, commit.revision) == (TERM, 11)


@pytest.mark.parametrize("answer", [Refused, Unknown])
def test_a_write_that_was_refused_or_not_answered_is_followed_by_reading_and_by_nothing_else(
    answer: type[Refused] | type[Unknown],
) -> None:
    core = training()
    commit = commit_in(core.handle(death(1), 0.1))
    assert core.handle(answer(commit.ticket), 0.2) == [Load()]
    assert not core.leading, "it does not know what is agreed"
    quiet: list[Event] = [Tick(), death(1, number=2), death(0), register(1), Received("replica-0", Fetch())]
    for event in quiet:
        assert core.handle(event, 0.2) == []
    again = core.handle(Loaded(commit.membership, 12, TERM), 0.3)
    if answer is Unknown:
        # The write may still be on its way; another one that is accepted makes sure that it comes to nothing.
        proof = commit_in(again)
        assert (proof.membership, proof.revision) == (commit.membership, 12)
        assert told(again) == []
        again = core.handle(Committed(proof.ticket, 13), 0.4)
    assert told(again) == [Publish(ViewNews(view=commit.membership.view))]


def test_what_may_be_the_past_is_written_once_more_before_anybody_hears_of_it() -> None:
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    document = training().membership
    actions = core.handle(Loaded(document, 11, TERM, proven=False), 0.1)
    proof = commit_in(actions)
    assert told(actions) == [] and not core.leading
    assert (proof.membership, proof.revision, proof.term) == (document, 11, TERM)
    assert core.handle(register(1), 0.2) == [], "nobody is answered, or sent away"
    # It was: somebody has written since.
    assert core.handle(Refused(proof.ticket), 0.3) == [Load()]
    proof = commit_in(core.handle(Loaded(document, 12, TERM, proven=False), 0.4))
    assert core.handle(Committed(proof.ticket, 13), 0.5)
    assert core.leading


def test_what_was_read_from_before_the_own_term_is_read_again() -> None:
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    assert core.handle(Loaded(None, 0, TERM - 1, proven=False), 0.1) == []
    assert core.handle(Tick(), 0.1 + TIMING.beat_every_s) == [Load()]


def test_a_document_that_cannot_be_read_is_asked_for_again_a_beat_later() -> None:
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    assert core.handle(Campaigned(True, TERM, TERM), 0.0) == [Load()]
    assert core.handle(LoadFailed(), 0.1) == []
    assert core.handle(Tick(), 0.1 + TIMING.beat_every_s - 0.01) == []
    assert core.handle(Tick(), 0.1 + TIMING.beat_every_s) == [Load()]
    assert core.handle(Tick(), 0.3) == [], "one question at a time"


@pytest.mark.parametrize("answer", [Committed(99, 50), Refused(99), Unknown(99), NotStored(99, "full")])
def test_an_answer_to_another_write_is_ignored(answer: Event) -> None:
    core = training()
    commit = commit_in(core.handle(death(1), 0.1))
    assert core.handle(answer, 0.2) == []
    assert core.leading
    assert told(core.handle(Committed(commit.ticket, 12), 0.3)) != []


def test_an_answer_that_comes_after_leadership_was_lost_publishes_nothing() -> None:
    core = training()
    commit = commit_in(core.handle(death(1), 0.1))
    assert core.handle(Tick(), 10.0) == [Campaign()], "its lease has run out"
    assert core.handle(Committed(commit.ticket, 12), 10.1) == []
    assert not core.leading


def test_a_leader_that_finds_another_term_in_the_store_resigns_and_publishes_nothing() -> None:
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    document = training().membership
    assert core.handle(Loaded(document, 30, term=29), 0.1) == [Campaign()]
    assert not core.leading


def test_one_that_does_not_lead_says_who_does_and_nothing_else() -> None:
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(False, 0, 7, "there"), 0.0)
    events = [register(0), beat(0, 1), death(1), Received("x", Fetch()), Received("x", Ask())]

    def told_by(leader: str) -> bool:
        return all(
            core.handle(event, 0.1) == [Send(event.sender, NotLeading(leader=leader))] for event in events
        )

    assert told_by("there")
    assert core.status(0.1, {}) is None
    core.handle(WatchProgress(8, False, "elsewhere"), 0.2)
    assert told_by("elsewhere")
    assert core.handle(WatchProgress(9, True), 0.3) == [Campaign()]
    assert told_by(""), "there is nobody"


def test_a_leader_that_was_asleep_for_longer_than_its_lease_answers_nobody_with_what_it_knew() -> None:
    """Another one may have let a life in that it has never heard of."""
    core = training()
    late = TIMING.lease_s + 1.0
    report = Received("replica-0", Report(replica=0, incarnation=2, view=2))
    assert core.handle(report, late) == [Campaign(), Send("replica-0", NotLeading())]


def test_a_new_leader_publishes_what_it_has_read() -> None:
    document = training().membership
    assert document is not None
    core = CoordinatorCore(SPEC, TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    assert core.handle(Loaded(document, 11, TERM), 0.1) == [Publish(ViewNews(view=document.view))]


def test_a_new_leader_plans_from_the_document_and_not_from_its_own_settings() -> None:
    document = training().membership
    core = CoordinatorCore(JobSpec(name="job", replicas=7, shards=9), TIMING)
    core.start(0.0)
    core.handle(Campaigned(True, TERM, TERM), 0.0)
    core.handle(Loaded(document, 11, TERM), 0.1)
    assert commit_in(core.handle(death(1), 0.2)).membership.spec == SPEC


def test_a_second_tenure_knows_nothing_of_the_first() -> None:
    core = training()
    core.handle(death(1), 0.1)
    core.handle(Renewed(alive=False), 0.1)
    core.handle(Tick(), 3.0)
    core.handle(Campaigned(True, 20, 20), 3.0)
    document = training().membership
    actions = core.handle(Loaded(document, 11, 20), 3.1)
    assert not [action for action in actions if isinstance(action, Commit)], "the exit has to be told again"
    assert commit_in(core.handle(death(1, number=2), 3.2)).term == 20


def test_what_was_not_stored_is_tried_again_a_window_later_and_is_a_trouble_until_then() -> None:
    core = training()
    commit = commit_in(core.handle(death(1), 0.1))
    assert core.handle(NotStored(commit.ticket, "the disk is full"), 0.2) == []
    status = core.status(0.2, {})
    assert status is not None
    assert status.trouble == "the disk is full"
    early = core.handle(Tick(), 0.2 + TIMING.detect_within_s - 0.01)
    assert not [action for action in early if isinstance(action, Commit)]
    retried = commit_in(core.handle(Tick(), 0.2 + TIMING.detect_within_s))
    assert retried.membership == commit.membership
    assert retried.revision == commit.revision
    core.handle(Committed(retried.ticket, 12), 1.3)
    assert core.trouble == ""


def test_the_outcome_is_published_once_it_is_committed_and_is_the_answer_to_everything_after() -> None:
    core = training()
    gave_up = GaveUp(replica=1, reason="replica 1 gave up", last_words="NameError")
    actions = core.handle(beat(1, 1, gave_up=gave_up), 0.1)
    assert told(actions) == []
    commit = commit_in(actions)
    assert commit.membership.outcome is not None
    ended = Ended(outcome=commit.membership.outcome)
    assert told(core.handle(Committed(commit.ticket, 12), 0.2)) == [Publish(ended)]
    report = Report(replica=0, incarnation=1, view=1)
    after: list[Received] = [beat(0, 2), register(1), death(1, 3), Received("replica-0", report)]
    for event in after:
        assert core.handle(event, 0.3) == [Send(event.sender, ended)]


def test_the_status_tells_what_is_agreed_and_what_is_seen() -> None:
    core = training()
    core.handle(beat(0, 1), 0.1)
    core.handle(beat(1, 1), 0.1)
    for tick in range(1, 18):
        core.handle(beat(0, 1 + tick), 0.1 + tick * 0.1)
    status = core.status(1.9, {"wrong token": 3})
    assert status is not None
    assert (status.job, status.view.number) == ("job", 1)
    assert [seat.replica for seat in status.seats] == [0, 1]
    assert sorted(pulse.replica for pulse in status.pulses) == [0, 1]
    assert status.silent == ("agent-1",)
    assert status.rejected == {"wrong token": 3}


def test_a_replica_that_the_job_has_no_place_for_is_not_admitted() -> None:
    core = training()
    assert core.handle(register(2), 0.1) == []
    assert core.handle(register(-1), 0.1) == []


def answer(actions: list[Action]) -> Message:
    (send,) = [action for action in actions if isinstance(action, Send)]
    return send.message


def test_one_that_leaves_as_planned_is_neither_evicted_nor_replaced_while_it_is_counted_on() -> None:
    core = training()
    leaving = Received("replica-1", Report(replica=1, incarnation=1, view=1, leaving=True))
    commit = commit_in(core.handle(leaving, 0.1))
    core.handle(Committed(commit.ticket, revision=12), 0.1)
    assert isinstance(answer(core.handle(leaving, 0.2)), ReportAck)
    ack = answer(core.handle(beat(1, 1), 0.2))
    assert isinstance(ack, BeatAck)
    assert ack.evicted == ()

    moved_on = Received("replica-0", Report(replica=0, incarnation=1, view=2))
    core.handle(Committed(commit_in(core.handle(moved_on, 0.3)).ticket, revision=13), 0.3)
    assert isinstance(answer(core.handle(leaving, 0.4)), Evicted)
    ack = answer(core.handle(beat(1, 2), 0.4))
    assert isinstance(ack, BeatAck)
    assert (ack.evicted, ack.failing) == ((PROCESS,), ())


def test_the_agent_hears_which_of_its_replicas_announced_their_own_failure() -> None:
    core = training()
    failing = Received("replica-1", Report(replica=1, incarnation=1, view=1, failing="ValueError: no"))
    commit = commit_in(core.handle(failing, 0.1))
    core.handle(Committed(commit.ticket, revision=12), 0.1)
    assert isinstance(answer(core.handle(failing, 0.2)), Evicted)
    ack = answer(core.handle(beat(1, 1), 0.2))
    assert isinstance(ack, BeatAck)
    assert (ack.evicted, ack.failing) == ((PROCESS,), (PROCESS,))


def test_the_status_tells_of_processes_that_have_not_joined() -> None:
    core = leading()
    core.handle(register(0), 0.0)
    core.handle(Committed(1, revision=10), 0.0)
    core.handle(beat(0, 1), 0.1)
    core.handle(beat(1, 1), 0.1)
    status = core.status(0.2, {})
    assert status is not None
    assert status.replicas == 2
    assert [pulse.replica for pulse in status.starting] == [1]


def test_an_observer_hears_how_many_members_it_takes() -> None:
    status = training().status(0.1, {})
    assert status is not None
    assert status.needed == 1
