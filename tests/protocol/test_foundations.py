"""Who may begin a lineage: the coordinator writes it down in the document that holds the view."""

from rosters import arrivals, dead, doubted, formed, leaving
from scenes import Scene

from outlast.protocol.coordinator import Action, Send
from outlast.protocol.evidence import Evidence
from outlast.protocol.member import MayBegin, MemberCore
from outlast.protocol.messages import Admitted, Evicted, Report, ReportAck, ViewNews
from outlast.protocol.roster import Change, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import Foundation, Member, View


def foundation(claim: int, view: int = 1, lineage: int = 1) -> Foundation:
    return Foundation(lineage=lineage, view=view, claim=claim)


def test_a_lineage_may_begin_in_the_view_in_force() -> None:
    begun = plan(formed(), Change(foundations={0: foundation(3)}))
    assert begun.foundation == foundation(3)
    assert begun.view == formed().view, "it changes no view"
    for refused in (foundation(9, view=2), foundation(9, view=0), foundation(9, lineage=2), foundation(2)):
        assert plan(begun, Change(foundations={1: refused})).foundation == foundation(3)
    again = plan(begun, Change(foundations={0: foundation(5)}))
    assert again.foundation == foundation(5), "its maker has looked again"


def test_a_view_that_interrupts_takes_the_right_to_begin_and_knows_who_had_it() -> None:
    """The one that is cut off has claimed, but not been heard: it does not begin, and another one does."""
    cut_off = plan(formed(), Change(removals=doubted(0)))
    assert cut_off.view.planned_since == 2 and cut_off.view.founded == 0
    for wish in (foundation(1), foundation(1, view=1)):
        assert plan(cut_off, Change(foundations={1: wish})).foundation is None
    second = plan(cut_off, Change(foundations={1: foundation(2, view=2)}))
    assert second.foundation == foundation(2, view=2)
    third = plan(second, Change(removals=dead(1)))
    assert third.view.founded == 2 and third.foundation == second.foundation


def test_what_is_recorded_together_with_a_view_is_known_in_that_view() -> None:
    both = plan(formed(), Change(foundations={0: foundation(3)}, removals=dead(0)))
    assert both.foundation == foundation(3) and both.view.founded == 3


def test_a_planned_view_takes_nothing() -> None:
    more = plan(plan(formed(), Change(removals=dead(2))), Change(arrivals=arrivals(2, life=2)))
    assert more.view.planned and more.view.number == 3
    assert plan(more, Change(foundations={0: foundation(1, view=2)})).foundation == foundation(1, view=2)
    assert plan(more, Change(foundations={0: foundation(1, view=1)})).foundation is None


def test_the_next_lineage_knows_the_last_beginning_of_the_one_before() -> None:
    gone = plan(plan(formed(), Change(foundations={0: foundation(3)})), Change(removals=dead(0, 1, 2)))
    second = plan(gone, Change(arrivals=arrivals(0, 1, 2, life=2)))
    assert second.view.lineage == 2 and second.view.founded == 3
    number = second.view.number
    late = foundation(4, view=number)
    assert plan(second, Change(foundations={0: late})).foundation == foundation(3), "it is of the old one"
    fresh = foundation(4, view=number, lineage=2)
    assert plan(second, Change(foundations={0: fresh})).foundation == fresh


def test_one_that_leaves_is_still_waited_for_and_may_begin() -> None:
    """Else the others wait for it for ever (simulator, seed 128)."""
    left = plan(formed(), Change(removals=leaving(0)))
    evidence = Evidence(Timing(), 0.0)
    for replica in (0, 1):
        wish = foundation(3) if replica == 0 else None
        evidence.note_report(Report(replica=replica, incarnation=1, view=1, foundation=wish), 0.0)
    assert plan(left, evidence.change(left, 0.0)).foundation == foundation(3)


def founded(actions: list[Action]) -> list[int]:
    return [a.message.founded for a in actions if isinstance(a, Send) and isinstance(a.message, ReportAck)]


def test_a_foundation_is_acknowledged_at_once_when_it_is_in_the_store() -> None:
    assert founded(Scene().report(0, foundation=foundation(3), commits=False)) == [0], "it is being written"
    scene = Scene()
    assert founded(scene.report(0, foundation=foundation(3))) == [0, 3]
    assert founded(scene.report(0, foundation=foundation(3))) == [3]
    assert founded(scene.report(1)) == [0]


def test_who_is_not_a_member_begins_nothing() -> None:
    scene = Scene()
    actions = scene.report(0, incarnation=2, foundation=foundation(3))
    assert any(isinstance(a, Send) and isinstance(a.message, Evicted) for a in actions)
    assert scene.core.membership is not None and scene.core.membership.foundation is None


def founder() -> MemberCore:
    """Replica 0, which is to begin in view 1."""
    core = MemberCore(replica=0, process=1, agent="agent-0", address="", timing=Timing())
    core.received(Admitted(replica=0, process=1, rejoin=0, incarnation=1, view=1), 0.0)
    core.received(ViewNews(view=view_of(1)), 0.0)
    return core


def view_of(number: int) -> View:
    return View(number=number, planned_since=number, lineage=1, members=(Member(0, 1), Member(1, 1)))


def test_a_founder_begins_once_when_it_is_told_that_it_may() -> None:
    core = founder()
    core.set_foundation(foundation(3), 0.0)
    assert core.received(ReportAck(view=1), 0.1) == []
    assert core.received(ReportAck(view=1, founded=2), 0.1) == [], "that was another claim"
    assert core.received(ReportAck(view=1, founded=3), 0.1) == [MayBegin(foundation(3))]
    assert core.received(ReportAck(view=1, founded=3), 0.2) == []


def test_nobody_begins_in_a_view_that_is_over() -> None:
    core = founder()
    core.set_foundation(foundation(3), 0.0)
    core.received(ViewNews(view=view_of(2)), 0.1)
    assert core.foundation is None
    assert MayBegin(foundation(3)) not in core.received(ReportAck(view=2, founded=3), 0.2)
    assert core.set_foundation(foundation(3), 0.3) == [] and core.foundation is None, "it looks anew"
