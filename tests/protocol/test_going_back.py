"""Going back: members whose states differ all return to the same verified one, whoever knows of it first."""

import msgspec
from test_steps import view_of

from outlast.protocol.step_words import (
    BLANK,
    NO_FORK,
    Attempt,
    Check,
    Completed,
    Conclude,
    Differ,
    Digest,
    Ending,
    EndReached,
    FeedAgain,
    Fork,
    Found,
    GoBack,
    Holding,
    Lost,
    Mode,
    Part,
    Pin,
    Say,
    Stable,
    StepAction,
    Sum,
    Verdict,
    Verified,
    Want,
    Whole,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.views import Retreat, View

RIGHT, WRONG = b"right", b"wrong"


def at(newest: int, view: View, replica: int = 0) -> StepCore:
    """A member that compares, has done so many steps, and verified the beginning."""
    core = StepCore(replica, verifies=True)
    core.adopt(view, in_band=False)
    for other in core.others:
        core.received(other, Holding(BLANK))
    core.founded(0)
    core.loaded(0)
    core.digested(0, RIGHT)
    for step in range(1, newest + 1):
        complete(core, step, Check(0, RIGHT, 0) if step == 1 else Check(verified=0))
    assert core.verifying is not None and core.verifying.verified == 0
    return core


def complete(core: StepCore, step: int, said: Check | None) -> list[StepAction]:
    """Everybody contributes to this step, and the others say this of their state."""
    actions = core.contribute()
    for other in core.others:
        actions += core.received(other, Part(step, check=said))
    if Conclude(step) not in actions:
        return actions
    core.summed(step)
    return [action for other in core.others for action in core.received(other, Sum(step))]


def choose(core: StepCore, step: int) -> list[StepAction]:
    core.due = True
    actions = complete(core, step, Check(verified=0))
    core.due = False
    return actions


def differ(core: StepCore, step: int) -> list[StepAction]:
    """The state after the step before is compared, and the others have another one than this member."""
    assert Digest(step - 1) in choose(core, step - 1)
    core.digested(step - 1, RIGHT)
    return complete(core, step, Check(step - 1, WRONG, 0))


def test_what_a_record_says_of_the_state_is_the_same_for_all() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    actions = choose(core, 5)
    assert actions[:2] == [Completed(5, Verdict(chosen=True)), Digest(5)]
    core.digested(5, RIGHT)
    actions = complete(core, 6, Check(5, RIGHT, 0))
    verdict = Verdict(verified=5, digest=RIGHT)
    assert actions[:2] == [Completed(6, verdict), Verified(5, kept=True)]


def test_nothing_comes_of_an_attempt_when_states_differ() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    actions = differ(core, 6)
    assert actions[-2:] == [Differ(5, (0,), 0), GoBack(Fork(1, 0), 0)]
    assert (core.mode, core.newest) == (Mode.VOID, 0)
    assert core.received(1, Sum(6)) == []
    assert core.contribute() == []


def test_all_go_on_from_where_they_went_back_to_in_the_next_view() -> None:
    core = at(4, view_of(1, 0, 1))
    differ(core, 6)
    core.adopt(view_of(2, 0, 1), in_band=False)
    assert core.received(1, Holding(0, verified=0, fork=Fork(1, 0))) == [Attempt(1)]
    done = complete(core, 1, Check(0, RIGHT, 0))
    assert done[0] == Completed(1, Verdict(verified=0, digest=RIGHT, fork=Fork(1, 0)))
    assert Stable(1) in complete(core, 2, Check(verified=0)), "steps that are done again become stable again"


def test_nobody_is_accused_of_the_state_that_it_was_given_to_begin_with() -> None:
    """The founder may have been bent when it gave it, and be gone by now (simulator, seed 802082)."""
    view = view_of(1, 0, 1)
    founder = StepCore(0, verifies=True)
    founder.adopt(view, in_band=False)
    founder.received(1, Holding(BLANK))
    founder.founded(0)
    founder.digested(0, RIGHT)
    assert Differ(0, (), 0) in complete(founder, 1, Check(0, WRONG, BLANK))
    given = StepCore(1, verifies=True)
    given.adopt(view_of(1, 0, 1, 2), in_band=False)
    given.received(0, Holding(BLANK))
    given.received(2, Holding(BLANK))
    given.loaded(0, 1)
    given.adopt(view_of(2, 1, 2), in_band=False)
    given.received(2, Holding(0))
    given.digested(0, RIGHT)
    assert Differ(0, (), BLANK) in complete(given, 1, Check(0, WRONG, BLANK))
    for core in (founder, given):
        assert core.verifying is not None
        assert core.verifying.recomputing.verified(0, RIGHT) == []


def test_any_view_will_do_for_one_that_has_gone_back() -> None:
    core = at(4, view_of(1, 0, 1))
    assert core.holds_planned_views
    differ(core, 6)
    assert not core.holds_planned_views


def test_who_has_not_heard_of_it_goes_back_with_the_others() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    core.contribute()
    core.adopt(view_of(2, 0, 1, 2), in_band=False)
    core.received(1, Holding(4, verified=0))
    actions = core.received(2, Holding(0, verified=0, fork=Fork(1, 0)))
    assert actions == [GoBack(Fork(1, 0), 0), Attempt(1)]


def test_one_without_a_copy_is_given_the_state() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    assert core.verifying is not None
    core.verifying.verified = BLANK
    core.adopt(view_of(2, 0, 1, 2), in_band=False)
    core.received(1, Holding(4, verified=0))
    actions = core.received(2, Holding(0, verified=0, fork=Fork(1, 0)))
    assert actions[0] == GoBack(Fork(1, 0), BLANK)
    assert isinstance(actions[1], Pin) and (actions[1].step, actions[1].servers) == (0, (1,))
    assert core.mode is Mode.LOADING
    (lost,) = core.loaded(4, view=1)
    assert isinstance(lost, Lost), "what was given before is of the branch that all have left"


def test_if_nobody_has_a_copy_the_lineage_begins_again() -> None:
    core = at(4, view_of(1, 0, 1))
    assert core.verifying is not None
    core.verifying.verified = BLANK
    core.adopt(view_of(2, 0, 1), in_band=False)
    actions = core.received(1, Holding(BLANK, fork=Fork(1, BLANK)))
    assert actions == [GoBack(Fork(1, BLANK), BLANK), Found()]


def test_the_newest_fork_counts_and_what_was_done_behind_it_stays() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    core.adopt(view_of(3, 0, 1, 2), in_band=False)
    core.received(1, Holding(0, verified=0, fork=Fork(1, 0)))
    actions = core.received(2, Holding(1, verified=0, fork=Fork(1, 0)))
    assert actions == [GoBack(Fork(1, 0), 0), Say((2,), Want(1))]
    taken = core.received(2, Whole(1, Verdict(fork=Fork(1, 0))))
    assert taken == [Completed(1, Verdict(fork=Fork(1, 0))), Attempt(2)]


def test_parts_of_the_second_pass_are_kept_by_one_that_has_not_gone_back_yet() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    core.adopt(view_of(2, 0, 1, 2), in_band=False)
    core.received(1, Holding(0, verified=0, fork=Fork(1, 0)))
    core.received(1, Part(1, check=Check(verified=0)))
    core.received(2, Holding(0, verified=0, fork=Fork(1, 0)))
    core.contribute()
    assert core.received(2, Part(1, check=Check(verified=0))) == [Conclude(1)]


def test_learners_are_told_how_far_back_members_went() -> None:
    core = at(4, view_of(1, 0, 1, learners=(2,)))
    core.has_loaded(core.view.learners[0])
    differ(core, 6)
    core.adopt(view_of(2, 0, 1, learners=(2,)), in_band=False)
    actions = core.received(1, Holding(0, verified=0, fork=Fork(1, 0)))
    assert FeedAgain(1, 0, 0) in actions


def learner(newest: int, loaded_in: int) -> StepCore:
    core = StepCore(5, verifies=True)
    core.adopt(view_of(1, 0, 1, learners=(5,)), in_band=False)
    core.loaded(newest, view=loaded_in)
    return core


def test_a_learner_that_is_given_records_of_two_branches_is_lost() -> None:
    core = learner(7, loaded_in=1)
    (lost,) = core.offered(8, 3, Verdict(fork=Fork(2, 5)))
    assert isinstance(lost, Lost)
    assert core.newest == 7


def test_a_learner_that_began_behind_a_fork_or_before_it_takes_its_records() -> None:
    core = learner(7, loaded_in=3)
    assert core.offered(8, 3, Verdict(fork=Fork(2, 5))) == [Completed(8, Verdict(fork=Fork(2, 5)))]
    (lost,) = core.offered(9, 2, Verdict(fork=NO_FORK))
    assert isinstance(lost, Lost), "a record of the branch that was left"
    core = learner(4, loaded_in=1)
    core.offered(5, 1, Verdict(fork=NO_FORK))
    assert core.offered(6, 3, Verdict(fork=Fork(2, 5))) == [Completed(6, Verdict(fork=Fork(2, 5)))]


# The end.


def test_the_end_is_reached_when_all_have_the_same_state() -> None:
    core = at(4, view_of(1, 0, 1))
    assert core.end() == [Digest(4)]
    mine = Check(4, RIGHT, 0)
    assert core.digested(4, RIGHT) == [Say((1,), Ending(4, mine))]
    assert core.received(1, Ending(4, mine)) == [Verified(4, kept=True), EndReached(4)]
    # Who comes to the end once more in this view has nothing new to say, and is not kept waiting.
    assert core.end() == [EndReached(4)]
    core.closing = True
    assert core.contribute() == [Say((1,), Part(5, closing=True, check=Check(4, RIGHT, 4)))]


def test_all_go_back_if_the_last_states_differ() -> None:
    core = at(4, view_of(1, 0, 1))
    core.end()
    core.digested(4, RIGHT)
    assert core.received(1, Ending(4, Check(4, WRONG, 0))) == [Differ(4, (), 0), GoBack(Fork(1, 0), 0)]


def test_one_that_has_gone_on_or_compares_nothing_is_not_waited_for() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    core.end()
    core.digested(4, RIGHT)
    core.received(1, Part(5, closing=True))
    assert EndReached(4) in core.received(2, Part(5, closing=True, check=Check(4, RIGHT, 4)))


def test_the_end_is_said_again_in_the_next_view() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    core.end()
    core.digested(4, RIGHT)
    core.received(1, Ending(4, Check(4, RIGHT, 0)))
    core.adopt(view_of(2, 0, 1), in_band=False)
    core.received(1, Holding(4, verified=0))
    assert core.end() == [Say((1,), Ending(4, Check(4, RIGHT, 0)))]
    assert EndReached(4) in core.received(1, Ending(4, Check(4, RIGHT, 0)))


def test_one_alone_is_at_its_end_at_once() -> None:
    assert at(4, view_of(1, 0)).end() == [EndReached(4)]


def test_one_that_is_left_alone_goes_back_where_the_view_says_so() -> None:
    core = at(4, view_of(1, 0, 1, 2))
    alone = msgspec.structs.replace(view_of(2, 0), retreat=Retreat(1, 0, since=2))
    assert GoBack(Fork(1, 0), 0) in core.adopt(alone, in_band=False)
    assert core.newest == 0
