"""Of which branch a state is: what follows upon it, and what does not."""

from outlast.protocol.descent import Descent
from outlast.protocol.step_words import NO_FORK, Fork
from outlast.protocol.views import Retreat, View


def descent(fork: Fork, given_in: int = 0) -> Descent:
    found = Descent()
    found.fork, found.given_in = fork, given_in
    return found


def test_a_record_of_the_own_branch_follows() -> None:
    assert descent(Fork(3, 5)).follow(9, Fork(3, 5))


def test_a_record_from_before_the_fork_follows_up_to_the_step_where_the_run_went_back() -> None:
    one = descent(Fork(3, 5))
    assert one.follow(5, NO_FORK)
    assert not one.follow(6, NO_FORK)
    assert one.fork == Fork(3, 5)


def test_a_record_behind_a_newer_fork_follows_a_state_that_is_not_past_it() -> None:
    one = descent(NO_FORK)
    assert one.follow(6, Fork(3, 5))
    assert one.fork == Fork(3, 5), "it is on that branch now"


def test_a_state_that_is_past_a_newer_fork_is_of_the_branch_that_was_left() -> None:
    assert not descent(NO_FORK, given_in=3).follow(7, Fork(3, 5))
    assert descent(NO_FORK, given_in=4).follow(7, Fork(3, 5)), "unless it was given after members went back"


def test_a_state_that_was_pinned_before_members_went_back_is_void_past_the_fork() -> None:
    one = descent(Fork(3, 5))
    assert one.has_left(6, 3) and one.has_left(6, 2)
    assert one.has_left(5, 3), "a state is given as it is, and not as it was when it was compared"
    assert not one.has_left(4, 3)
    assert not one.has_left(6, 4)
    assert not one.has_left(6, None)


def test_a_state_may_be_older_than_what_members_began_with() -> None:
    assert descent(NO_FORK, given_in=3).is_older_than_beginning(View(number=5, void_before=4))
    assert not descent(NO_FORK, given_in=4).is_older_than_beginning(View(number=5, void_before=4))


def test_a_state_that_was_given_since_all_know_of_the_fork_is_of_the_branch_behind_it() -> None:
    view = View(number=6, retreat=Retreat(3, 5, since=5))
    late, early = descent(NO_FORK, given_in=5), descent(NO_FORK, given_in=4)
    late.adopt(view)
    early.adopt(view)
    assert (late.fork, early.fork) == (Fork(3, 5), NO_FORK)


def test_a_view_does_not_call_anybody_back_to_an_older_fork() -> None:
    one = descent(Fork(7, 8), given_in=9)
    one.adopt(View(number=10, retreat=Retreat(3, 5, since=5)))
    assert one.fork == Fork(7, 8)


def test_a_state_that_was_given_after_the_very_step_that_members_went_back_to_is_not_trusted() -> None:
    """Whoever gave it may have had that bit flipped since it was compared (simulator, seed 2812)."""
    one = descent(NO_FORK, given_in=3)
    one.given_step = 5
    assert not one.follow(6, Fork(3, 5))
    one.given_step = 4
    assert one.follow(6, Fork(3, 5))
