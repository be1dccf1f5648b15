"""When one of the members is to go because all of them say so."""

import msgspec
from rosters import adopted_by, arrivals, dead, formed, names

from outlast.protocol.charges import heeded
from outlast.protocol.evidence import Evidence
from outlast.protocol.messages import Report
from outlast.protocol.roster import Change, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import OFFENCES_MOST, Charge, Membership, Retreat, Standing, View

AGAINST_1 = Charge(view=1, step=7, replica=1, incarnation=1, reason="its gradient is not what others compute")
AGAINST_NOBODY = Charge(view=1, step=7, reason="the states of members differ")


def report(replica: int, *charges: Charge) -> Report:
    return Report(replica=replica, incarnation=1, view=1, charges=charges)


def after(membership: Membership, *reports: Report) -> Membership:
    evidence = Evidence(Timing(), 0.0)
    for one in reports:
        evidence.note_report(one, 0.0)
    return plan(membership, evidence.change(membership, 0.0))


def test_a_charge_of_more_than_half_evicts_at_once_and_says_why() -> None:
    judged = after(formed(3), report(0, AGAINST_1), report(2, AGAINST_1))
    assert names(judged.view) == "0.1 2.1"
    assert not judged.view.planned
    assert judged.seats[1].standing is Standing.EVICTED
    assert judged.view.cause == "replica 1 of agent-1, step 7: its gradient is not what others compute"
    assert judged.charges == (AGAINST_1,)


def test_one_alone_evicts_nobody() -> None:
    assert after(formed(3), report(0, AGAINST_1)).view == formed(3).view
    assert after(formed(2), report(0, AGAINST_1)).view == formed(2).view


def test_of_two_members_both_have_to_say_it_the_accused_included() -> None:
    assert names(after(formed(2), report(0, AGAINST_1), report(1, AGAINST_1)).view) == "0.1"


def test_who_still_catches_up_is_not_asked() -> None:
    learning = [Report(replica=replica, incarnation=1, view=1, catching_up=True) for replica in (0, 3)]
    judged = after(formed(4), report(1, AGAINST_1), report(2, AGAINST_1), *learning)
    assert names(judged.view) == "0.1 2.1 3.1"


def test_who_has_lost_its_state_over_a_charge_has_a_say_like_everybody() -> None:
    """It has gone back, and has no copy to go back to."""
    blank = Report(replica=0, incarnation=1, view=1, catching_up=True, charges=(AGAINST_1,))
    assert after(formed(2), blank, report(1)).view == formed(2).view
    assert names(after(formed(2), blank, report(1, AGAINST_1)).view) == "0.1"


def test_the_last_who_holds_the_state_stays() -> None:
    against_0 = msgspec.structs.replace(AGAINST_1, replica=0)
    judged = after(formed(1), report(0, against_0))
    assert (names(judged.view), judged.view.planned) == ("0.1", False)
    assert judged.view.cause.endswith("but it stays, since nobody else holds the state")


def test_a_charge_that_names_nobody_ends_the_view_and_keeps_everybody() -> None:
    judged = after(formed(2), report(0, AGAINST_NOBODY), report(1, AGAINST_NOBODY))
    assert (judged.view.number, names(judged.view), judged.view.planned) == (2, "0.1 1.1", False)
    assert judged.view.cause == "step 7: the states of members differ"


def test_a_charge_is_followed_once() -> None:
    reports = {replica: report(replica, AGAINST_NOBODY) for replica in (0, 1)}
    judged = after(formed(2), *reports.values())
    assert heeded(judged.view, reports) == []


def test_a_planned_view_does_not_answer_a_charge() -> None:
    membership = formed(3)
    planned = msgspec.structs.replace(membership.view, number=9, planned_since=1)
    reports = {replica: report(replica, AGAINST_1) for replica in (0, 2)}
    assert heeded(planned, reports) == [AGAINST_1]


def test_a_charge_against_an_earlier_life_evicts_nobody() -> None:
    old = msgspec.structs.replace(AGAINST_1, incarnation=0)
    judged = after(formed(3), report(0, old), report(2, old))
    assert names(judged.view) == "0.1 1.1 2.1"


def test_learners_and_earlier_lives_have_no_say() -> None:
    view = View(number=1, planned_since=1, members=formed(3).view.members)
    strangers = {
        0: report(0, AGAINST_1),
        2: Report(replica=2, incarnation=5, view=1, charges=(AGAINST_1,)),
        7: report(7, AGAINST_1),
    }
    assert heeded(view, strangers) == []


def offended(times: int) -> Membership:
    """A job whose replica 1 was charged so often, and came back each time but the last."""
    membership = formed(3)
    for time in range(1, times + 1):
        life = membership.seats[1].incarnation
        charge = msgspec.structs.replace(AGAINST_1, view=membership.view.number, incarnation=life)
        membership = after(membership, report(0, charge), report(2, charge))
        assert membership.seats[1].offences == time
        if time < times:
            membership = plan(membership, Change(arrivals=arrivals(1, rejoin=time)))
            membership = plan(membership, Change(ready={1}))
            membership = plan(membership, adopted_by(membership, 0, 1, 2))
    return membership


def test_who_was_charged_too_often_is_not_let_in_again() -> None:
    membership = offended(OFFENCES_MOST)
    assert membership.seats[1].barred
    assert "is not let in again" in membership.view.cause
    again = plan(membership, Change(arrivals=arrivals(1, rejoin=OFFENCES_MOST)))
    assert again == membership
    gone = plan(membership, Change(removals=dead(1)))
    assert plan(gone, Change(arrivals=arrivals(1, life=2))) == gone
    assert (membership.needed, names(membership.view)) == (1, "0.1 2.1")


def test_before_that_it_may_come_back() -> None:
    membership = offended(OFFENCES_MOST - 1)
    back = plan(membership, Change(arrivals=arrivals(1, rejoin=9)))
    assert back.view.learner(1) is not None
    assert back.seats[1].offences == OFFENCES_MOST - 1


def test_nobody_waits_for_one_that_is_barred() -> None:
    membership = msgspec.structs.replace(
        offended(OFFENCES_MOST), spec=msgspec.structs.replace(formed(3).spec, min_replicas=3)
    )
    assert membership.needed == 2


AGAINST_THE_SCRIPT = Charge(view=1, step=7, reason="only the chief changed it", ends=True)


def test_a_charge_against_the_script_ends_the_job_and_bars_nobody() -> None:
    other = msgspec.structs.replace(AGAINST_THE_SCRIPT, reason="the same in other words")
    judged = after(formed(3), report(0, AGAINST_THE_SCRIPT), report(2, other))
    assert judged.outcome is not None
    assert (judged.outcome.finished, judged.outcome.reason) == (False, "only the chief changed it")
    assert [seat.offences for seat in judged.seats.values()] == [0, 0, 0]


def test_one_alone_ends_nothing() -> None:
    assert after(formed(3), report(0, AGAINST_THE_SCRIPT)).outcome is None
    assert after(formed(2), report(0, AGAINST_THE_SCRIPT), report(1, AGAINST_NOBODY)).outcome is None


STATES_DIFFER = Charge(view=1, step=20, replica=1, incarnation=1, reason="its state differs", back_to=10)


def test_a_charge_that_makes_members_go_back_is_in_every_view_after_it() -> None:
    judged = after(formed(3), report(0, STATES_DIFFER), report(2, STATES_DIFFER))
    assert judged.view.retreat == Retreat(1, 10, since=2)
    later = plan(judged, Change(removals=dead(0)))
    assert names(later.view) == "2.1"
    assert later.view.retreat == Retreat(1, 10, since=2)


def test_a_new_lineage_has_nothing_to_go_back_to() -> None:
    judged = after(formed(3), report(0, STATES_DIFFER), report(2, STATES_DIFFER))
    back = plan(judged, Change(removals=dead(0, 2), arrivals=arrivals(0, 2, life=2)))
    again = plan(back, Change(form_now=True))
    assert again.view.lineage == 2
    assert again.view.retreat == Retreat()
