"""Connections that break while both ends live: the view is renewed, and nobody goes, unless it never ends."""

import msgspec

from outlast.protocol.evidence import Evidence
from outlast.protocol.gaps import RENEWALS_MOST, Gaps
from outlast.protocol.messages import Beat, Phase, Pulse, Report
from outlast.protocol.roster import Change, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Member, Membership, Seat, Standing, View, process_number

MEMBERS = (Member(0, 1), Member(1, 1), Member(2, 1))
VIEW = View(number=5, lineage=1, members=MEMBERS, shards=(0, 1, 2), slices=(0, 1, 2), planned_since=5)
TIMING = Timing()


def torn(replica: int, *others: int, view: int = 5, incarnation: int = 1) -> Report:
    return Report(replica=replica, incarnation=incarnation, view=view, torn=others)


def renewed(view: View) -> View:
    return msgspec.structs.replace(view, number=view.number + 1, planned_since=view.number + 1)


def test_the_cause_names_the_connection() -> None:
    cause = Gaps(TIMING).found([torn(1, 0), torn(0, 1)], VIEW, 30, 0.0)
    assert cause.startswith("the connection between replicas 0 and 1 broke and was made anew")


def test_what_was_said_in_an_era_before_is_answered_by_the_present_one() -> None:
    assert not Gaps(TIMING).found([torn(1, 0, view=4)], VIEW, 30, 0.0)
    assert not Gaps(TIMING).found([torn(1, 0, incarnation=2)], VIEW, 30, 0.0)
    planned = msgspec.structs.replace(VIEW, number=6)
    assert Gaps(TIMING).found([torn(1, 0)], planned, 30, 0.0), "a planned view answers nothing"


def test_one_who_is_not_a_member_is_no_reason() -> None:
    assert not Gaps(TIMING).found([torn(1, 7)], VIEW, 30, 0.0)


def test_a_connection_that_breaks_again_and_again_without_a_step_is_none() -> None:
    gaps, view = Gaps(TIMING), VIEW
    for _ in range(RENEWALS_MOST):
        report = torn(1, 0, view=view.number)
        assert gaps.found([report], view, 30, 0.0)
        assert gaps.found([report], view, 30, 0.0), "the same decision, which is not committed yet"
        assert gaps.worn_out(report) == ([0] if view.number == 4 + RENEWALS_MOST else [])
        view = renewed(view)
    last = torn(1, 0, view=view.number)
    assert not gaps.found([last], view, 30, 0.0) and gaps.worn_out(last) == [0]
    assert gaps.found([last], view, 31, 0.0) and not gaps.worn_out(last), "a step was done"


def test_what_happened_long_ago_is_forgotten() -> None:
    gaps, view = Gaps(TIMING), VIEW
    for _ in range(RENEWALS_MOST):
        assert gaps.found([torn(1, 0, view=view.number)], view, 30, 0.0)
        view = renewed(view)
    assert gaps.found([torn(1, 0, view=view.number)], view, 30, TIMING.standstill_s + 0.1)


def membership() -> Membership:
    seats = {
        m.replica: Seat(
            replica=m.replica,
            standing=Standing.MEMBER,
            incarnation=1,
            process=process_number(1, m.replica),
            agent="agent-0",
            member_since=1,
        )
        for m in MEMBERS
    }
    return Membership(
        spec=JobSpec(name="j", replicas=3, shards=3), view=VIEW, seats=seats, active=5, holders=MEMBERS
    )


def test_the_view_is_renewed_with_the_same_members_and_without_wonder() -> None:
    cause = "the connection between replicas 0 and 1 broke"
    after = plan(membership(), Change(gap=cause)).view
    assert (after.number, after.members, after.cause) == (6, MEMBERS, cause)
    assert not after.planned and not after.renews
    assert after.shards == VIEW.shards and after.slices == VIEW.slices, "what is computed stays"


def test_a_leader_that_is_new_renews_at_once_and_evicts_nobody() -> None:
    """It suspects nobody in its first window; but this is no suspicion."""
    evidence = Evidence(TIMING, 0.0)
    evidence.note_report(torn(0, 1), 0.01)
    change = evidence.change(membership(), 0.01)
    assert change.gap and not change.removals


def pulse(replica: int, step: int) -> Pulse:
    return Pulse(
        replica=replica,
        process=process_number(1, replica),
        incarnation=1,
        view=5,
        step=step,
        phase=Phase.WAITING,
        quiet_s=0.0,
        pace_s=0.01,
        stopped_s=0.0,
    )


def test_one_that_is_cut_off_again_and_again_goes_as_before() -> None:
    evidence, document, now = Evidence(TIMING, -10.0), membership(), 0.0
    for number in range(40):
        now += 0.1
        evidence.note_beat(
            "agent",
            Beat(agent="agent-0", boot=1, number=number, pulses=tuple(pulse(r, 30) for r in range(3))),
            now,
        )
        for member in MEMBERS:
            others = {0: (1,), 1: (0,)}.get(member.replica, ())
            evidence.note_report(torn(member.replica, *others, view=document.view.number), now)
        change = evidence.change(document, now)
        if change.removals:
            break
        document = replace_view(document, renewed(document.view)) if change.gap else document
    assert list(change.removals) == [1] and "cut off" in change.removals[1].cause
    assert document.view.number == 5 + RENEWALS_MOST


def replace_view(document: Membership, view: View) -> Membership:
    return msgspec.structs.replace(document, view=view)
