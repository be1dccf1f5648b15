"""The two cores of a replica together: what waits for the end of a step, and what cannot."""

import pytest

from outlast.protocol.member import Adopt, Deliver, Frame, MemberCore, Tell
from outlast.protocol.messages import Admitted, Evicted, Report, ViewNews
from outlast.protocol.participant import Action, Participant
from outlast.protocol.saving import Copy, Ended
from outlast.protocol.step_words import (
    AllDone,
    Attempt,
    Conclude,
    Handed,
    Holding,
    Lost,
    Mode,
    Part,
    Pin,
    Say,
    Sum,
)
from outlast.protocol.timing import Timing
from outlast.protocol.views import Intent, Member, View


def view_of(
    number: int, *members: int, learners: tuple[int, ...] = (), since: int = 1, paused: bool = False
) -> View:
    return View(
        number=number,
        members=tuple(Member(replica, 1) for replica in members),
        learners=tuple(Member(replica, 1) for replica in learners),
        planned_since=since,
        paused=paused,
    )


def in_view(view: View, replica: int = 0) -> Participant:
    core = MemberCore(replica=replica, process=1, agent="agent", address="", timing=Timing())
    one = Participant(core)
    one.received(Admitted(replica=replica, process=1, rejoin=0, incarnation=1, view=view.number), now=0.0)
    one.received(ViewNews(view=view), now=0.0)
    assert core.view == view
    return one


def trains(view: View, replica: int = 0) -> Participant:
    one = in_view(view, replica)
    for other in one.steps.others:
        one.frame(frame(other, view.number, Holding(-1)), now=0.0)
    one.founded(0, now=0.0)
    one.loaded(0, now=0.0)
    assert one.steps.mode is Mode.RUNNING
    return one


def frame(sender: int, view: int, body: object, moves: bool = False) -> Frame:
    return Frame(sender, 1, view, body, None, moves)


def reports(actions: list[Action]) -> list[Report]:
    return [a.message for a in actions if isinstance(a, Tell) and isinstance(a.message, Report)]


def adopted(actions: list[Action]) -> list[tuple[int, bool]]:
    return [(action.view.number, action.in_band) for action in actions if isinstance(action, Adopt)]


def test_a_planned_view_waits_for_the_end_of_the_step() -> None:
    one = trains(view_of(1, 0, 1))
    assert adopted(one.received(ViewNews(view=view_of(2, 0, 1, learners=(2,))), now=1.0)) == []
    one.contribute(now=1.0)
    assert Conclude(1) in one.frame(frame(1, 1, Part(1, pending=2)), now=1.0)
    one.summed(1, now=1.0)
    actions = one.frame(frame(1, 1, Sum(1)), now=1.0)
    assert adopted(actions) == [(2, True)]
    assert actions.index(Attempt(2)) > [isinstance(a, Adopt) for a in actions].index(True)


def test_a_view_that_interrupts_does_so_at_once() -> None:
    one = trains(view_of(1, 0, 1, 2))
    assert adopted(one.received(ViewNews(view=view_of(2, 0, 1, since=2)), now=1.0)) == [(2, False)]
    assert one.steps.mode is Mode.RECONCILING


def test_who_holds_still_follows_a_planned_view_at_once() -> None:
    one = trains(view_of(1, 0, 1))
    one.received(ViewNews(view=view_of(2, 0, since=2, paused=True)), now=1.0)
    assert one.steps.mode is Mode.PAUSED
    actions = one.received(ViewNews(view=view_of(3, 0, 1, since=2)), now=2.0)
    assert adopted(actions) == [(3, False)]


def test_a_planned_view_is_followed_when_one_who_leaves_with_it_is_gone() -> None:
    one = trains(view_of(1, 0, 1, 2))
    one.received(ViewNews(view=view_of(2, 0, 1)), now=1.0)
    assert adopted(one.peers_lost(frozenset({1}), now=1.0)) == []
    assert adopted(one.peers_lost(frozenset({2}), now=1.0)) == [(2, False)]


def test_that_one_who_leaves_was_gone_says_nothing_of_the_next_era() -> None:
    one = trains(view_of(1, 0, 1, 2))
    one.peers_lost(frozenset({2}), now=0.1)
    one.received(ViewNews(view=view_of(2, 0, 1, 2, since=2)), now=0.2)
    one.received(ViewNews(view=view_of(3, 0, 1, since=2)), now=0.3)
    assert one.member.view.number == 2


def test_a_member_says_from_whom_it_is_cut_off_and_who_is_back() -> None:
    one = trains(view_of(1, 0, 1, 2))
    (report,) = reports(one.peers_lost(frozenset({1, 2}), now=0.1, back=frozenset({1})))
    assert (report.unreachable, report.torn) == ((2,), (1,))


@pytest.mark.parametrize("mode", [Mode.LEARNING, Mode.JOINING])
def test_one_that_was_being_given_something_over_a_torn_connection_begins_anew(mode: Mode) -> None:
    """It may have missed that members went back behind what it holds; a member that died is missed by all."""
    one = in_view(view_of(1, 0, 1, learners=(2,)), replica=2)
    one.loaded(4, now=0.0)
    one.steps.mode = mode
    assert not any(isinstance(action, Lost) for action in one.peers_lost(frozenset({0}), now=0.1))
    lost = [a for a in one.peers_lost(frozenset({0}), now=0.2, back=frozenset({0})) if isinstance(a, Lost)]
    assert len(lost) == 1 and "replica 0" in lost[0].reason


def test_one_who_leaves_and_had_done_all_its_work_is_not_missed() -> None:
    """Its part was its last word; those of the others are still to come (simulator, seed 2775)."""
    one = trains(view_of(1, 0, 1, 2))
    one.received(ViewNews(view=view_of(2, 0, 1)), now=1.0)
    one.steps.closing = True
    one.contribute(now=1.0)
    one.frame(frame(2, 1, Part(1, closing=True)), now=1.0)
    assert adopted(one.peers_lost(frozenset({2}), now=1.1)) == []
    assert AllDone() in one.frame(frame(1, 1, Part(1, closing=True)), now=1.2)


@pytest.mark.parametrize("over", ["at rest", "done"])
def test_who_does_no_more_steps_follows_a_planned_view_at_once(over: str) -> None:
    """One who comes back for the final state must not wait for a step that nobody does."""
    one = trains(view_of(1, 0, 1))
    one.rest(now=1.0)
    if over == "done":
        one.close(now=1.0)
        one.contribute(now=1.0)
        assert AllDone() in one.frame(frame(1, 1, Part(1, closing=True)), now=1.0)
    actions = one.received(ViewNews(view=view_of(2, 0, 1, learners=(2,))), now=2.0)
    assert adopted(actions) == [(2, False)]
    actions = one.frame(frame(1, 2, Holding(0)), now=2.1)
    assert [action.to for action in actions if isinstance(action, Pin)] == [Member(2, 1)]
    assert Attempt(1) in actions, "all say once more that they have left"


def test_who_is_at_rest_is_not_let_go_before_others_know() -> None:
    one = trains(view_of(1, 0, 1))
    one.rest(now=1.0)
    assert adopted(one.received(ViewNews(view=view_of(2, 1)), now=2.0)) == []


def test_who_has_left_the_loop_does_not_pause() -> None:
    one = trains(view_of(1, 0, 1))
    one.rest(now=1.0)
    one.received(ViewNews(view=view_of(2, 0, since=2, paused=True)), now=1.0)
    assert one.steps.mode is Mode.PAUSED
    assert Attempt(1) in one.close(now=2.0)
    assert AllDone() in one.contribute(now=2.0)
    one.received(ViewNews(view=view_of(3, 0, since=3, paused=True)), now=3.0)
    assert one.steps.mode is Mode.RUNNING


def test_a_planned_view_is_followed_when_another_has_moved() -> None:
    one = trains(view_of(1, 0, 1, 2))
    one.received(ViewNews(view=view_of(2, 0, 1)), now=1.0)
    assert adopted(one.frame(frame(1, 2, Holding(0), moves=True), now=1.0)) == [(2, False)]


def test_a_later_view_is_followed_when_the_one_that_another_moved_to_was_never_heard_of() -> None:
    """The coordinator tells only its newest view, so there is no other way (simulator, seed 0)."""
    one = trains(view_of(1, 0, 1, 2))
    assert adopted(one.frame(frame(1, 2, Holding(0), moves=True), now=1.0)) == []
    actions = one.received(ViewNews(view=view_of(3, 0, 1, learners=(3,))), now=1.0)
    assert adopted(actions) == [(3, False)]
    assert Say((1,), Holding(0)) in actions


def test_a_view_in_which_no_present_member_stays_is_not_switched_to() -> None:
    one = trains(view_of(1, 0, learners=(1,)))
    one.received(ViewNews(view=view_of(3, 1)), now=1.0)
    assert one.steps.pending == 0
    one.received(ViewNews(view=view_of(2, 0, 1)), now=1.0)
    assert one.steps.pending == 2


def test_one_who_has_forgotten_the_view_that_all_switch_to_is_lost() -> None:
    one = trains(view_of(1, 0, 1))
    one.received(ViewNews(view=view_of(2, 0, 1, learners=(2,))), now=1.0)
    one.contribute(now=1.0)
    one.member.planned.clear()
    one.frame(frame(1, 1, Part(1, pending=2)), now=1.0)
    one.summed(1, now=1.0)
    assert isinstance(one.frame(frame(1, 1, Sum(1)), now=1.0)[-1], Lost)


def test_a_frame_is_shown_to_the_driver_before_what_follows_from_it() -> None:
    one = trains(view_of(1, 0, 1))
    one.contribute(now=1.0)
    actions = one.frame(frame(1, 1, Part(1)), now=1.0)
    assert actions == [Deliver(frame(1, 1, Part(1))), Conclude(1)]


def test_one_that_is_promoted_says_when_it_has_caught_up() -> None:
    """Until then, those who leave cannot be done without."""
    one = in_view(view_of(1, 1, learners=(0,)))
    one.loaded(4, now=0.0)
    one.switched(view_of(2, 0, 1), now=1.0)
    assert one.steps.mode is Mode.JOINING
    assert [told.catching_up for told in reports(one.tell(now=1.0))] == [True]
    actions = one.frame(frame(1, 2, Handed(4)), now=1.0)
    assert one.steps.mode is Mode.RUNNING
    assert [told.catching_up for told in reports(actions)] == [False]
    assert reports(one.contribute(now=1.0)) == []
    assert [told for told in reports(one.rejoin(now=2.0)) if not told.catching_up] == []


def test_one_that_is_alone_has_nobody_to_tell() -> None:
    one = Participant(MemberCore(replica=0, process=0, agent="", address="", timing=Timing()))
    assert not any(isinstance(action, Tell) for action in one.alone(view_of(1, 0), now=0.0))


def test_a_new_life_has_nothing_of_the_old_ones_view() -> None:
    """Also when it was not fenced, but gave itself up."""
    one = trains(view_of(1, 0, 1))
    one.rejoin(now=1.0)
    assert one.steps.mode is Mode.IDLE
    assert one.frame(frame(1, 1, Part(1)), now=1.0) == []
    assert one.member.view == View(number=1)


def saves_under_way(participant: Participant) -> list[tuple[int, bool]]:
    actions = participant.save_decided(1, participant.member.view.number, 0.0)
    return [(a.save.step, False) for a in actions if isinstance(a, Copy)]


def test_a_save_ends_with_the_life_that_took_part_in_it() -> None:
    for end in (
        lambda one: one.received(Evicted(replica=0, incarnation=1, reason="gone"), 0.0),
        lambda one: one.rejoin(0.0),
    ):
        participant = trains(view_of(1, 0, 1))
        assert saves_under_way(participant) == [(1, False)]
        ended = [a for a in end(participant) if isinstance(a, Ended)]
        assert [(a.save.step, a.committed) for a in ended] == [(1, False)]
        assert participant.saves.save is None


def test_the_intent_of_a_save_that_was_given_up_is_not_told_any_more() -> None:
    participant = trains(view_of(1, 0, 1))
    saves_under_way(participant)
    (report,) = reports(participant.intends(Intent(step=1, lineage=0, seal="s"), 0.0))
    assert report.intent is not None
    participant.save_failed(1, "the disk is full", 0.0)
    (report,) = reports(participant.tell(0.0))
    assert report.intent is None
