"""Planned views: what may wait for the end of a step, what may not, and who is counted on meanwhile."""

import pytest
from rosters import (
    activated,
    adopted_by,
    arrivals,
    dead,
    done,
    doubted,
    empty,
    formed,
    leaving,
    names,
    with_learner,
)

from outlast.errors import ConfigError
from outlast.protocol.messages import Register
from outlast.protocol.roster import Change, plan
from outlast.protocol.views import JobSpec, Membership, Standing


def wishing(shards: dict[int, int]) -> dict[int, Register]:
    """Registrations of replicas whose scripts ask for these numbers of shards."""
    return {
        replica: Register(replica=replica, process=100 * replica + 1, rejoin=0, agent="agent", shards=wish)
        for replica, wish in shards.items()
    }


def test_a_first_view_interrupts_and_counts_from_itself() -> None:
    view = formed(3).view
    assert (view.number, view.planned_since, view.planned) == (1, 1, False)


@pytest.mark.parametrize(
    "change",
    [
        Change(ready={1}),
        Change(removals=dead(1, life=2)),
        Change(removals=doubted(1, life=2)),
        Change(removals=leaving(0)),
        Change(removals=done(0)),
        Change(removals=leaving(2), ready={1}),
    ],
    ids=[
        "promotion",
        "a learner dies",
        "a learner is silent",
        "a leaver",
        "one that finished",
        "two at once",
    ],
)
def test_who_is_not_needed_in_the_step_under_way_can_wait_for_its_end(change: Change) -> None:
    before = with_learner(1)
    view = plan(before, change).view
    assert view.number == before.view.number + 1
    assert view.planned
    assert view.planned_since == before.view.planned_since


def test_an_arrival_is_planned() -> None:
    lost = plan(formed(3), Change(removals=dead(1)))
    assert (lost.view.planned, lost.view.planned_since) == (False, 2)
    back = plan(lost, Change(arrivals=arrivals(1, life=2)))
    assert (back.view.planned, back.view.planned_since) == (True, 2)


@pytest.mark.parametrize(
    "change",
    [
        Change(removals=dead(0)),
        Change(removals=doubted(0)),
        Change(arrivals=arrivals(0, life=2)),
        Change(arrivals=arrivals(0, rejoin=1)),
        Change(removals=leaving(0) | dead(2)),
        Change(removals=dead(2), ready={1}),
    ],
    ids=["death", "silence", "a new life", "a rejoin", "a leaver and a death", "a death and a promotion"],
)
def test_the_loss_of_a_member_interrupts(change: Change) -> None:
    view = plan(with_learner(1), change).view
    assert not view.planned
    assert view.planned_since == view.number


def test_a_new_lineage_interrupts() -> None:
    lost = plan(formed(2), Change(removals=leaving(0, 1)))
    assert lost.view.planned
    again = plan(lost, Change(arrivals=arrivals(0, 1, life=2)))
    assert again.view.lineage == 2
    assert not again.view.planned


def test_a_planned_change_of_members_lays_the_shards_out_afresh() -> None:
    scattered = with_learner(2).view
    view = plan(with_learner(2), Change(ready={2})).view
    assert scattered.shards != tuple(sorted(scattered.shards)), "the death has scattered them"
    assert view.shards == (0, 0, 1, 1, 2, 2)
    assert view.slices == (0, 1, 2)


def test_a_planned_view_with_the_same_members_leaves_all_shards_and_slices_where_they_are() -> None:
    lost = plan(formed(3), Change(removals=dead(1)))
    back = plan(lost, Change(arrivals=arrivals(1, life=2)))
    assert (back.view.shards, back.view.slices) == (lost.view.shards, lost.view.slices)


def test_an_interruption_keeps_the_shards_that_are_being_worked_on_and_not_those_of_a_view_to_come() -> None:
    working = with_learner(1)
    promoted = plan(working, Change(ready={1}))
    after = plan(promoted, Change(removals=dead(2)))
    mine = [shard for shard, owner in enumerate(working.view.shards) if owner == 0]
    assert [shard for shard, owner in enumerate(promoted.view.shards) if owner == 0] != mine
    assert [shard for shard, owner in enumerate(after.view.shards) if owner == 0] == mine


def test_once_a_planned_view_is_active_an_interruption_keeps_its_shards() -> None:
    promoted = activated(plan(with_learner(1), Change(ready={1})))
    after = plan(promoted, Change(removals=dead(2)))
    kept = zip(promoted.view.shards, after.view.shards, strict=True)
    assert all(old == new for old, new in kept if old != 2)


def test_a_member_that_was_promoted_by_a_view_not_in_force_stays_a_member_when_one_interrupts() -> None:
    promoted = plan(with_learner(1), Change(ready={1}))
    after = plan(promoted, Change(removals=dead(0)))
    assert names(after.view) == "1.2 2.1"
    assert [holder.replica for holder in after.holders if after.seats[holder.replica].present] == [2]
    assert plan(after, Change(removals=doubted(2))) == after, "replica 2 is the last known holder"
    adopted = plan(after, adopted_by(after, 1, 2))
    assert sorted(holder.replica for holder in adopted.holders) == [1, 2]


def test_adopting_a_view_that_is_no_longer_the_newest_makes_its_members_holders() -> None:
    """Else a member that hangs then could never be removed: it would be the last known holder for ever."""
    alone = activated(plan(formed(3), Change(removals=dead(0, 1), arrivals=arrivals(0, life=2))))
    promoted = plan(alone, Change(ready={0}))
    arrived = plan(promoted, Change(arrivals=arrivals(1, life=2)))
    assert names(arrived.view) == "0.2 2.1 + 1.2"
    adopted = plan(arrived, adopted_by(arrived, 0, 2, view=promoted.view.number))
    assert adopted.active == promoted.view.number
    assert sorted(holder.replica for holder in adopted.holders) == [0, 2]
    assert names(plan(adopted, Change(removals=doubted(2))).view) == "0.2 + 1.2"


def test_who_was_promoted_after_the_adopted_view_is_no_holder_yet() -> None:
    learning = with_learner(1)
    promoted = plan(learning, Change(ready={1}))
    assert plan(promoted, adopted_by(promoted, 0, 2, view=learning.view.number)) == promoted


def test_an_adopted_view_that_nobody_has_decided_counts_for_nothing() -> None:
    assert plan(formed(2), Change(adopted={0: 9})) == formed(2)


def test_a_leaver_is_counted_on_until_all_members_have_moved_on() -> None:
    left = plan(formed(3), Change(removals=leaving(1)))
    assert [member.replica for member in left.departing] == [1]
    assert left.counts_on(left.seats[1])
    some = plan(left, adopted_by(left, 0))
    assert some.departing == left.departing
    moved_on = plan(some, adopted_by(some, 0, 2))
    assert moved_on.departing == ()
    assert plan(moved_on, Change(removals=dead(1))).view == moved_on.view


def test_a_leaver_that_dies_while_it_is_counted_on_makes_a_view_that_interrupts() -> None:
    left = plan(formed(3), Change(removals=leaving(1)))
    for removals in (dead(1), doubted(1)):
        after = plan(left, Change(removals=removals))
        assert names(after.view) == names(left.view)
        assert (after.view.number, after.view.planned) == (left.view.number + 1, False)
        assert after.view.cause == removals[1].cause
        assert after.departing == ()


def test_a_leaver_that_exits_in_order_interrupts_nobody() -> None:
    left = plan(formed(3), Change(removals=leaving(1)))
    after = plan(left, Change(removals=done(1)))
    assert after.view == left.view
    assert after.departing == ()
    assert after.seats[1].standing is Standing.FINISHED


def test_a_leaver_is_counted_on_no_longer_than_until_all_are_in_a_view_without_it() -> None:
    """It need not be the newest view; else the exit of a leaver would interrupt a run of planned changes."""
    left = plan(with_learner(2), Change(removals=leaving(1)))
    later = plan(left, Change(ready={2}))
    assert later.departing == left.departing
    moved_on = plan(later, adopted_by(later, 0, 2, view=left.view.number))
    assert moved_on.departing == ()
    assert plan(moved_on, Change(removals=dead(1))).view == later.view


def test_a_leaver_stays_while_it_is_the_only_one_that_holds_the_state() -> None:
    alone = activated(plan(formed(2), Change(removals=dead(0), arrivals=arrivals(0, life=2))))
    leaves = leaving(1)
    assert plan(alone, Change(removals=leaves)) == alone, "replica 0 has just begun to learn"
    promoted = plan(alone, Change(removals=leaves, ready={0}))
    assert names(promoted.view) == "0.2 1.1"
    number = promoted.view.number
    joining = plan(promoted, Change(removals=leaves, adopted={0: number, 1: number}, catching_up={0}))
    assert names(joining.view) == "0.2 1.1"
    assert names(plan(joining, Change(removals=leaves, adopted={0: number, 1: number})).view) == "0.2"


def test_of_several_leavers_that_hold_the_state_one_stays_for_those_who_do_not() -> None:
    left = plan(with_learner(1), Change(removals=leaving(0, 2)))
    assert names(left.view) == "0.1 + 1.2"


def test_a_leaver_stays_for_one_that_is_only_suspected() -> None:
    after = plan(formed(2), Change(removals=leaving(1) | doubted(0)))
    assert names(after.view) == "1.1"
    assert names(plan(after, Change(removals=leaving(1) | dead(0))).view) == ""


def test_what_a_life_was_ready_for_does_not_promote_the_next_one() -> None:
    learning = with_learner(1)
    after = plan(learning, Change(ready={1}, arrivals=arrivals(1, life=3)))
    assert names(after.view) == "0.1 2.1 + 1.3"


def test_an_interruption_voids_the_work_of_who_was_leaving() -> None:
    left = plan(formed(3), Change(removals=leaving(1)))
    after = plan(left, Change(removals=dead(0)))
    assert names(after.view) == "2.1"
    assert after.departing == ()


def test_when_all_leave_and_one_of_them_dies_the_others_are_let_go() -> None:
    left = plan(formed(2), Change(removals=leaving(0, 1)))
    assert (names(left.view), len(left.departing)) == ("", 2)
    after = plan(left, Change(removals=dead(0)))
    assert (after.view.number, after.view.planned) == (left.view.number + 1, False)


def test_an_exit_in_order_of_a_later_process_is_no_excuse_for_the_one_that_is_a_member() -> None:
    later = {1: done(1)[1].__class__(**{**done(1)[1].__dict__, "process": 150})}
    assert not plan(formed(3), Change(removals=later)).view.planned


def test_a_lineage_has_as_many_shards_as_its_lowest_member_with_a_wish() -> None:
    assert len(plan(empty(3), Change(arrivals=wishing({0: 0, 1: 4, 2: 8}))).view.shards) == 4
    assert len(plan(empty(3), Change(arrivals=wishing({0: 0, 1: 0, 2: 0}))).view.shards) == 6


def test_a_lineage_keeps_its_number_of_shards_whatever_later_arrivals_wish() -> None:
    membership = plan(empty(2), Change(arrivals=wishing({0: 4, 1: 4})))
    other = Register(replica=1, process=150, rejoin=0, agent="agent", shards=9)
    membership = activated(plan(membership, Change(arrivals={1: other})))
    membership = activated(plan(membership, Change(ready={1})))
    membership = activated(plan(membership, Change(removals=dead(0))))
    assert len(membership.view.shards) == 4
    lost = plan(membership, Change(removals={1: dead(1, life=50)[1]}))
    again = plan(lost, Change(arrivals=wishing({0: 0}) | {1: other}, form_now=True))
    assert (again.view.lineage, len(again.view.shards)) == (1, 0), "these lives are over"
    next_life = {r: Register(replica=r, process=500, rejoin=0, agent="agent", shards=9) for r in (0, 1)}
    assert len(plan(lost, Change(arrivals=next_life)).view.shards) == 9


def test_all_members_lost_and_a_lineage_with_another_number_of_shards_may_come_in_one_change() -> None:
    first = plan(empty(1), Change(arrivals=wishing({0: 4})))
    second = Register(replica=0, process=2, rejoin=0, agent="agent", shards=2)
    again = plan(first, Change(arrivals={0: second}))
    assert (again.view.lineage, again.view.shards) == (2, (0, 0))


def paused(membership: Membership) -> bool:
    return membership.view.paused


def test_with_too_few_members_training_pauses_until_a_promotion() -> None:
    lost = activated(plan(formed(3, least=2), Change(removals=dead(0, 1))))
    assert paused(lost)
    back = activated(plan(lost, Change(arrivals=arrivals(0, life=2))))
    assert paused(back)
    assert back.view.planned
    enough = plan(back, Change(ready={0}))
    assert names(enough.view) == "0.2 2.1"
    assert not paused(enough)
    assert enough.view.planned


def test_a_leaver_may_leave_too_few_behind() -> None:
    left = plan(formed(2, least=2), Change(removals=leaving(1)))
    assert left.view.planned
    assert paused(left)


def test_by_default_one_member_is_enough() -> None:
    assert not paused(plan(formed(3), Change(removals=dead(0, 1))))


def test_those_that_have_finished_do_not_make_the_rest_pause() -> None:
    assert not paused(plan(formed(3, least=2), Change(removals=done(0, 1))))
    one = plan(formed(3, least=3), Change(removals=done(0)))
    assert not paused(one)
    assert paused(plan(one, Change(removals=dead(1))))


def test_the_end_of_one_that_is_no_member_can_end_a_pause() -> None:
    alone = activated(plan(formed(2, least=2), Change(removals=doubted(1))))
    assert paused(alone)
    after = plan(alone, Change(removals=done(1)))
    assert not paused(after)
    assert after.view.number == alone.view.number + 1


def test_the_first_view_waits_for_as_many_as_are_needed_however_long_that_takes() -> None:
    one = plan(empty(3, least=2), Change(arrivals=arrivals(1)))
    assert plan(one, Change(form_now=True)) == one
    two = plan(one, Change(arrivals=arrivals(0)))
    assert two.view.number == 0, "there is still time for the third"
    assert names(plan(two, Change(form_now=True)).view) == "0.1 1.1"


@pytest.mark.parametrize("least", [0, 4, -1])
def test_a_number_of_replicas_that_cannot_be_is_refused(least: int) -> None:
    with pytest.raises(ConfigError, match=r"--min-replicas"):
        JobSpec(name="job", replicas=3, shards=3, min_replicas=least).validate()
