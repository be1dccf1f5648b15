"""Who may commit a checkpoint: the coordinator writes it down in the document that holds the view."""

import pytest
from rosters import arrivals, dead, formed

from outlast.protocol.coordinator import Action, Commit, Committed, CoordinatorCore, Loaded, Received, Send
from outlast.protocol.election import Campaigned
from outlast.protocol.messages import Evicted, Message, Register, Report, ReportAck
from outlast.protocol.roster import INTENTS_KEPT, Change, plan
from outlast.protocol.timing import Timing
from outlast.protocol.views import Intent, JobSpec, process_number

PROCESS = process_number(1, 1)


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


class Scene:
    """A coordinator of two replicas in view 1, and the store that says yes to everything."""

    def __init__(self) -> None:
        self.core = CoordinatorCore(JobSpec(name="job", replicas=2, shards=2), Timing())
        self.core.start(0.0)
        self.core.handle(Campaigned(True, 5, 5), 0.0)
        self.core.handle(Loaded(None, 0, 5), 0.0)
        self._revision = 10
        for replica in (0, 1):
            self.say(replica, Register(replica=replica, process=PROCESS, rejoin=0, agent=f"agent-{replica}"))
        assert self.core.membership is not None and self.core.membership.view.number == 1

    def say(self, replica: int, message: Message, *, commits: bool = True) -> list[Action]:
        actions = self.core.handle(Received(f"replica-{replica}", message), 0.1)
        for commit in [action for action in actions if isinstance(action, Commit)] if commits else []:
            self._revision += 1
            actions += self.core.handle(Committed(commit.ticket, revision=self._revision), 0.1)
        return actions

    def report(
        self, replica: int, *, commits: bool = True, incarnation: int = 1, **more: object
    ) -> list[Action]:
        report = Report(replica=replica, incarnation=incarnation, view=1, **more)  # type: ignore[arg-type]
        return self.say(replica, report, commits=commits)


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
