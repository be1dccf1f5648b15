"""Agreeing on steps: everybody holds the same records, whoever is missing, late or new."""

import msgspec
from msgspec.structs import replace

from outlast.protocol.attempts import PARTS_AHEAD
from outlast.protocol.keeping import KEPT, KEPT_FOR_LEARNERS
from outlast.protocol.step_words import (
    BLANK,
    AllDone,
    Attempt,
    Body,
    Completed,
    Conclude,
    Feed,
    FeedAgain,
    Follow,
    Found,
    Gone,
    Handed,
    HandOver,
    Holding,
    Judge,
    LeftAlone,
    Lost,
    Mode,
    Part,
    Pin,
    Say,
    Stable,
    StepAction,
    Sum,
    Survey,
    Surveyed,
    Switched,
    Trial,
    Want,
    Whole,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.views import Member, View


def view_of(number: int, *members: int, learners: tuple[int, ...] = (), paused: bool = False) -> View:
    return View(
        number=number,
        members=tuple(Member(replica, 1) for replica in members),
        learners=tuple(Member(replica, 1) for replica in learners),
        paused=paused,
    )


def at(newest: int, view: View, replica: int = 0, *, surveys: bool = False, judges: bool = False) -> StepCore:
    """A replica that trains in this view and holds everything up to this step."""
    core = StepCore(replica, surveys=surveys, judges=judges)
    core.adopt(view, in_band=False)
    for other in core.others:
        core.received(other, Holding(BLANK))
    core.founded(0)
    core.loaded(0)
    for step in range(1, newest + 1):
        complete(core, step)
    assert (core.mode, core.newest) == (Mode.RUNNING, newest)
    return core


def complete(core: StepCore, step: int, pending: int = 0) -> list[StepAction]:
    """Everybody contributes to this step, and it is completed."""
    assert core.step == step
    actions = core.contribute()
    for other in core.others:
        actions += core.received(other, Part(step, pending))
    assert Conclude(step) in actions
    actions = core.summed(step)
    for other in core.others:
        actions += core.received(other, Sum(step))
    return actions


def said(actions: list[StepAction]) -> list[tuple[tuple[int, ...], Body]]:
    return [(action.to, action.body) for action in actions if isinstance(action, Say)]


def stable(actions: list[StepAction]) -> list[int]:
    return [action.step for action in actions if isinstance(action, Stable)]


def fed(actions: list[StepAction]) -> list[int]:
    return [action.step for action in actions if isinstance(action, Feed)]


# One step.


def test_a_step_is_complete_when_all_parts_and_all_sums_are_in() -> None:
    core = at(0, view_of(1, 0, 1, 2))
    assert said(core.contribute()) == [((1, 2), Part(1))]
    assert core.received(1, Part(1)) == []
    assert core.received(1, Sum(1)) == []
    assert core.received(2, Part(1)) == [Conclude(1)]
    assert said(core.summed(1)) == [((1, 2), Sum(1))]
    assert core.received(2, Sum(1)) == [Completed(1), Attempt(2)]


def test_a_step_is_stable_when_the_next_one_is_complete() -> None:
    core = at(1, view_of(1, 0, 1))
    assert stable(complete(core, 2)) == [1]
    assert stable(complete(core, 3)) == [2]


def test_a_view_throws_away_all_pieces_of_the_one_before() -> None:
    core = at(3, view_of(1, 0, 1, 2))
    core.contribute()
    core.received(1, Part(4))
    core.received(2, Part(4))
    core.summed(4)
    core.received(1, Sum(4))
    core.adopt(view_of(2, 0, 1), in_band=False)
    assert core.received(1, Holding(3)) == [Stable(3), Attempt(4)]
    assert said(core.contribute()) == [((1,), Part(4))]
    assert core.received(1, Part(4)) == [Conclude(4)]


def test_a_slice_that_was_reduced_for_an_earlier_view_counts_for_nothing() -> None:
    core = at(3, view_of(1, 0, 1))
    core.contribute()
    core.received(1, Part(4))
    core.adopt(view_of(2, 0), in_band=False)
    assert core.mode is Mode.RUNNING
    assert core.summed(4) == []


def test_parts_that_come_early_are_kept_within_a_bound() -> None:
    core = at(0, view_of(1, 0, 1))
    core.received(1, Part(2))
    core.received(1, Part(PARTS_AHEAD + 1))
    complete(core, 1)
    assert core.contribute()[1:] == [Conclude(2)]
    assert sorted(core._attempts._parts) == [(2, Trial.FIRST)]


def test_a_slice_is_reduced_when_all_surveys_are_in() -> None:
    core = at(0, view_of(1, 0, 1, 2), surveys=True)
    core.contribute()
    core.received(1, Part(1))
    assert core.received(1, Surveyed(1)) == []
    assert core.received(2, Part(1)) == [Survey(1)]
    assert said(core.surveyed(1)) == [((1, 2), Surveyed(1))]
    assert core.summed(1) == []
    assert core.received(2, Surveyed(1)) == [Conclude(1)]
    core.summed(1)
    core.received(1, Sum(1))
    assert core.received(2, Sum(1)) == [Completed(1), Attempt(2)]


def test_surveys_of_an_earlier_view_count_for_nothing() -> None:
    core = at(0, view_of(1, 0, 1, 2), surveys=True)
    core.contribute()
    core.received(1, Part(1))
    core.received(2, Part(1))
    core.received(1, Surveyed(1))
    core.adopt(view_of(2, 0, 1), in_band=False)
    assert core.surveyed(1) == []
    core.received(1, Holding(0))
    core.contribute()
    assert core.received(1, Part(1)) == [Survey(1)]
    assert said(core.surveyed(1)) == [((1,), Surveyed(1))]
    assert core.received(1, Surveyed(1)) == [Conclude(1)]


# Trials.


def sums_in(core: StepCore, trial: Trial) -> list[StepAction]:
    """Everybody takes part in this trial of the present step, to its end."""
    step = core.step
    core.contribute(trial)
    for other in core.others:
        core.received(other, Part(step, trial=trial))
    actions = core.summed(step, trial)
    for other in core.others:
        actions += core.received(other, Sum(step, trial))
    return actions


def test_sums_are_judged_before_they_count() -> None:
    core = at(0, view_of(1, 0, 1), judges=True)
    assert sums_in(core, Trial.FIRST)[-1] == Judge(1)
    assert core.newest == 0
    assert core.judged(1, Trial.FIRST, again=False) == [Completed(1), Attempt(2)]


def test_what_is_doubted_gets_a_hearing_and_a_final_trial() -> None:
    core = at(0, view_of(1, 0, 1), judges=True)
    sums_in(core, Trial.FIRST)
    assert core.judged(1, Trial.FIRST, again=True) == [Attempt(1, Trial.HEARING)]
    assert core.contribute() == []
    assert sums_in(core, Trial.HEARING)[-1] == Judge(1, Trial.HEARING)
    assert core.judged(1, Trial.HEARING, again=True) == [Attempt(1, Trial.FINAL)]
    assert sums_in(core, Trial.FINAL)[-2:] == [Completed(1), Attempt(2)]
    assert core.trial is Trial.FIRST


def test_a_hearing_that_found_nothing_ends_the_step() -> None:
    core = at(0, view_of(1, 0, 1), judges=True)
    sums_in(core, Trial.FIRST)
    core.judged(1, Trial.FIRST, again=True)
    sums_in(core, Trial.HEARING)
    assert core.judged(1, Trial.HEARING, again=False)[0] == Completed(1)


def test_others_may_be_a_trial_ahead() -> None:
    core = at(0, view_of(1, 0, 1), judges=True)
    core.contribute()
    core.received(1, Part(1))
    core.received(1, Sum(1))
    core.summed(1)
    core.received(1, Part(1, trial=Trial.HEARING))
    assert core.judged(1, Trial.FIRST, again=True) == [Attempt(1, Trial.HEARING)]
    assert core.contribute(Trial.HEARING)[1:] == [Conclude(1, Trial.HEARING)]


def test_as_long_as_nothing_is_judged_the_step_waits_for_another_view() -> None:
    core = at(0, view_of(1, 0, 1, 2), judges=True)
    sums_in(core, Trial.FIRST)
    core.judged(1, Trial.FIRST, again=True)
    sums_in(core, Trial.HEARING)
    assert core.received(1, Sum(1, Trial.HEARING)) == []
    core.adopt(view_of(2, 0, 1), in_band=False)
    assert core.judged(1, Trial.HEARING, again=False) == []
    assert core.received(1, Holding(0)) == [Attempt(1)]
    assert core.trial is Trial.FIRST
    assert sums_in(core, Trial.FIRST)[-1] == Judge(1)


def test_a_planned_view_is_named_in_the_first_trial() -> None:
    core = at(0, view_of(1, 0, 1), judges=True)
    core.knows(2)
    core.contribute()
    core.received(1, Part(1, pending=2))
    core.summed(1)
    core.received(1, Sum(1))
    core.judged(1, Trial.FIRST, again=True)
    sums_in(core, Trial.HEARING)
    assert core.judged(1, Trial.HEARING, again=False) == [Completed(1), Follow(2)]


def test_a_hearing_is_not_surveyed_but_the_final_trial_is() -> None:
    core = at(0, view_of(1, 0), surveys=True, judges=True)
    assert core.contribute()[-1] == Survey(1)
    assert core.surveyed(1)[-1] == Conclude(1)
    core.summed(1)
    core.judged(1, Trial.FIRST, again=True)
    assert core.contribute(Trial.HEARING)[-1] == Conclude(1, Trial.HEARING)
    core.summed(1, Trial.HEARING)
    core.judged(1, Trial.HEARING, again=True)
    assert core.contribute(Trial.FINAL)[-1] == Survey(1, Trial.FINAL)


# A view that was adopted out of step.


def test_nobody_goes_on_before_all_have_spoken() -> None:
    core = at(3, view_of(1, 0, 1, 2, 3))
    assert said(core.adopt(view_of(2, 0, 1, 2), in_band=False)) == [((1, 2), Holding(3))]
    assert core.received(1, Holding(3)) == []
    assert core.received(2, Holding(3)) == [Stable(3), Attempt(4)]


def test_who_lacks_a_record_takes_it_from_the_lowest_that_has_it() -> None:
    core = at(3, view_of(1, 0, 1, 2, 3))
    core.adopt(view_of(2, 0, 1, 2), in_band=False)
    core.received(2, Holding(4))
    assert said(core.received(1, Holding(4))) == [((1,), Want(4))]
    assert core.mode is Mode.FETCHING
    assert core.received(1, Whole(4)) == [Completed(4), Attempt(5)]


def test_a_record_that_was_fetched_is_stable_only_with_the_next_step() -> None:
    """Another one may still be fetching it (simulator, seed 27)."""
    core = at(3, view_of(1, 0, 1, 2))
    core.adopt(view_of(2, 0, 1), in_band=False)
    assert stable(core.received(1, Holding(5))) == [3], "all have said that they hold it"
    assert stable(core.received(1, Whole(4)) + core.received(1, Whole(5))) == []
    assert stable(complete(core, 6)) == [4, 5]


def test_a_record_is_served_as_long_as_it_is_kept() -> None:
    core = at(5, view_of(1, 0, 1))
    assert said(core.received(1, Want(6 - KEPT))) == [((1,), Whole(4)), ((1,), Whole(5))]
    assert said(core.received(1, Want(3))) == [((1,), Gone(3))]


def test_what_learners_are_fed_late_is_kept_for_them_until_then() -> None:
    core = at(5, view_of(1, 0, 1, learners=(2,)))
    core.holds_back(6)
    for step in range(6, 14):
        complete(core, step)
    assert core.oldest == 13 - 6 - KEPT_FOR_LEARNERS + 1
    core.holds_back(0)
    complete(core, 14)
    assert core.oldest == 14 - KEPT_FOR_LEARNERS + 1


def test_who_lacks_a_record_that_nobody_keeps_is_lost() -> None:
    core = at(3, view_of(1, 0, 1, 2))
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.received(1, Holding(9))
    assert isinstance(core.received(1, Gone(4))[0], Lost)


def test_who_has_loaded_a_state_does_not_have_the_record_of_its_step() -> None:
    core = StepCore(0)
    core.adopt(view_of(1, 1, learners=(0,)), in_band=False)
    core.loaded(7)
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.received(1, Holding(6))
    assert said(core.received(1, Want(7))) == [((1,), Gone(7))]


def test_too_few_members_hold_still() -> None:
    core = at(3, view_of(1, 0, 1))
    actions = core.adopt(view_of(2, 0, paused=True), in_band=False)
    assert (core.mode, core.holds_planned_views) == (Mode.PAUSED, False)
    assert Attempt(4) not in actions


def test_nobody_goes_on_from_a_pause_before_all_hold_the_same() -> None:
    """One that leaves with the next view may be the only one that holds the newest record (seed 1428)."""
    core = at(3, view_of(1, 0, 1, 2))
    core.adopt(view_of(2, 0, 1, paused=True), in_band=False)
    core.received(1, Holding(2))
    assert (core.mode, core.holds_planned_views) == (Mode.PAUSED, True)
    assert core.received(1, Holding(3, running=True)) == []
    assert not core.holds_planned_views


def test_who_has_caught_up_in_a_pause_says_so() -> None:
    core = at(2, view_of(1, 0, 1, 2))
    core.adopt(view_of(2, 0, 1, paused=True), in_band=False)
    core.received(1, Holding(3))
    assert said(core.received(1, Whole(3))) == [((1,), Holding(3, running=True))]
    assert (core.mode, core.holds_planned_views) == (Mode.PAUSED, False)


def test_who_switches_into_a_pause_says_what_it_holds() -> None:
    core = at(3, view_of(1, 0, 1, 2))
    actions = core.adopt(view_of(2, 0, 1, paused=True), in_band=True)
    assert said(actions) == [((1,), Holding(3, running=True))]
    assert core.holds_planned_views, "the other may still wait for the last sums of step 3"
    core.received(1, Holding(3, running=True))
    assert not core.holds_planned_views


def test_all_reconcile_by_what_was_said_first() -> None:
    """One may have caught up before others have heard everybody, and they must not count it otherwise."""
    core = at(3, view_of(1, 0, 1, 2, learners=(3,)))
    core.adopt(view_of(2, 0, 1, 2, learners=(3,), paused=True), in_band=False)
    core.received(1, Holding(2))
    core.received(1, Holding(3, running=True))
    assert FeedAgain(core.oldest, 2, 3) in core.received(2, Holding(3))
    assert not core.holds_planned_views


def test_another_is_asked_if_the_first_was_only_given_the_state() -> None:
    """One that was promoted holds the state after a step without its record (seed 71559)."""
    core = at(2, view_of(1, 0, 1, 2), replica=2)
    core.adopt(view_of(2, 0, 1, 2), in_band=False)
    core.received(0, Holding(3))
    assert said(core.received(1, Holding(3))) == [((0,), Want(3))]
    assert said(core.received(0, Gone(3))) == [((1,), Want(3))]
    assert isinstance(core.received(1, Gone(3))[0], Lost)


# The beginning of a lineage.


def test_the_lowest_of_the_blank_is_the_beginning() -> None:
    core = StepCore(0)
    core.adopt(view_of(1, 0, 1), in_band=False)
    actions = core.received(1, Holding(BLANK))
    assert actions == [Found()]
    assert core.founded(0) == [Pin(Member(1, 1), 0, (0,)), Attempt(1)]


def test_the_other_blank_ones_wait_for_its_state() -> None:
    core = StepCore(1)
    core.adopt(view_of(1, 0, 1), in_band=False)
    core.received(0, Holding(BLANK))
    assert core.mode is Mode.LOADING
    assert core.loaded(0) == [Attempt(1)]


def test_a_state_that_is_loaded_while_members_reconcile_is_not_waited_for_again() -> None:
    """What the member has said of itself is out of date then (simulator, seeds 6, 20 and 42)."""
    core = StepCore(1)
    core.adopt(view_of(1, 0, 1, 2), in_band=False)
    core.received(0, Holding(BLANK))
    core.received(2, Holding(BLANK))
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.loaded(0)
    assert Attempt(1) in core.received(0, Holding(0))
    assert core.mode is Mode.RUNNING


def test_parts_are_kept_while_the_state_of_a_late_step_is_loaded() -> None:
    """A lineage may begin from what a learner had (simulator, seed 10060)."""
    core = StepCore(1)
    core.adopt(view_of(1, 0, 1), in_band=False)
    core.received(0, Holding(PARTS_AHEAD + 7))
    core.received(0, Part(PARTS_AHEAD + 8))
    core.loaded(PARTS_AHEAD + 7)
    assert core.contribute()[1:] == [Conclude(PARTS_AHEAD + 8)]


# A view that is switched to in band.


def test_all_switch_when_all_name_the_same_view() -> None:
    core = at(3, view_of(1, 0, 1))
    core.knows(2)
    actions = complete(core, 4, pending=2)
    assert actions[-1] == Follow(2)
    assert Attempt(5) not in actions


def test_nobody_switches_when_one_does_not_know_the_view() -> None:
    core = at(3, view_of(1, 0, 1))
    core.knows(2)
    assert complete(core, 4)[-1] == Attempt(5)


def test_new_members_are_handed_the_record_of_the_switch() -> None:
    core = at(4, view_of(1, 0, 1, learners=(2,)))
    after = view_of(2, 0, 1, 2)
    actions = core.adopt(after, in_band=True)
    assert actions == [Say((2,), Switched(after)), HandOver(4, (2,), (0, 1)), Attempt(5)]


def test_a_new_learner_is_pinned_at_the_switch() -> None:
    core = at(4, view_of(1, 0, 1))
    actions = core.adopt(view_of(2, 0, 1, learners=(2,)), in_band=True)
    assert Pin(Member(2, 1), 4, (0, 1)) in actions


def joining() -> StepCore:
    core = StepCore(2)
    core.adopt(view_of(1, 0, 1, learners=(2,)), in_band=False)
    core.loaded(3)
    core.adopt(view_of(2, 0, 1, 2), in_band=True)
    assert core.mode is Mode.JOINING
    return core


def test_a_learner_that_became_a_member_waits_for_the_record_of_the_switch() -> None:
    core = joining()
    assert core.offered(4) == [Completed(4)]
    assert core.received(0, Handed(5)) == [Completed(5), Attempt(6)]


def test_one_who_joins_asks_for_what_it_was_not_fed() -> None:
    """The feed may have a hole (simulator, seeds 1658 and 1880)."""
    core = joining()
    assert core.received(0, Handed(5)) == [Say((0,), Want(4))]
    assert core.received(0, Whole(4)) == [Completed(4), Completed(5), Attempt(6)]


def test_one_who_joins_with_more_than_members_hold_is_lost() -> None:
    """All who had made those records are gone, and their steps are being done again."""
    core = joining()
    assert isinstance(core.received(0, Handed(2))[0], Lost)


def test_one_who_joins_and_cannot_be_given_what_it_lacks_is_lost() -> None:
    core = joining()
    core.received(0, Handed(9))
    others = [replica for replica in core.others if replica != 0]
    answer = core.received(0, Gone(4))
    for replica in others:
        assert answer == [Say((replica,), Want(4))], "somebody else may keep it"
        answer = core.received(replica, Gone(4))
    assert isinstance(answer[0], Lost)


def test_one_who_joins_asks_for_the_record_when_a_member_comes_out_of_step() -> None:
    """That one has no share of it to hand over."""
    core = joining()
    assert said(core.received(1, Holding(4))) == [((0, 1), Holding(3))]
    assert said(core.received(0, Holding(5, running=True))) == [((0,), Want(4))]


def test_a_member_that_trains_answers_one_who_comes_out_of_step() -> None:
    core = at(4, view_of(1, 0, 1))
    core.adopt(view_of(2, 0, 1, learners=(2,)), in_band=True)
    assert said(core.received(1, Holding(3))) == [((1,), Holding(4, running=True))]


def test_members_switch_only_to_a_view_in_which_one_of_them_stays() -> None:
    """Else nobody could hand on the record of the switch (simulator, seed 93)."""
    core = at(4, view_of(1, 0, learners=(1,)))
    assert not core.leads_to(view_of(3, 1))
    assert core.leads_to(view_of(2, 0, 1))
    assert core.leads_to(view_of(2)), "all may leave together"


# Those who learn.


def test_learners_are_fed_what_is_stable() -> None:
    core = at(2, view_of(1, 0, 1, learners=(2,)))
    assert fed(complete(core, 3)) == [2]
    assert fed(complete(core, 4)) == [3]


def test_after_a_failure_learners_are_fed_again_what_every_member_holds() -> None:
    core = at(5, view_of(1, 0, 1, 3, learners=(2,)))
    core.adopt(view_of(2, 0, 1, learners=(2,)), in_band=False)
    actions = core.received(1, Holding(4))
    assert FeedAgain(2, 4, 5) in actions
    assert Pin(Member(2, 1), 5, (0, 1)) in actions


def test_nothing_is_fed_again_while_a_member_is_blank() -> None:
    """It takes part when it has the state, and that is when all hold what came before (seed 3097)."""
    core = at(5, view_of(1, 0, 1, 3, learners=(2,)))
    core.adopt(view_of(2, 0, 1, 3, learners=(2,)), in_band=False)
    core.received(1, Holding(5))
    actions = core.received(3, Holding(BLANK))
    assert FeedAgain(2, BLANK, 5) in actions
    assert fed(complete(core, 6)) == [2, 3, 4, 5]


def learner_at(step: int) -> StepCore:
    core = StepCore(2)
    core.adopt(view_of(1, 0, 1, learners=(2,)), in_band=False)
    core.loaded(step)
    return core


def test_a_record_that_was_handed_over_counts_in_that_view_only() -> None:
    """It was not stable, so after a failure it may come to be another (simulator, seed 732)."""
    core = learner_at(4)
    core.adopt(view_of(2, 0, 1, 2), in_band=True)
    assert Say((0,), Want(5)) in core.received(0, Handed(6))
    core.adopt(view_of(3, 1, 2), in_band=False)
    core.received(1, Holding(5))
    assert [a for a in core.received(1, Whole(5)) if isinstance(a, Completed)] == [Completed(5)]
    assert (core.mode, core.newest) == (Mode.RUNNING, 5)


def test_what_was_undone_once_stays_so_however_far_members_have_come_since() -> None:
    core = learner_at(4)
    core.fed_from(2, 3, 4)
    core.fed_from(3, 5, 6)
    assert core.undone(5, view=1), "it was sent before they went back behind it"
    assert not core.undone(5, view=2) and not core.undone(4, view=1)


def test_a_learner_that_needs_what_nobody_keeps_is_lost() -> None:
    core = learner_at(4)
    core.fed_from(2, 6, 9)
    assert [type(action) for action in core.offered(6, view=2)] == [Lost]


def test_a_learner_is_not_lost_while_what_it_needs_may_still_come() -> None:
    """The one that keeps the fewest records may be heard first, and others have fed more (seed 71559)."""
    core = learner_at(4)
    assert core.fed_from(2, 6, 9) == []
    assert core.offered(5, view=1) == [Completed(5)]
    assert core.offered(6, view=2) == [Completed(6)]


def test_a_learner_that_is_ahead_of_all_members_is_lost() -> None:
    """Those who fed it are dead, and one that was still catching up goes on from an earlier step."""
    assert learner_at(9).fed_from(2, 6, 9) == []
    assert [type(action) for action in learner_at(10).fed_from(2, 6, 9)] == [Lost]


def test_a_learner_may_have_moved_on_when_a_second_member_says_where_feeds_begin() -> None:
    core = learner_at(9)
    core.fed_from(2, 6, 9)
    core.offered(10, view=2)
    assert core.newest == 10
    assert core.fed_from(2, 6, 9) == []
    assert core.fed_from(1, 6, 8) == [], "that is long ago"


def test_what_the_dead_have_sent_of_steps_that_are_undone_counts_no_more() -> None:
    """Records wait for the state that they are to be applied to (simulator, seed 50737)."""
    core = StepCore(2)
    core.adopt(view_of(1, 0, 1, learners=(2,)), in_band=False)
    core.offered(9, view=1)
    core.offered(10, view=1)
    assert core.fed_from(2, 6, 9) == []
    core.offered(11, view=1)
    assert Completed(9) in core.loaded(8, view=1)
    assert core.newest == 9
    assert Completed(10) in core.offered(10, view=2)


def test_a_state_of_steps_that_are_undone_is_of_no_use() -> None:
    core = StepCore(2)
    core.adopt(view_of(1, 0, 1, learners=(2,)), in_band=False)
    core.fed_from(2, 6, 9)
    assert [type(action) for action in core.loaded(10, view=1)] == [Lost]
    assert core.newest == BLANK
    assert core.loaded(10, view=3) == []
    assert core.newest == 10


def test_what_one_member_lacked_then_is_fed_when_all_hold_it() -> None:
    core = at(5, view_of(1, 0, 1, 3, learners=(2,)))
    core.adopt(view_of(2, 0, 1, learners=(2,)), in_band=False)
    core.received(1, Holding(3))
    assert fed(complete(core, 6)) == [4, 5]


def test_a_learner_that_has_its_state_is_not_pinned_again() -> None:
    core = at(5, view_of(1, 0, 1, 3, learners=(2,)))
    core.has_loaded(Member(2, 1))
    core.adopt(view_of(2, 0, 1, learners=(2,)), in_band=False)
    assert not [a for a in core.received(1, Holding(5)) if isinstance(a, Pin)]


def test_records_of_a_lineage_that_is_over_are_not_taken_for_those_of_the_next() -> None:
    """A learner that was fed before it had a state, and founds with others (simulator, seed 741174)."""
    core = StepCore(2)
    core.adopt(replace(view_of(1, 0, learners=(2,)), lineage=1), in_band=False)
    assert core.offered(1, view=1) == []
    core.adopt(replace(view_of(5, 1, 2), lineage=2), in_band=False)
    core.received(1, Holding(BLANK))
    assert core.offered(1, view=4) == [], "nor what is late"
    core.loaded(0, view=5)
    assert core.newest == 0


def test_a_learner_takes_records_in_order() -> None:
    core = StepCore(2)
    core.adopt(view_of(1, 0, 1, learners=(2,)), in_band=False)
    assert core.offered(5) == []
    assert core.loaded(4) == [Completed(5)]
    assert core.offered(7) == []
    assert core.offered(6) == [Completed(6), Completed(7)]


# The end.


def test_all_are_done_when_all_have_left_the_loop() -> None:
    core = at(4, view_of(1, 0, 1, learners=(2,)))
    core.closing = True
    core.contribute()
    actions = core.received(1, Part(5, closing=True))
    assert actions == [Stable(4), Feed(4), AllDone()]


def test_one_who_left_the_loop_alone_hears_of_it() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    core.closing = True
    core.contribute()
    assert core.received(1, Part(5)) == [LeftAlone((1,))]


def founding(number: int = 1) -> StepCore:
    """The lowest of three blank members, which looks for what the lineage begins with."""
    core = StepCore(0)
    core.adopt(view_of(number, 0, 1, 2), in_band=False)
    for other in (1, 2):
        core.received(other, Holding(BLANK))
    assert core.mode is Mode.FOUNDING
    return core


def test_a_founder_begins_after_the_step_of_its_checkpoint() -> None:
    core = founding()
    actions = core.founded(40)
    assert (core.mode, core.newest, core.step) == (Mode.RUNNING, 40, 41)
    assert [a for a in actions if isinstance(a, Pin)] == [
        Pin(Member(replica, 1), 40, (0,)) for replica in (1, 2)
    ]
    assert core.founded(50) == [], "once"


def test_a_founder_that_is_still_looking_when_the_view_changes_is_asked_again() -> None:
    core = founding()
    core.adopt(view_of(2, 0, 1), in_band=False)
    assert core.founded(40) == [], "nobody knows yet who the founder of this view is"
    actions = core.received(1, Holding(BLANK))
    assert actions == [Found()] and core.mode is Mode.FOUNDING
    assert core.founded(40) != [] and core.newest == 40


def test_who_is_not_the_founder_any_more_has_nothing_to_say() -> None:
    core = founding()
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.received(1, Holding(7))
    assert core.mode is Mode.LOADING
    assert core.founded(40) == [] and core.newest == BLANK


def test_a_state_that_comes_while_founding_is_not_taken() -> None:
    core = founding()
    assert core.loaded(3) == [] and core.newest == BLANK
    core.founded(40)
    assert core.newest == 40


def test_a_state_that_was_given_in_this_view_counts_though_all_said_that_they_are_blank() -> None:
    core = StepCore(1)
    core.adopt(view_of(1, 0, 1, 2), in_band=False)
    core.received(0, Holding(BLANK))
    # The founder has heard from all, and was quicker than the word of replica 2.
    core.loaded(40, 1)
    core.received(2, Holding(BLANK))
    assert (core.mode, core.newest) == (Mode.RUNNING, 40)


def test_a_state_of_an_earlier_view_is_not_the_beginning_of_this_one() -> None:
    core = StepCore(1)
    core.adopt(view_of(1, 0, 1), in_band=False)
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.loaded(40, 1)
    (lost,) = core.received(0, Holding(BLANK))
    assert isinstance(lost, Lost)


def test_a_state_of_an_earlier_view_is_not_taken_where_all_are_blank() -> None:
    """The founder of the view before died while its state was on its way, and now another one finds out what
    the lineage begins with: a newer checkpoint perhaps, under a claim of its own (simulator, seed 1323)."""
    core = StepCore(1)
    core.adopt(view_of(1, 0, 1, 2), in_band=False)
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.received(0, Holding(BLANK))
    assert core.mode is Mode.LOADING
    (lost,) = core.loaded(40, 1)
    assert isinstance(lost, Lost) and core.newest == BLANK


def since(number: int, void_before: int, *members: int, learners: tuple[int, ...] = ()) -> View:
    return msgspec.structs.replace(view_of(number, *members, learners=learners), void_before=void_before)


def test_a_learner_drops_what_it_was_given_when_no_member_has_anything() -> None:
    """It was given the state by one who began the lineage and died, and another one begins it anew, with its
    own fresh model perhaps (simulator, seeds 4023 and 6069)."""
    core = learner_at(0)
    assert core.adopt(since(2, 1, 1, learners=(2,)), in_band=False) == []
    (lost,) = core.adopt(since(3, 3, 1, learners=(2,)), in_band=False)
    assert isinstance(lost, Lost)
    core = learner_at(0)
    (lost,) = core.adopt(since(4, 3, 1, 2), in_band=True)
    assert isinstance(lost, Lost), "also if it was made a member before it heard of that"


def test_a_learner_does_not_take_a_state_that_is_void() -> None:
    core = StepCore(2)
    core.adopt(view_of(1, 0, 1, learners=(2,)), in_band=False)
    core.adopt(since(3, 3, 1, learners=(2,)), in_band=False)
    (lost,) = core.loaded(0, 1)
    assert isinstance(lost, Lost) and core.newest == BLANK
    assert core.loaded(0, 3) == [] and core.newest == 0


def test_a_member_keeps_what_it_holds_whatever_is_known_of_it() -> None:
    core = at(5, view_of(1, 0, 1))
    core.adopt(since(2, 2, 0), in_band=False)
    assert (core.mode, core.newest) == (Mode.RUNNING, 5)
