"""A replica's side of membership: what may be acted on follows from its life and its view alone."""

import msgspec
import pytest

from outlast.protocol.member import (
    HELD_FRAMES,
    Adopt,
    Deliver,
    FencedOff,
    Frame,
    JobOver,
    MemberAction,
    MemberCore,
    Overflow,
    Tell,
)
from outlast.protocol.messages import (
    Admitted,
    Ended,
    Evicted,
    Fetch,
    Message,
    Register,
    Report,
    ReportAck,
    ViewNews,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import Member, Outcome, View

TIMING = Timing()
PROCESS = 11


def new_member(replica: int = 0) -> MemberCore:
    return MemberCore(
        replica=replica, process=PROCESS, agent="agent-0", address=f"host-{replica}:1", timing=TIMING
    )


def admitted(incarnation: int = 1, view: int = 1, rejoin: int = 0, process: int = PROCESS) -> Admitted:
    return Admitted(replica=0, process=process, rejoin=rejoin, incarnation=incarnation, view=view)


def view_of(number: int, *members: tuple[int, int], learners: tuple[tuple[int, int], ...] = ()) -> View:
    return View(
        number=number,
        members=tuple(Member(*member) for member in members),
        learners=tuple(Member(*learner) for learner in learners),
        cause="a test",
    )


def in_view(number: int = 1, *members: tuple[int, int]) -> MemberCore:
    """Replica 0 in its first life, in this view."""
    core = new_member()
    core.received(admitted(view=number), 0.0)
    core.received(ViewNews(view=view_of(number, *(members or ((0, 1), (1, 1))))), 0.0)
    assert core.view.number == number
    return core


def fenced() -> MemberCore:
    core = in_view(1)
    core.received(ViewNews(view=view_of(2, (1, 1))), 0.0)
    assert core.fenced
    return core


def told(actions: list[MemberAction]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Tell)]


def delivered(actions: list[MemberAction]) -> list[Frame]:
    return [action.frame for action in actions if isinstance(action, Deliver)]


def frame(view: int, sender: int = 1, incarnation: int = 1, body: object = None) -> Frame:
    return Frame(sender, incarnation, view, body)


def test_it_registers_until_it_is_admitted_and_then_reports() -> None:
    core = new_member()
    expected = Register(replica=0, process=PROCESS, rejoin=0, agent="agent-0", address="host-0:1")
    assert told(core.tick(0.0)) == [expected]
    assert told(core.tick(TIMING.beat_every_s / 2)) == []
    assert told(core.tick(TIMING.beat_every_s)) == [expected]
    core.received(admitted(), 0.15)
    assert told(core.tick(0.3)) == [Report(replica=0, incarnation=1, view=0)]


def test_adopting_a_view_is_reported_at_once() -> None:
    core = new_member()
    core.received(admitted(), 0.0)
    view = view_of(1, (0, 1), (1, 1))
    assert core.received(ViewNews(view=view), 0.0) == [
        Adopt(view),
        Tell(Report(replica=0, incarnation=1, view=1)),
    ]
    assert core.is_member


def test_a_learner_adopts_views_but_is_no_member() -> None:
    core = new_member()
    core.received(admitted(), 0.0)
    core.received(ViewNews(view=view_of(1, (1, 1), learners=((0, 1),))), 0.0)
    assert core.view.number == 1
    assert core.admitted
    assert not core.is_member


def test_views_may_be_skipped_but_never_go_back() -> None:
    core = in_view(1)
    core.received(ViewNews(view=view_of(5, (0, 1), (1, 1))), 1.0)
    assert core.view.number == 5
    assert core.received(ViewNews(view=view_of(4, (0, 1), (2, 1))), 1.0) == []
    assert core.received(ViewNews(view=view_of(5, (0, 1), (1, 1))), 1.0) == []
    assert core.view == view_of(5, (0, 1), (1, 1))


def test_a_view_is_not_adopted_before_it_is_clear_which_life_is_meant() -> None:
    core = new_member()
    assert core.received(ViewNews(view=view_of(1, (0, 1))), 0.0) == []
    assert core.view.number == 0


@pytest.mark.parametrize(
    "stale",
    [
        admitted(rejoin=1),
        admitted(process=PROCESS - 1),
        Admitted(replica=1, process=PROCESS, rejoin=0, incarnation=1, view=1),
    ],
    ids=["another rejoin", "another process", "another replica"],
)
def test_an_admission_meant_for_another_life_is_ignored(stale: Admitted) -> None:
    core = new_member()
    assert core.received(stale, 0.0) == []
    assert not core.admitted


def test_an_admission_of_the_life_before_is_ignored_after_a_rejoin() -> None:
    core = fenced()
    core.rejoin(1.0)
    core.received(admitted(incarnation=1, rejoin=0), 1.0)
    assert not core.admitted
    core.received(admitted(incarnation=2, view=3, rejoin=1), 1.0)
    assert core.incarnation == 2


def test_a_doubled_admission_changes_nothing() -> None:
    core = in_view(3)
    assert core.received(admitted(incarnation=1, view=1), 1.0) == []
    assert core.received(admitted(incarnation=2, view=9), 1.0) == []
    assert (core.incarnation, core.view.number) == (1, 3)


def test_a_frame_of_the_present_view_is_delivered() -> None:
    assert in_view(2).frame(frame(2)) == [Deliver(frame(2))]


def test_a_frame_of_an_older_view_is_dropped() -> None:
    assert in_view(2).frame(frame(1)) == []


def test_a_frame_by_a_life_that_is_not_in_the_view_is_dropped() -> None:
    core = in_view(2, (0, 1), (1, 2))
    assert core.frame(frame(2, sender=1, incarnation=1)) == []
    assert core.frame(frame(2, sender=5)) == []
    assert core.frame(frame(2, sender=1, incarnation=2)) != []


def test_a_frame_of_a_newer_view_is_held_and_that_view_is_fetched() -> None:
    core = in_view(1)
    assert core.frame(frame(2)) == [Tell(Fetch())]


def test_held_frames_are_delivered_in_order_once_their_view_is_adopted() -> None:
    core = in_view(1)
    frames = [frame(2, body=n) for n in range(5)]
    for held in frames:
        core.frame(held)
    view = view_of(2, (0, 1), (1, 1))
    actions = core.received(ViewNews(view=view), 1.0)
    assert actions[0] == Adopt(view), "first the view, then what was sent in it"
    assert delivered(actions) == frames
    assert delivered(core.received(ViewNews(view=view_of(3, (0, 1), (1, 1))), 1.0)) == [], "only once"


def test_held_frames_of_a_view_that_was_skipped_are_dropped() -> None:
    core = in_view(1)
    core.frame(frame(2))
    assert delivered(core.received(ViewNews(view=view_of(3, (0, 1), (1, 1))), 1.0)) == []


def test_held_frames_of_a_still_newer_view_stay_held() -> None:
    core = in_view(1)
    core.frame(frame(3))
    actions = core.received(ViewNews(view=view_of(2, (0, 1), (1, 1))), 1.0)
    assert delivered(actions) == []
    assert Fetch() in told(actions)
    assert delivered(core.received(ViewNews(view=view_of(3, (0, 1), (1, 1))), 1.0)) == [frame(3)]


def test_held_frames_by_lives_that_are_not_in_the_adopted_view_are_dropped() -> None:
    core = in_view(1)
    core.frame(frame(2, sender=1, incarnation=1))
    assert delivered(core.received(ViewNews(view=view_of(2, (0, 1), (1, 2))), 1.0)) == []


def test_frames_that_arrive_before_the_admission_are_held_for_it() -> None:
    core = new_member()
    core.tell(0.0)
    assert core.frame(frame(4)) == [Tell(Fetch())]
    core.received(admitted(view=4), 0.1)
    assert delivered(core.received(ViewNews(view=view_of(4, (0, 1), (1, 1))), 0.1)) == [frame(4)]


def test_of_frames_that_there_is_no_room_for_none_is_lost_in_silence() -> None:
    """What comes after one that is not held would be taken for what follows those before it."""
    core = in_view(1)
    for n in range(HELD_FRAMES):
        core.frame(frame(2, body=n))
    assert core.frame(frame(2, body="one too many")) == [Overflow(1, 1)]
    assert len(delivered(core.received(ViewNews(view=view_of(2, (0, 1), (1, 1))), 1.0))) == HELD_FRAMES


def test_a_thousand_buckets_of_five_peers_find_room() -> None:
    core = in_view(1)
    held = [core.frame(frame(2, body=n)) for n in range(5 * 1000 * 4)]
    assert not any(isinstance(action, Overflow) for actions in held for action in actions)


def test_an_acknowledgement_from_a_newer_view_makes_it_fetch_that_view() -> None:
    core = in_view(3)
    assert told(core.received(ReportAck(view=4), 1.0)) == [Fetch()]
    assert told(core.received(ReportAck(view=3), 1.0)) == []


def test_a_newer_view_without_this_life_fences_it() -> None:
    core = in_view(1)
    (action,) = core.received(ViewNews(view=view_of(2, (0, 2), (1, 1))), 1.0)
    assert isinstance(action, FencedOff)
    assert "view 2" in action.reason
    assert not core.admitted
    assert not core.is_member


def test_a_view_older_than_the_admission_fences_nobody() -> None:
    core = new_member()
    core.received(admitted(view=8), 0.0)
    assert core.received(ViewNews(view=view_of(7, (1, 1))), 0.0) == []
    assert core.admitted
    assert core.received(ViewNews(view=view_of(8, (1, 1))), 0.0) != []
    assert core.fenced


def test_who_is_evicted_is_fenced() -> None:
    core = in_view(1)
    assert core.received(Evicted(replica=0, incarnation=1, reason="why"), 1.0) == [FencedOff("why")]
    assert core.fenced


def test_the_eviction_of_another_incarnation_is_ignored() -> None:
    core = new_member()
    core.received(admitted(incarnation=2), 0.0)
    assert core.received(Evicted(replica=0, incarnation=1, reason="why"), 1.0) == []
    assert core.admitted


def test_a_registration_that_is_void_already_is_answered_by_a_fence() -> None:
    """It was admitted and evicted before it heard of either; the next registration must be a new life."""
    core = new_member()
    core.tell(0.0)
    assert core.received(Evicted(replica=1, incarnation=1, reason="another's"), 0.1) == []
    assert core.received(Evicted(replica=0, incarnation=1, reason="why"), 0.1) == [FencedOff("why")]
    (register,) = told(core.rejoin(0.2))
    assert isinstance(register, Register)
    assert register.rejoin == 1


def test_a_fenced_life_says_nothing_delivers_nothing_and_adopts_nothing() -> None:
    core = fenced()
    assert core.tick(100.0) == []
    assert core.tell(100.0) == []
    assert core.set_ready(100.0) == []
    assert core.frame(frame(1)) == []
    assert core.frame(frame(2)) == []
    assert core.frame(frame(9)) == []
    assert core.received(ViewNews(view=view_of(9, (0, 1), (1, 1))), 100.0) == []
    assert core.received(Evicted(replica=0, incarnation=1, reason="again"), 100.0) == []


def test_a_rejoin_is_a_new_life_that_begins_with_a_registration() -> None:
    core = in_view(1)
    core.set_ready(0.0)
    core.set_unreachable(frozenset({1}), 0.0)
    core.received(Evicted(replica=0, incarnation=1, reason="why"), 0.5)
    assert told(core.rejoin(1.0)) == [
        Register(replica=0, process=PROCESS, rejoin=1, agent="agent-0", address="host-0:1")
    ]
    core.received(admitted(incarnation=2, view=3, rejoin=1), 1.0)
    core.received(ViewNews(view=view_of(3, (1, 1), learners=((0, 2),))), 1.0)
    assert told(core.tell(2.0)) == [Report(replica=0, incarnation=2, view=3)], (
        "nothing of the old life is left"
    )


def test_frames_held_by_a_life_that_is_over_are_not_delivered_to_the_next() -> None:
    core = in_view(1)
    core.frame(frame(3))
    core.received(ViewNews(view=view_of(2, (1, 1))), 1.0)
    core.rejoin(1.0)
    core.received(admitted(incarnation=2, view=3, rejoin=1), 1.0)
    assert delivered(core.received(ViewNews(view=view_of(3, (1, 1), (0, 2))), 1.0)) == []


def test_frames_of_the_view_that_fenced_a_life_do_not_count_in_the_next_life() -> None:
    core = in_view(1)
    core.received(Evicted(replica=0, incarnation=1, reason="why"), 0.5)
    core.rejoin(1.0)
    assert core.frame(frame(1)) == []


def test_a_learner_that_has_caught_up_says_so_until_it_is_promoted() -> None:
    core = new_member()
    core.received(admitted(), 0.0)
    core.received(ViewNews(view=view_of(1, (1, 1), learners=((0, 1),))), 0.0)
    (report,) = told(core.set_ready(0.0))
    assert isinstance(report, Report)
    assert report.ready
    assert told(core.tick(1.0)) == [report]


def test_one_that_leaves_says_so_at_once() -> None:
    (report,) = told(in_view(1).set_leaving(0.0))
    assert isinstance(report, Report)
    assert report.leaving


def test_peers_that_cannot_be_reached_are_told_at_once_when_they_change() -> None:
    core = in_view(1, (0, 1), (1, 1), (2, 1))
    (report,) = told(core.set_unreachable(frozenset({2, 1}), 0.0))
    assert isinstance(report, Report)
    assert report.unreachable == (1, 2)
    assert core.set_unreachable(frozenset({1, 2}), 0.0) == []
    assert told(core.set_unreachable(frozenset(), 0.0)) != []


def test_what_is_torn_stays_so_until_an_era_ends() -> None:
    core = in_view(1, (0, 1), (1, 1), (2, 1))
    core.set_unreachable(frozenset({2}), 0.0, torn=frozenset({1}))
    planned = msgspec.structs.replace(
        view_of(2, (0, 1), (1, 1), (2, 1)), planned_since=core.view.planned_since
    )
    (report,) = told(core.received(ViewNews(view=planned), 1.0))
    assert isinstance(report, Report) and (report.unreachable, report.torn) == ((2,), (1,))
    interrupts = msgspec.structs.replace(planned, number=3, planned_since=3)
    (report,) = told(core.received(ViewNews(view=interrupts), 2.0))
    assert isinstance(report, Report) and (report.unreachable, report.torn) == ((), ())


def test_complaints_about_peers_that_have_left_the_view_are_dropped() -> None:
    core = in_view(1, (0, 1), (1, 1), (2, 1))
    core.set_unreachable(frozenset({1, 2}), 0.0)
    (report,) = told(core.received(ViewNews(view=view_of(2, (0, 1), (1, 1))), 1.0))
    assert isinstance(report, Report)
    assert report.unreachable == (1,)


def test_the_end_of_the_job_reaches_also_a_fenced_replica() -> None:
    outcome = Outcome(finished=True, reason="all work is done")
    assert in_view(1).received(Ended(outcome=outcome), 1.0) == [JobOver(outcome)]
    assert fenced().received(Ended(outcome=outcome), 1.0) == [JobOver(outcome)]


def test_an_eviction_of_the_former_life_does_not_fence_the_next() -> None:
    core = in_view(1)
    evicted = Evicted(replica=0, incarnation=1, reason="why")
    core.received(evicted, 0.5)
    core.rejoin(0.6)
    assert core.received(evicted, 0.61) == [], "the answer to a second report of the old life"
    assert not core.fenced


def test_a_newer_view_is_fetched_once_however_many_frames_wait_for_it() -> None:
    core = in_view(1)
    told_for = [told(core.frame(frame(2, body=number))) for number in range(100)]
    assert told_for == [[Fetch()], *([[]] * 99)]


def test_a_look_at_the_clock_that_comes_a_hair_too_early_does_not_put_off_a_beat() -> None:
    core = in_view()
    core.tell(1.0)
    assert core.tick(1.0 + TIMING.beat_every_s * 0.4) == []
    assert len(core.tick(1.0 + TIMING.beat_every_s * 0.999)) == 1
