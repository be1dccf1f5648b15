"""Who may commit a checkpoint: the coordinator writes it down in the document that holds the view."""

import pytest
from rosters import arrivals, dead, formed
from scenes import Scene

from outlast.protocol.coordinator import Action, Send
from outlast.protocol.messages import Evicted, ReportAck
from outlast.protocol.roster import INTENTS_KEPT, Change, plan
from outlast.protocol.views import Intent


def intent(step: int, lineage: int = 1, seal: str = "") -> Intent:
    return Intent(step=step, lineage=lineage, seal=seal or f"seal-{step}")


def test_a_member_of_the_present_lineage_may_commit_what_is_newer_than_all_before() -> None:
    first = plan(formed(), Change(intents={0: intent(5)}))
    assert first.intents == (intent(5),)
    assert first.view == formed().view, "an intent changes no view"
    for refused in (intent(5, seal="another"), intent(4), intent(9, lineage=2)):
        assert plan(first, Change(intents={0: refused})).intents == (intent(5),)
    assert plan(first, Change(intents={1: intent(6)})).intents == (intent(5), intent(6))


def test_a_new_lineage_begins_to_count_anew() -> None:
    first = plan(formed(), Change(intents={0: intent(50)}))
    gone = plan(first, Change(removals=dead(0, 1, 2)))
    second = plan(gone, Change(arrivals=arrivals(0, 1, 2, life=2)))
    assert second.view.lineage == 2 and second.intents == (intent(50),)
    assert plan(second, Change(intents={0: intent(51)})).intents == (intent(50),), "it is of the old one"
    assert plan(second, Change(intents={0: intent(10, 2)})).intents[-1] == intent(10, 2)


def test_an_intent_and_a_change_of_views_may_come_together() -> None:
    both = plan(formed(), Change(intents={0: intent(5)}, removals=dead(2)))
    assert both.intents == (intent(5),) and both.view.member(2) is None


def test_only_the_newest_are_remembered() -> None:
    membership = formed()
    for step in range(1, INTENTS_KEPT + 10):
        membership = plan(membership, Change(intents={0: intent(step)}))
    assert [one.step for one in membership.intents] == list(range(10, INTENTS_KEPT + 10))


def recorded(actions: list[Action]) -> list[str]:
    return [a.message.recorded for a in actions if isinstance(a, Send) and isinstance(a.message, ReportAck)]


def test_an_intent_is_acknowledged_by_its_seal_once_it_is_in_the_store() -> None:
    scene = Scene()
    assert recorded(scene.report(0, intent=intent(5), commits=False)) == [""], "it is being written"
    scene = Scene()
    scene.report(0, intent=intent(5))
    assert recorded(scene.report(0, intent=intent(5))) == ["seal-5"]
    assert recorded(scene.report(0, intent=intent(5, seal="another"))) == [""]


@pytest.mark.parametrize("incarnation", [2, 7])
def test_who_is_not_a_member_records_nothing(incarnation: int) -> None:
    scene = Scene()
    actions = scene.report(0, incarnation=incarnation, intent=intent(5))
    assert any(isinstance(a, Send) and isinstance(a.message, Evicted) for a in actions)
    assert scene.core.membership is not None and scene.core.membership.intents == ()


def test_the_status_says_what_was_allowed_and_how_the_chief_says_it_stands() -> None:
    scene = Scene()
    scene.report(1, saving="step 3 saved")
    scene.report(0, intent=intent(5), saving="step 4 saved; saving step 5")
    status = scene.core.status(0.1, {})
    assert status is not None
    assert status.intents == (intent(5),)
    assert status.saving == "step 4 saved; saving step 5"


def test_what_is_kept_for_a_name_may_be_committed_late_and_tried_again() -> None:
    first = plan(formed(), Change(intents={0: intent(9)}))
    named = Intent(step=5, lineage=1, seal="one", named=True)
    second = plan(first, Change(intents={0: named}))
    assert second.intents == (intent(9), named)
    assert plan(second, Change(intents={0: named})).intents == second.intents, "said again, it counts once"
    again = Intent(step=5, lineage=1, seal="two", named=True)
    assert plan(second, Change(intents={1: again})).intents == (intent(9), named, again)
    other = Intent(step=5, lineage=2, seal="three", named=True)
    assert plan(second, Change(intents={1: other})).intents == second.intents
