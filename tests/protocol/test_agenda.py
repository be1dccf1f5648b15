"""What the training thread does next, what becomes of what it has done, and when one that waits has waited
long enough."""

from __future__ import annotations

import msgspec
import pytest
from stand_ins import ALL, VIEW, Final, Record, Replica, learners_view, learning, note_of, running

from outlast.errors import LoopError
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, Way, encode
from outlast.protocol.life import Lack
from outlast.protocol.messages import Ended, Evicted, Phase, Report
from outlast.protocol.saving import Save
from outlast.protocol.seams import At, Said
from outlast.protocol.step_words import (
    BLANK,
    AllDone,
    Check,
    EndReached,
    Fork,
    Holding,
    LeftAlone,
    Mode,
    Pin,
)
from outlast.protocol.step_words import GoBack as Back
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.todos import (
    Apply,
    Compute,
    Copy,
    Digest,
    Finished,
    Found,
    Give,
    GoBack,
    JobEnded,
    Keep,
    Leave,
    Load,
    Stage,
    Todo,
)
from outlast.protocol.views import Member, Outcome, View

NEXT = msgspec.structs.replace(VIEW, number=3, planned_since=3)
TIMING = Timing()


def step(replica: Replica) -> Todo | None:
    return replica.driver.next(Stage.STEPPING, replica.now)


def compute(replica: Replica) -> Compute:
    todo = step(replica)
    assert isinstance(todo, Compute)
    return todo


def verifying(replica: int) -> StepCore:
    return StepCore(replica, verifies=True)


# When one that learns has waited long enough.


def learner(newest: int) -> StepCore:
    steps = StepCore(4)
    steps.adopt(learners_view(), in_band=False)
    steps.loaded(newest)
    assert steps.mode is Mode.LEARNING
    return steps


def test_one_that_has_all_that_there_is_lacks_nothing() -> None:
    steps, lack = learner(5), Lack()
    assert lack.lasts_s(steps, 0.0) == 0.0
    steps.offered(6)
    assert steps.newest == 6
    assert lack.lasts_s(steps, 100.0) == 0.0


def test_a_gap_counts_from_when_it_was_seen_and_for_one_record() -> None:
    steps, lack = learner(5), Lack()
    steps.offered(7)
    assert lack.lasts_s(steps, 10.0) == 0.0
    assert lack.lasts_s(steps, 12.0) == 2.0
    steps.offered(6)
    assert steps.newest == 7, "it has come after all"
    assert lack.lasts_s(steps, 13.0) == 0.0
    steps.offered(9)
    assert lack.lasts_s(steps, 14.0) == 0.0
    assert lack.lasts_s(steps, 15.0) == 1.0


def over_after(replica: Replica, since: float, patience_s: float) -> str | None:
    """Why its life is over after that time, and not before."""
    replica.driver.tick(since + patience_s)
    assert replica.driver.life.over is None
    woken = replica.outlet.woken
    replica.driver.tick(since + patience_s + 0.1)
    assert replica.outlet.woken == woken + 1, "it is the training thread that begins another one"
    return replica.driver.life.over


def test_a_record_that_does_not_come_ends_the_life_that_lacks_it() -> None:
    replica = learning(5)
    replica.driver.act(replica.driver.participant.offered(7, 0.0))
    replica.driver.tick(10.0)
    over = over_after(replica, 10.0, TIMING.silent_at_most_s)
    assert over == "the record of step 6, which it lacks, does not come"


def test_a_connection_that_does_not_come_back_ends_the_life_of_who_is_given_records() -> None:
    replica = learning(5)
    replica.now = 10.0
    replica.driver.lost(replica.connections[0], "reset", 10.0)
    assert over_after(replica, 10.0, TIMING.silent_at_most_s) == (
        "a connection over which it was given records broke"
    )


def test_a_state_of_which_nothing_comes_for_long_is_not_waited_for() -> None:
    """A member gives its share at the end of its step, which may be a long one; so it is patient at first."""
    replica = Replica(4)
    replica.adopt(1, learners_view())
    replica.connect(ALL[0])
    assert over_after(replica, 0.0, TIMING.cold_within_s) == "the state that it waits for does not come"


def test_a_state_that_has_begun_to_come_is_waited_for_until_it_is_silent() -> None:
    replica = Replica(4)
    replica.adopt(1, learners_view())
    replica.connect(ALL[0])
    replica.now = 5.0
    replica.hear(ALL[0], Header(Kind.IMAGE, view=1, step=5), b"\x04")
    replica.now = 7.0
    replica.hear(ALL[0], Header(Kind.FOUNDING, view=1))
    over = over_after(replica, 7.0, TIMING.silent_at_most_s)
    assert over == "the state that it waits for does not come"


def test_a_state_that_is_there_is_waited_for_no_more() -> None:
    replica = Replica(4)
    replica.adopt(1, learners_view())
    replica.connect(ALL[0])
    replica.give_state(ALL[0], 5)
    replica.driver.tick(10_000.0)
    assert replica.driver.life.over is None
    replica.load()
    replica.driver.tick(20_000.0)
    assert replica.driver.life.over is None


def test_one_who_founds_waits_for_nobody() -> None:
    replica = Replica(0)
    replica.adopt(1, VIEW)
    for peer in ALL[1:]:
        replica.connect(peer)
        replica.hear_word(peer, Holding(BLANK))
    replica.driver.tick(10_000.0)
    assert replica.driver.life.over is None


# Without a state.


def founding(*, saves: bool = False) -> Replica:
    replica = Replica(0, saves=saves)
    replica.adopt(1, VIEW)
    for peer in ALL[1:]:
        replica.connect(peer)
        replica.hear_word(peer, Holding(BLANK))
    return replica


def start(replica: Replica) -> Todo | None:
    return replica.driver.next(Stage.STARTING, replica.now)


def test_what_a_lineage_begins_with_is_found_and_given() -> None:
    replica = founding(saves=True)
    todo = start(replica)
    assert isinstance(todo, Found) and (todo.view, todo.lineage) == (1, 1)
    assert start(replica) is None, "once"
    replica.driver.founded(todo, 0.0, step=40, view=1)
    assert replica.driver.applied == 40 and replica.outlet.stood == [40] and replica.saves.stood == [40]
    assert replica.steps.mode is Mode.RUNNING
    given = [start(replica), start(replica)]
    assert [one.pin.to for one in given if isinstance(one, Give)] == list(ALL[1:])
    assert all(isinstance(one, Give) and one.at_once for one in given)
    assert isinstance(start(replica), Finished)


@pytest.mark.parametrize(("step", "view"), [(BLANK, 0), (BLANK, 3), (40, 1), (40, 2), (40, 3)])
def test_what_was_found_for_another_view_is_found_anew(step: int, view: int) -> None:
    """In a view between the two another one may have made a claim of its own."""
    replica = founding()
    first = start(replica)
    assert isinstance(first, Found)
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(BLANK), view=3)
    replica.driver.founded(first, 0.0, step=step, view=view)
    if (step, view) == (40, 3):
        assert replica.driver.applied == 40 and not replica.driver.life.founding
        return
    assert replica.driver.applied == BLANK
    again = start(replica)
    assert isinstance(again, Found) and again.view == 3


def test_a_state_of_the_lineage_before_is_forgotten_by_who_begins_another() -> None:
    replica = founding()
    todo = start(replica)
    assert isinstance(todo, Found)
    replica.hear(ALL[1], Header(Kind.IMAGE, view=1, step=5), b"\x04")
    assert replica.driver.life.arrival.assembly is not None
    replica.driver.founded(todo, 0.0, step=40, view=1)
    assert replica.driver.life.arrival.assembly is None and replica.driver.applied == 40


def test_what_is_found_by_who_is_not_to_begin_any_more_is_nothing() -> None:
    replica = founding()
    first = start(replica)
    assert isinstance(first, Found)
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    replica.driver.founded(first, 0.0, step=40, view=3)
    assert replica.driver.applied == BLANK and replica.steps.mode is Mode.LOADING
    assert start(replica) is None


def test_one_who_is_given_the_state_says_that_it_needs_no_other() -> None:
    replica = Replica(4, saves=True)
    replica.adopt(1, learners_view())
    for peer in ALL:
        replica.connect(peer)
    assert start(replica) is None and replica.outlet.phases == [Phase.STARTING]
    replica.give_state(ALL[0], 5)
    replica.load()
    assert replica.outlet.kinds == [(0, Kind.LOADED), (1, Kind.LOADED), (2, Kind.LOADED)]
    assert replica.outlet.stood == [5] and replica.saves.given == [5]
    assert isinstance(start(replica), Finished)


def test_a_state_that_is_void_when_it_is_loaded_does_not_count() -> None:
    replica = Replica(4)
    replica.adopt(1, learners_view())
    replica.connect(ALL[0])
    replica.give_state(ALL[0], 5)
    todo = start(replica)
    assert isinstance(todo, Load)
    replica.driver.life.forget_state(0.0)
    replica.driver.did(todo, 0.0)
    assert replica.driver.applied == BLANK and replica.outlet.stood == []


def test_a_state_that_is_loaded_in_a_life_that_is_over_does_not_count() -> None:
    replica = Replica(4)
    replica.adopt(1, learners_view())
    replica.connect(ALL[0])
    replica.give_state(ALL[0], 5)
    todo = start(replica)
    assert isinstance(todo, Load)
    replica.driver.end_life("it is tried")
    replica.driver.did(todo, 0.0)
    assert replica.driver.applied == BLANK
    assert start(replica) is None and replica.driver.life.over is None
    replica.driver.did(todo, 0.0)
    assert replica.driver.applied == BLANK, "nor in the next one"


# The loop of steps.


def test_a_step_is_computed_contributed_to_and_applied() -> None:
    replica = running()
    todo = compute(replica)
    assert todo.at == At(1, 6) and todo.members == 3 and not todo.afresh and not todo.wary
    assert step(replica) is todo, "until it is done"
    assert replica.outlet.took_part == [1] and replica.outlet.phases[-1] is Phase.COMPUTING
    replica.driver.did(todo, 0.0)
    assert replica.outlet.phases[-1] is Phase.WAITING
    assert [at for at, _ in replica.bulk.contributed] == [At(1, 6)]
    assert step(replica) is None and step(replica) is None
    assert ("scatter", 6) in replica.outlet.passed
    replica.driver.life.records[6] = record = Record(6, bytearray(10))
    apply = step(replica)
    assert isinstance(apply, Apply) and apply.record is record
    replica.driver.did(apply, 0.0)
    assert replica.driver.applied == 6


def test_what_goes_with_a_part_is_asked_for_when_it_is_sent() -> None:
    replica = running(saves=True, copies=True, steps=verifying)
    replica.saves.wishes = 1
    check = Check(checksum=7, buffers=b"b", buffer_entries=b"e")
    replica.driver.did(compute(replica), 0.0, said=Said(check=check))
    [(_, said)] = replica.bulk.contributed
    assert (said.save, said.asked, said.keeps) == (1, ("one",), (5,))
    assert said.check is not None and said.check.due
    assert (said.check.checksum, said.check.buffers, said.check.buffer_entries) == (7, b"b", b"e")


def test_what_was_computed_for_a_view_that_is_over_is_not_contributed() -> None:
    replica = running()
    todo = compute(replica)
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    replica.driver.did(todo, 0.0)
    assert not replica.bulk.contributed
    again = compute(replica)
    assert again is not todo and again.at == At(3, 6)
    replica.driver.did(again, 0.0)
    assert [at for at, _ in replica.bulk.contributed] == [At(3, 6)]


def test_what_was_computed_in_a_life_that_is_over_is_not_contributed() -> None:
    replica = running()
    todo = compute(replica)
    replica.driver.end_life("it is tried")
    replica.driver.did(todo, 0.0)
    assert not replica.bulk.contributed


def test_nothing_is_computed_before_members_have_agreed() -> None:
    replica = running()
    replica.adopt(1, NEXT)
    assert replica.steps.mode is Mode.RECONCILING and step(replica) is None


def test_members_that_have_gone_back_before_look_at_each_buffer() -> None:
    replica = running(copies=True, steps=verifying)
    replica.steps._descent.fork = Fork(1, 3)
    assert compute(replica).wary


def test_one_who_learns_is_ready_when_it_has_shown_that_it_keeps_up() -> None:
    def ready(replica: Replica) -> bool:
        return any(isinstance(message, Report) and message.ready for message in replica.outlet.told)

    replica = learning(5)
    assert step(replica) is None and not ready(replica)
    replica.hear(ALL[0], Header(Kind.NOTE, flags=Way.STABLE, view=1, step=6), encode(note_of()))
    for index, size in enumerate((2, 3, 2, 3)):
        header = Header(Kind.SHARE, flags=Way.STABLE, view=1, step=6, lo=index)
        assert replica.hear(ALL[index % 3], header, bytes(size))
    apply = step(replica)
    assert isinstance(apply, Apply)
    assert not ready(replica)
    replica.driver.did(apply, 0.0)
    assert step(replica) is None and ready(replica)


def test_one_who_learns_from_members_that_pause_is_ready_at_once_and_a_shadow_never_is() -> None:
    for shadow in (False, True):
        replica = Replica(4, shadow=shadow)
        replica.adopt(1, msgspec.structs.replace(learners_view(), paused=True))
        replica.connect(ALL[0])
        replica.give_state(ALL[0], 5)
        replica.load()
        assert step(replica) is None and replica.driver.life.ready != shadow


def test_going_back_comes_before_anything_else_and_is_done_once() -> None:
    replica = running(copies=True, saves=True)
    replica.driver.life.records[6] = Record(6, bytearray(10))
    back = Back(Fork(1, 3), 3)
    replica.driver.act([back])
    assert replica.saves.gone_back == [3] and not replica.driver.life.records
    todo = step(replica)
    assert isinstance(todo, GoBack) and todo.back is back
    replica.driver.did(todo, 0.0)
    assert replica.driver.applied == 3 and replica.driver.life.back is None


def test_going_back_while_it_goes_back_is_done_too() -> None:
    replica = running(copies=True)
    first, second = Back(Fork(1, 3), 3), Back(Fork(2, 2), 2)
    replica.driver.act([first])
    todo = step(replica)
    assert isinstance(todo, GoBack)
    replica.driver.act([second])
    replica.driver.did(todo, 0.0)
    again = step(replica)
    assert isinstance(again, GoBack) and again.back is second


def test_copies_are_made_while_the_model_holds_the_state() -> None:
    replica = running(saves=True, copies=True, steps=verifying)
    learner = Member(9, 1)
    replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(learner,)))
    pin = Pin(learner, 5, (0,))
    replica.driver.act([pin])
    replica.copies.to_copy, replica.saves.keep_at = 5, 5
    give = step(replica)
    assert isinstance(give, Give) and give.pin == pin and give.header.view == 2 and not give.at_once
    digest = step(replica)
    assert isinstance(digest, Digest) and digest.step == 5 and digest.life is replica.driver.life
    keep = step(replica)
    assert isinstance(keep, Keep) and keep.step == 5
    replica.saves.keep_at = BLANK
    replica.saves.to_copy = save = Save(5, 1, 1, (0,))
    copy = step(replica)
    assert isinstance(copy, Copy) and copy.save == save


def test_a_state_that_the_model_does_not_hold_any_more_cannot_be_compared() -> None:
    told = []

    class Steps(StepCore):
        def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[object]:  # type: ignore[override]
            told.append((step, digest))
            return []

    replica = running(copies=True, steps=lambda replica: Steps(replica, verifies=True))
    replica.copies.to_copy = 4
    compute(replica)
    assert told == [(4, b"")]


def test_a_script_that_has_not_begun_gives_its_state_and_copies_nothing() -> None:
    replica = running(saves=True, copies=True)
    replica.copies.to_copy, replica.saves.keep_at = 5, 5
    assert isinstance(start(replica), Finished)
    assert replica.copies.to_copy == 5


# The end.


def close(replica: Replica) -> Todo | None:
    return replica.driver.next(Stage.CLOSING, 0.0)


def test_what_is_left_to_do_in_the_end_is_nobodys_wait_whenever_the_end_is_heard() -> None:
    """Else a storage that is slow at the end of a run looks like members that wait for each other."""
    replica = running(saves=True)
    replica.driver.close(0.0)
    assert close(replica) is None and replica.outlet.phases == [Phase.WAITING]
    replica.saves.idle = False
    replica.driver.act([AllDone()])
    assert close(replica) is None and replica.outlet.phases == [Phase.WAITING, Phase.ASIDE]
    replica.saves.to_copy = Save(5, 1, 1, (0,))
    assert isinstance(close(replica), Copy)
    assert replica.outlet.phases == [Phase.WAITING, Phase.ASIDE, Phase.COMPUTING]
    assert close(replica) is None and replica.outlet.phases[-1] is Phase.ASIDE
    replica.saves.idle = True
    assert isinstance(close(replica), Finished)


def test_an_end_that_is_heard_while_it_is_looked_for_work_is_nobodys_wait() -> None:
    """To contribute nothing may be the last thing that others waited for."""
    replica = running(saves=True)
    replica.saves.idle = False
    replica.driver.close(0.0)
    left = replica.bulk.contribute_nothing

    def contribute_nothing(at: At, said: Said) -> None:
        left(at, said)
        replica.driver.act([AllDone()])

    replica.bulk.contribute_nothing = contribute_nothing  # type: ignore[method-assign]
    assert close(replica) is None
    assert replica.outlet.phases[-1] is Phase.ASIDE


def test_one_who_has_left_the_loop_says_so_once_in_each_view() -> None:
    replica = running(saves=True)
    replica.driver.close(0.0)
    assert close(replica) is None and close(replica) is None
    [(at, said)] = replica.bulk.left
    assert at == At(1, 6) and (said.asked, said.keeps) == (("last",), (5,))
    assert [sent.header.view for sent in replica.outlet.sent if sent.kind is Kind.PART] == [1, 1]
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    assert close(replica) is None
    assert [at for at, _ in replica.bulk.left] == [At(1, 6), At(3, 6)]


def test_one_who_has_left_the_loop_alone_ends_with_an_error() -> None:
    replica = running()
    replica.driver.act([LeftAlone((1, 2))])
    with pytest.raises(LoopError, match="left the loop of steps after step 5, while replica 1 and 2 went on"):
        close(replica)


def test_the_last_state_is_compared_before_it_is_used() -> None:
    replica = running(copies=True, steps=verifying)
    assert replica.driver.next(Stage.ENDING, 0.0) is None
    assert replica.outlet.took_part == [1] and replica.outlet.phases[-1] is Phase.WAITING
    assert replica.copies.done, "it is to be digested"
    replica.driver.act([EndReached(5)])
    assert replica.outlet.phases[-1] is Phase.COMPUTING, "others wait for the thread from here on"
    assert isinstance(replica.driver.next(Stage.ENDING, 0.0), Finished)
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    assert replica.driver.next(Stage.ENDING, 0.0) is None, "and again, in another view"


@pytest.mark.parametrize("final", [False, True])
def test_one_who_learned_the_last_state_goes_on_only_if_it_was_given_as_that(final: bool) -> None:
    """Else it is not asked when members compare theirs, and may have another one."""
    replica = learning(5, copies=True)
    replica.driver.life.final = final
    for stage in (Stage.ENDING, Stage.CLOSING):
        todo = replica.driver.next(stage, 0.0)
        assert isinstance(todo, Finished) == final
        if not final:
            assert replica.driver.applied == BLANK, "another life has begun"
            assert any("may not be what the run ends with" in text for _, text in replica.outlet.noted)


def test_where_nothing_is_compared_one_who_learned_all_is_done() -> None:
    for more in ({}, {"copies": True, "shadow": True}):
        replica = learning(5, **more)
        assert isinstance(replica.driver.next(Stage.ENDING, 0.0), Finished)
        assert isinstance(close(replica), Finished)


def test_a_final_state_is_known_to_be_if_it_was_compared_or_given_as_that() -> None:
    replica = running()
    replica.driver.keep_final(Final(5))
    assert not replica.driver.life.giving.final_is_known
    replica.driver.rest(Final(5), 0.0)
    assert replica.driver.life.giving.final_is_known and replica.driver.resting
    replica.driver.go_on(0.0)
    assert replica.driver.life.giving.final is None and not replica.driver.resting
    learner = learning(5)
    learner.driver.rest(Final(5), 0.0)
    assert not learner.driver.life.giving.final_is_known


def test_what_ends_the_process_comes_before_anything_else() -> None:
    replica = running()
    replica.driver.received(Ended(outcome=Outcome(finished=True, reason="")), 0.0)
    for stage in Stage:
        todo = replica.driver.next(stage, 0.0)
        assert isinstance(todo, JobEnded) and todo.outcome.finished
    assert replica.outlet.phases[-1] is Phase.DONE


def test_one_that_was_let_go_leaves() -> None:
    replica = running()
    replica.driver.leave(0.0)
    assert isinstance(step(replica), Compute), "as long as it is needed it works"
    replica.driver.received(Evicted(replica=0, incarnation=1, reason="it leaves"), 0.0)
    assert isinstance(step(replica), Leave) and replica.outlet.phases[-1] is Phase.DONE


def test_a_life_that_is_over_is_followed_by_another() -> None:
    replica = running()
    view = View(number=2, members=ALL[1:], cause="it was silent", planned_since=2)
    replica.adopt(1, view)
    old = replica.driver.life
    assert old.over is not None and "it was silent" in old.over
    assert step(replica) is None
    assert replica.driver.life is not old and replica.driver.applied == BLANK
