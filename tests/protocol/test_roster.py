"""What a change does to the membership: the two rules that keep the state, and everything around them."""

from rosters import activated, adopted_by, arrivals, dead, done, doubted, empty, formed, names, with_learner

from outlast.protocol.messages import GaveUp
from outlast.protocol.roster import Change, Removal, plan
from outlast.protocol.views import Membership, Standing


def standings(membership: Membership) -> dict[int, Standing]:
    return {replica: seat.standing for replica, seat in membership.seats.items()}


def test_the_first_view_forms_as_soon_as_all_are_there() -> None:
    membership = plan(empty(3), Change(arrivals=arrivals(0, 1, 2)))
    assert membership.view.number == 1
    assert membership.view.lineage == 1
    assert names(membership.view) == "0.1 1.1 2.1"
    assert membership.view.cause == "the first view"


def test_until_all_are_there_nobody_trains_and_no_view_is_told() -> None:
    gathering = plan(empty(3), Change(arrivals=arrivals(0, 1)))
    assert gathering.view == empty(3).view
    assert standings(gathering) == {0: Standing.LEARNER, 1: Standing.LEARNER}
    assert names(plan(gathering, Change(arrivals=arrivals(2))).view) == "0.1 1.1 2.1"


def test_after_the_wait_the_first_view_forms_from_those_that_are_there() -> None:
    gathering = plan(empty(3), Change(arrivals=arrivals(0, 2)))
    assert names(plan(gathering, Change(form_now=True)).view) == "0.1 2.1"


def test_the_wait_alone_forms_no_view_of_nobody() -> None:
    assert plan(empty(3), Change(form_now=True)) == empty(3)


def test_one_that_died_before_the_first_view_is_not_counted() -> None:
    gathering = plan(empty(3), Change(arrivals=arrivals(0, 1)))
    without = plan(gathering, Change(arrivals=arrivals(2), removals=dead(1)))
    assert without.view.number == 0
    assert standings(without)[1] is Standing.GONE


def test_the_members_of_a_first_view_are_its_holders_without_further_ado() -> None:
    membership = formed(3)
    assert membership.active == 1
    assert membership.holders == membership.view.members


def test_a_view_hands_out_every_shard_and_every_slice_to_its_members() -> None:
    view = plan(formed(3), Change(removals=dead(1))).view
    assert len(view.shards) == 6
    assert set(view.shards) == set(view.slices) == {0, 2}
    assert len(view.slices) == 2


def test_a_death_removes_exactly_the_dead() -> None:
    after = plan(formed(4), Change(removals=dead(2)))
    assert after.view.number == 2
    assert names(after.view) == "0.1 1.1 3.1"
    assert after.view.cause == "replica 2 was killed"
    assert after.seats[2].standing is Standing.GONE
    assert {r: after.seats[r] for r in (0, 1, 3)} == {r: formed(4).seats[r] for r in (0, 1, 3)}


def test_deaths_at_once_make_one_view_that_names_them_all() -> None:
    after = plan(formed(4), Change(removals=dead(1, 3)))
    assert (after.view.number, names(after.view)) == (2, "0.1 2.1")
    assert "replica 1" in after.view.cause
    assert "replica 3" in after.view.cause


def test_a_death_does_not_change_who_computes_the_shards_of_the_others() -> None:
    before, after = formed(3).view, plan(formed(3), Change(removals=dead(1))).view
    kept = [(old, new) for old, new in zip(before.shards, after.shards, strict=True) if old != 1]
    assert all(old == new for old, new in kept)


def test_an_exit_of_a_process_that_never_registered_is_noted_and_changes_no_view() -> None:
    after = plan(empty(3), Change(removals=dead(1)))
    assert after.view == empty(3).view
    assert after.seats[1].standing is Standing.GONE
    assert not after.seats[1].present


def test_a_new_life_joins_as_a_learner_under_a_new_incarnation() -> None:
    lost = plan(formed(3), Change(removals=dead(1)))
    back = plan(lost, Change(arrivals=arrivals(1, life=2)))
    assert (back.view.number, names(back.view)) == (3, "0.1 2.1 + 1.2")
    assert back.view.shards == lost.view.shards, "a learner computes nothing"
    assert back.view.lineage == 1


def test_a_learner_that_is_ready_is_promoted_and_gets_shards() -> None:
    learning = with_learner(1)
    promoted = plan(learning, Change(ready={1}))
    assert names(promoted.view) == "0.1 1.2 2.1"
    assert promoted.view.number == learning.view.number + 1
    assert 1 in promoted.view.shards


def test_a_new_life_of_a_present_member_takes_its_place_as_a_learner() -> None:
    """The agent's news of the exit may come later than the next life's registration."""
    after = plan(formed(3), Change(arrivals=arrivals(1, life=2)))
    assert names(after.view) == "0.1 2.1 + 1.2"


def test_suspicion_of_an_old_life_does_not_fall_on_the_new_one() -> None:
    after = plan(formed(3), Change(arrivals=arrivals(1, life=2), removals=doubted(1)))
    assert names(after.view) == "0.1 2.1 + 1.2"


def test_a_death_and_the_next_life_of_the_same_replica_make_one_view() -> None:
    after = plan(formed(3), Change(arrivals=arrivals(1, life=2), removals=dead(1)))
    assert (after.view.number, names(after.view)) == (2, "0.1 2.1 + 1.2")


def test_an_evicted_replica_comes_back_in_the_same_process_as_a_new_life() -> None:
    evicted = plan(formed(3), Change(removals=doubted(1)))
    assert evicted.seats[1].standing is Standing.EVICTED
    back = plan(evicted, Change(arrivals=arrivals(1, rejoin=1)))
    assert names(back.view) == "0.1 2.1 + 1.2"


def test_suspicion_removes_a_member_while_another_holds_the_state() -> None:
    after = plan(formed(3), Change(removals=doubted(0, 2)))
    assert names(after.view) == "1.1"
    assert after.seats[0].standing is Standing.EVICTED


def test_suspicion_of_all_removes_nobody() -> None:
    assert plan(formed(3), Change(removals=doubted(0, 1, 2))) == formed(3)


def test_suspicion_never_removes_the_last_holder() -> None:
    alone = activated(plan(formed(3), Change(removals=dead(0, 1))))
    assert plan(alone, Change(removals=doubted(2))) == alone


def test_suspicion_never_removes_the_last_holder_even_if_a_newly_promoted_member_is_there() -> None:
    """Nobody has adopted the view with the promoted one yet: it may not have all of the state."""
    alone = activated(plan(formed(2), Change(removals=dead(0), arrivals=arrivals(0, life=2))))
    promoted = plan(alone, Change(ready={0}))
    assert names(promoted.view) == "0.2 1.1"
    assert names(plan(promoted, Change(removals=doubted(1))).view) == "0.2 1.1"
    # Not even when that view is in force: the promoted one may still lack a few records.
    joining = plan(promoted, Change(adopted={0: 3, 1: 3}, catching_up={0}))
    assert (joining.view.number, joining.active) == (3, 3)
    assert names(plan(joining, Change(removals=doubted(1))).view) == "0.2 1.1"
    # Once it has caught up, both of them hold the state, and one may go.
    adopted = plan(joining, adopted_by(joining, 0, 1))
    assert names(plan(adopted, Change(removals=doubted(1))).view) == "0.2"


def test_a_death_beside_suspicions_does_not_let_suspicion_remove_the_last() -> None:
    after = plan(formed(3), Change(removals=dead(0) | doubted(1, 2)))
    assert names(after.view) == "1.1 2.1"


def test_proof_of_death_removes_even_the_last_holder() -> None:
    alone = activated(plan(formed(3), Change(removals=dead(0, 1))))
    after = plan(alone, Change(removals=dead(2)))
    assert names(after.view) == ""
    assert after.view.number == alone.view.number + 1


def test_when_every_holder_is_proven_dead_the_one_promoted_beside_them_takes_over() -> None:
    alone = activated(plan(formed(2), Change(removals=dead(0), arrivals=arrivals(0, life=2))))
    promoted = plan(alone, Change(ready={0}))
    after = plan(promoted, Change(removals=dead(1)))
    assert names(after.view) == "0.2"
    assert after.view.lineage == 1
    assert [holder.replica for holder in after.holders] == [0]
    assert plan(after, Change(removals=doubted(0, life=2))) == after, "it is the last holder now"
    both_at_once = plan(promoted, Change(removals=dead(1) | doubted(0, life=2)))
    assert names(both_at_once.view) == "0.2"


def test_the_next_life_of_a_holder_is_no_holder() -> None:
    """Replica 1 is back and promoted, but nobody who holds the state has adopted any view since."""
    back = plan(formed(2), Change(arrivals=arrivals(1, life=2)))
    promoted = plan(back, Change(ready={1}))
    assert names(promoted.view) == "0.1 1.2"
    assert plan(promoted, Change(removals=doubted(0))) == promoted


def test_after_total_loss_nobody_is_promoted_to_learn_from_nobody() -> None:
    lost = plan(with_learner(1), Change(removals=dead(0, 2)))
    assert names(lost.view) == " + 1.2"
    assert names(plan(lost, Change(ready={1})).view) == " + 1.2"


def test_after_total_loss_a_new_lineage_begins_once_all_are_back() -> None:
    lost = plan(formed(3), Change(removals=dead(0, 1, 2)))
    two = plan(lost, Change(arrivals=arrivals(0, 1, life=2)))
    assert two.view == lost.view
    again = plan(two, Change(arrivals=arrivals(2, life=2)))
    assert names(again.view) == "0.2 1.2 2.2"
    assert again.view.lineage == 2
    assert again.view.number == lost.view.number + 1
    assert "new lineage" in again.view.cause
    assert again.active == again.view.number
    assert again.holders == again.view.members


def test_after_total_loss_a_new_lineage_begins_without_the_missing_after_the_wait() -> None:
    lost = plan(formed(3), Change(removals=dead(0, 1, 2)))
    again = plan(plan(lost, Change(arrivals=arrivals(2, life=2))), Change(form_now=True))
    assert (names(again.view), again.view.lineage) == ("2.2", 2)


def test_learners_with_the_final_state_go_on_where_no_member_is_left() -> None:
    learning = with_learner(1)
    after = plan(learning, Change(removals=dead(0, 2), final={1}, holding={1}))
    assert (names(after.view), after.view.lineage) == ("1.2", 1)
    assert not after.view.planned and after.view.void_before == learning.view.void_before
    assert [holder.replica for holder in after.holders] == [1]
    assert after.view.cause.endswith("replica 1 has the final state")


def test_a_learner_with_the_final_state_stays_one_while_a_member_lives() -> None:
    learning = with_learner(1)
    assert plan(learning, Change(final={1}, holding={1})).view == learning.view
    after = plan(learning, Change(removals=dead(0), final={1}, holding={1}))
    assert names(after.view) == "2.1 + 1.2"


def test_a_life_that_has_just_come_does_not_have_the_final_state_of_the_one_before() -> None:
    change = Change(removals=dead(0, 2), arrivals=arrivals(1, life=3), final={1}, holding={1})
    assert names(plan(with_learner(1), change).view) == " + 1.3"


def test_a_lineage_goes_on_while_one_member_lives() -> None:
    membership = formed(3)
    for lost in (0, 1):
        membership = activated(plan(membership, Change(removals=dead(lost))))
    for life in range(2, 5):
        joined = activated(plan(membership, Change(arrivals=arrivals(0, life=life))))
        membership = activated(plan(joined, Change(ready={0})))
    assert membership.view.lineage == 1
    assert names(membership.view) == "0.4 2.1"


def test_a_view_is_active_once_a_holder_has_adopted_it() -> None:
    after = plan(formed(3), Change(removals=dead(2)))
    assert after.active == 1
    assert [holder.replica for holder in after.holders] == [0, 1, 2]
    adopted = plan(after, adopted_by(after, 1))
    assert adopted.active == 2
    assert adopted.holders == after.view.members
    assert adopted.view == after.view


def test_adoption_by_one_that_does_not_hold_the_state_activates_nothing() -> None:
    promoted = plan(with_learner(1), Change(ready={1}))
    assert plan(promoted, adopted_by(promoted, 1)) == promoted


def test_adoption_counts_before_the_suspicions_that_came_with_it() -> None:
    promoted = plan(with_learner(1), Change(ready={1}))
    adopted = dict.fromkeys((0, 1), promoted.view.number)
    after = plan(promoted, Change(adopted=adopted, removals=doubted(0, 2)))
    assert names(after.view) == "1.2"


def test_a_view_number_grows_only_when_the_membership_changes() -> None:
    membership = formed(3)
    unchanged = [Change(), Change(adopted={0: 1}), Change(ready={0}), Change(form_now=True)]
    for change in unchanged:
        assert plan(membership, change) == membership


def test_a_removal_that_is_agreed_already_changes_nothing_more() -> None:
    once = plan(formed(3), Change(removals=dead(2)))
    assert plan(once, Change(removals=dead(2))) == once


def test_proof_that_an_evicted_replica_has_exited_moves_its_seat_but_not_the_view() -> None:
    evicted = plan(formed(3), Change(removals=doubted(2)))
    gone = plan(evicted, Change(removals=dead(2)))
    assert gone.view == evicted.view
    assert gone.seats[2].standing is Standing.GONE


def test_every_change_of_membership_counts_one_further() -> None:
    membership, numbers = formed(3), [1]
    for life in range(2, 6):
        steps = (
            Change(removals=dead(1, life=life - 1)),
            Change(arrivals=arrivals(1, life=life)),
            Change(ready={1}),
        )
        for change in steps:
            membership = activated(plan(membership, change))
            numbers.append(membership.view.number)
    assert numbers == list(range(1, 14))


def test_causes_are_bounded_however_much_happened() -> None:
    talkative = {
        0: Removal(process=1, standing=Standing.GONE, cause="replica 0 " + "died " * 1000, proven=True)
    }
    assert len(plan(formed(3), Change(removals=talkative)).view.cause) <= 500


def test_the_job_is_done_when_all_have_finished() -> None:
    after = plan(formed(3), Change(removals=done(0, 1, 2)))
    assert after.outcome is not None
    assert after.outcome.finished


def test_the_job_is_not_done_while_a_member_works() -> None:
    after = plan(formed(3), Change(removals=done(0, 1)))
    assert after.outcome is None
    assert names(after.view) == "2.1"


def test_the_job_is_done_when_the_chief_has_finished_and_all_others_only_stay() -> None:
    closed = plan(formed(3), Change(removals=done(0), staying={1}))
    assert closed.outcome is None, "replica 2 is still in its script"
    after = plan(closed, Change(staying={1, 2}))
    assert after.outcome is not None
    assert after.outcome.finished
    at_once = plan(formed(3), Change(removals=done(0), staying={1, 2})).outcome
    assert at_once is not None and at_once.finished


def test_the_job_is_not_done_without_its_chief() -> None:
    waiting = plan(formed(3), Change(removals=dead(0), staying={1, 2}))
    assert waiting.outcome is None
    others = plan(waiting, Change(removals=done(1, 2)))
    assert others.outcome is None, "what the chief had to do is not done"
    again = plan(others, Change(arrivals=arrivals(0, life=2), form_now=True))
    assert names(again.view) == "0.2", (
        "nobody has the state any more: it begins anew, from the last checkpoint"
    )


def test_a_chief_whose_agent_has_left_is_adopted_by_another() -> None:
    gone = plan(formed(2), Change(removals=dead(0), left={"agent-0"}, guardians=["agent-0", "agent-1"]))
    assert (gone.left, gone.adopted) == (("agent-0",), {}), "nobody waits for it, as far as is known"
    adopted = plan(gone, Change(staying={1}, chief=0, guardians=["agent-1"]))
    assert adopted.adopted == {0: "agent-1"}
    assert plan(adopted, Change(staying={1}, chief=0, guardians=["agent-1"])) == adopted


def test_a_chief_whose_agent_is_there_is_left_to_it() -> None:
    gone = plan(formed(2), Change(removals=dead(0)))
    waiting = plan(gone, Change(staying={1}, chief=0, guardians=["agent-0", "agent-1"]))
    assert waiting.adopted == {}


def test_when_the_chief_has_finished_deaths_of_the_others_do_not_begin_it_all_again() -> None:
    last = plan(formed(3), Change(removals=done(0, 1)))
    after = plan(last, Change(removals=dead(2), arrivals=arrivals(2, life=2), form_now=True))
    assert after.outcome is not None
    assert after.outcome.finished
    assert after.view.lineage == 1


def test_a_job_that_nobody_joins_has_not_finished() -> None:
    some = plan(empty(2), Change(removals=done(0)))
    assert some.outcome is None
    outcome = plan(some, Change(removals=done(1))).outcome
    assert outcome is not None
    assert not outcome.finished
    assert "no replica called outlast.join" in outcome.reason


def test_deaths_of_all_are_no_outcome() -> None:
    after = plan(formed(3), Change(removals=dead(0, 1, 2)))
    assert after.outcome is None


def test_one_that_gave_up_ends_the_job_with_its_last_words() -> None:
    gave_up = GaveUp(
        replica=1, reason="replica 1 exited with status 1, 5 times in a row", last_words="NameError: x"
    )
    outcome = plan(formed(3), Change(gave_up=gave_up)).outcome
    assert outcome is not None
    assert not outcome.finished
    assert (outcome.replica, outcome.reason, outcome.last_words) == (1, gave_up.reason, "NameError: x")


def test_nothing_changes_after_the_end() -> None:
    over = plan(formed(3), Change(removals=done(0, 1, 2)))
    late = Change(
        arrivals=arrivals(0, life=2),
        removals=dead(1),
        ready={0},
        form_now=True,
        gave_up=GaveUp(replica=1, reason="late", last_words=""),
    )
    assert plan(over, late) == over


def test_a_process_that_registered_and_died_before_the_commit_is_not_admitted() -> None:
    lost = plan(formed(3), Change(removals=dead(1)))
    after = plan(lost, Change(arrivals=arrivals(1, life=2), removals=dead(1, life=2)))
    assert after.view == lost.view


def test_a_job_that_formed_without_a_missing_replica_can_finish() -> None:
    two = plan(plan(empty(3), Change(arrivals=arrivals(0, 1))), Change(form_now=True))
    after = plan(two, Change(removals=done(0, 1)))
    assert after.outcome is not None
    assert after.outcome.finished


def test_a_clean_exit_before_the_first_view_is_not_the_end_of_everybody() -> None:
    early = plan(empty(3), Change(removals=done(0)))
    after = plan(early, Change(arrivals=arrivals(1, 2)))
    assert after.outcome is None
    assert [member.replica for member in after.view.members] == [1, 2]


def test_what_learners_were_given_is_void_where_no_member_is_known_to_have_anything() -> None:
    learning = with_learner(2)
    others = {0, 1}
    one_left = plan(learning, Change(removals=dead(0), holding=others))
    assert one_left.view.void_before == learning.view.void_before, "replica 1 has the state"
    # Replica 0 had just begun the lineage, and the others have heard nothing of that state yet.
    begun = plan(learning, Change(removals=dead(0), holding={0}))
    assert begun.view.void_before == begun.view.number
    more = plan(begun, Change(arrivals=arrivals(0, life=2)))
    assert more.view.planned and more.view.void_before == begun.view.number, "nobody is interrupted by it"


def test_one_who_has_caught_up_saves_what_those_had_who_die() -> None:
    learning = with_learner(2)
    after = plan(learning, Change(removals=dead(0), ready={2}, holding={0, 2}))
    assert after.view.member(2) is not None
    assert after.view.void_before == learning.view.void_before


def test_a_new_lineage_goes_on_from_what_a_learner_has_if_one_has_anything() -> None:
    learning = with_learner(2)
    nobody = plan(learning, Change(removals=dead(0, 1), holding={0, 1, 2}))
    assert nobody.view.members == () and nobody.view.void_before == learning.view.void_before
    for holding in ({2}, set[int]()):
        second = plan(nobody, Change(arrivals=arrivals(0, 1, life=2), holding=holding))
        assert second.view.lineage == 2
        assert second.view.void_before == (learning.view.void_before if holding else second.view.number)


def test_what_was_held_against_a_life_is_not_held_against_the_next_one_of_its_process() -> None:
    """It was stopped, came to, gave that life up, and registers anew (simulator, seed 21221)."""
    both = plan(formed(3), Change(arrivals=arrivals(1, rejoin=1), removals=doubted(1)))
    learner = both.view.learner(1)
    assert learner is not None and learner.incarnation == 2
    assert both.view.member(1) is None, "its life before is over"


def test_a_standstill_is_told_only_where_nothing_else_explains_it() -> None:
    """Where somebody has died, that is what all waited for: a view without it, which was long in coming."""
    still = plan(formed(3), Change(standstill="all wait")).view
    assert still.renews and still.number == still.planned_since and still.cause == "all wait"
    bereaved = plan(formed(3), Change(removals=dead(1), standstill="all wait")).view
    assert names(bereaved) == "0.1 2.1" and bereaved.cause == "replica 1 was killed"
    assert not bereaved.renews
