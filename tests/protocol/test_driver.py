"""Carrying out what the cores decide: in one order, each action in its view; whose fault an error is; and
that nothing of what is over counts: a life, an attempt, a save."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from stand_ins import ALL, VIEW, Record, Replica, learners_view, learning, note_of, running

from outlast.errors import DivergedError
from outlast.protocol import events, saving, todos
from outlast.protocol.deeds import RETURNS_MOST, STRAYS_MOST
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, Way, encode
from outlast.protocol.member import JobOver, MayBegin, Tell
from outlast.protocol.messages import Ask, Ended, Evicted, Fetch, Phase, Report, Status, ViewNews
from outlast.protocol.participant import Action
from outlast.protocol.saving import Save, Stripe, Unable
from outlast.protocol.seams import (
    At,
    Committed,
    Decided,
    Described,
    Digested,
    Done,
    Gave,
    GaveUp,
    Sealed,
    Worked,
    Written,
)
from outlast.protocol.step_words import (
    BLANK,
    AllDone,
    Attempt,
    Completed,
    Conclude,
    Differ,
    Feed,
    Fork,
    Found,
    GoBack,
    Holding,
    Judge,
    LeftAlone,
    Lost,
    Mode,
    Part,
    Pin,
    Stable,
    Sum,
    Survey,
    Trial,
    Verified,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.todos import Compute, Give, JobEnded, Leave, Load, Stage
from outlast.protocol.views import Charge, Foundation, Intent, Member, Outcome, View

WITHOUT_2 = View(
    number=2, lineage=1, members=ALL[:2], shards=(0, 1, 1), slices=(0, 1), planned_since=1, cause="2 leaves"
)
NEXT = msgspec.structs.replace(VIEW, number=3, planned_since=3)
HERE = At(1, 6)


def part_way(replica: Replica) -> Replica:
    """All parts of step 6 are in, and it is being reduced."""
    todo = replica.driver.next(Stage.STEPPING, 0.0)
    assert isinstance(todo, Compute)
    replica.driver.did(todo, 0.0)
    for peer in ALL[1:]:
        replica.hear_word(peer, Part(6))
    return replica


def reports(replica: Replica) -> list[Report]:
    return [message for message in replica.outlet.told if isinstance(message, Report)]


# What is written down.


def test_nothing_that_is_fed_leaves_before_it_is_written_down() -> None:
    learner = Member(9, 1)
    replica = running(saves=True)
    replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(learner,)))
    replica.connect(learner)
    replica.outlet.sent.clear()
    replica.outlet.ledger = []
    life = replica.driver.life
    save = Save(5, 1, 2, (0, 1, 2))
    replica.driver.participant.saves.save = save
    for step in (4, 5):
        life.records[step] = Record(step, bytearray(10))
        replica.driver.act([Stable(step), Feed(step)])
    replica.driver.act([saving.Intend(save, {})])
    assert not replica.outlet.sent and not replica.saves.done
    first, second = replica.outlet.ledger
    replica.driver.done(first, 0.0)
    assert {sent.header.step for sent in replica.outlet.sent} == {4}, "the other one is still to be written"
    assert not replica.saves.done
    replica.driver.done(second, 0.0)
    fed = [sent.header.step for sent in replica.outlet.sent if sent.kind is Kind.NOTE]
    assert fed == [4, 5] and {sent.to for sent in replica.outlet.sent} == {9}
    assert replica.saves.done == [saving.Intend(save, {})]


def test_members_do_not_wait_for_the_ledger() -> None:
    replica = running()
    replica.outlet.ledger = []
    replica.driver.life.records[5] = Record(5, bytearray(10))
    replica.driver.act([Stable(5), Feed(5)])
    replica.driver.life.post.send(ALL[1], replica.driver.header(Kind.LOADED))
    assert [sent.to for sent in replica.outlet.sent] == [1]


# One queue.


def test_a_send_that_fails_in_the_middle_does_not_change_the_view_under_the_rest() -> None:
    """Members of a planned view follow it at once where one who leaves with it is gone; but contributions
    that are on their way out are those of the view before."""
    replica = running()
    driver, outlet = replica.driver, replica.outlet
    driver.received(ViewNews(view=WITHOUT_2), 0.0)
    assert driver.view == VIEW
    outlet.broken.add(2)
    todo = driver.next(Stage.STEPPING, 0.0)
    assert isinstance(todo, Compute)
    driver.did(todo, 0.0)
    assert replica.bulk.shipped == [(2, 1), (1, 1)], "the first of them found that the connection is broken"
    scattered = [sent.header.view for sent in outlet.sent if sent.kind is Kind.SCATTER]
    assert scattered == [1] and (1, Kind.PART) in outlet.kinds
    assert driver.view == WITHOUT_2 and driver.failure is None
    assert [sent.header.view for sent in outlet.sent if sent.kind is Kind.HOLDING] == [2]
    assert outlet.views[-1] == 2


def test_a_part_of_a_contribution_that_fails_does_not_change_the_view_under_the_next() -> None:
    replica = running()
    driver = replica.driver
    driver.received(ViewNews(view=WITHOUT_2), 0.0)
    replica.outlet.broken.add(2)
    todo = driver.next(Stage.STEPPING, 0.0)
    assert isinstance(todo, Compute)

    def ship() -> None:
        for to in (2, 1):
            replica.bulk.ship(to, todo.at)

    driver.bucket(todo.at, ship)
    assert replica.bulk.shipped == [(2, 1), (1, 1)]
    assert driver.view == WITHOUT_2
    driver.bucket(todo.at, lambda: pytest.fail("the attempt that it was for is void"))
    driver.did(todo, 0.0)
    assert not replica.bulk.contributed, "and so is the rest of it"


def test_what_follows_from_an_action_comes_after_all_that_was_decided_before() -> None:
    replica = running()
    done: list[Action] = []
    replica.driver.watch = lambda _, action: done.append(action)
    replica.driver.life.records[5] = Record(5, bytearray(10))
    replica.outlet.on_stable = lambda: replica.driver.tell(0.0)
    replica.driver.act([Stable(5), Feed(5), Attempt(6)])
    assert [type(action) for action in done] == [Stable, Feed, Attempt, Tell]


def test_what_follows_from_an_action_waits_until_that_is_carried_out() -> None:
    """Adopting a view has many parts, and one of them may bring about an event."""
    replica = running(saves=True)
    order: list[str] = []
    replica.saves.adopt = lambda view: replica.driver.tell(0.0)  # type: ignore[method-assign]
    replica.outlet.tell = lambda message: order.append(type(message).__name__)  # type: ignore[method-assign]
    replica.outlet.adopted = lambda view: order.append("adopted")  # type: ignore[method-assign]
    replica.driver.received(ViewNews(view=NEXT), 0.0)
    assert order == ["adopted", "Report", "Report"]


def test_work_that_is_done_at_once_is_an_event_like_any_other() -> None:
    replica = running()
    replica.bulk.works = Worked
    part_way(replica)
    assert replica.bulk.started == [(Conclude, HERE)]
    assert [kind for kind in replica.outlet.kinds if kind[1] is Kind.SUM] == [(1, Kind.SUM), (2, Kind.SUM)]
    assert ("gather", 6) in replica.outlet.passed
    for peer in ALL[1:]:
        replica.hear_word(peer, Sum(6))
    assert replica.steps.newest == 6 and replica.outlet.done == [(6, True)]


def test_the_training_thread_is_woken_once_for_all_that_is_done() -> None:
    replica = running()
    before = replica.outlet.woken
    replica.driver.act([Attempt(6), LeftAlone((1,)), AllDone(), Found()])
    assert replica.outlet.woken == before + 1
    replica.driver.act([Stable(5), Feed(5), Tell(Fetch())])
    assert replica.outlet.woken == before + 1, "there is nothing in it for that thread"
    replica.driver.act([])
    assert replica.outlet.woken == before + 1


def test_the_training_thread_is_woken_when_all_is_done_and_not_before() -> None:
    replica = running()
    seen: list[bool] = []
    replica.outlet.wake = lambda: seen.append(replica.driver.life.founding)  # type: ignore[method-assign]
    replica.driver.act([Attempt(6), Found()])
    assert seen == [True]


# Whose fault it is.


def test_what_cannot_be_taken_costs_its_sender_the_connection_and_nobody_else_anything() -> None:
    replica = running()
    replica.bulk.refuses = True
    replica.hear_word(ALL[1], Part(6))
    assert replica.outlet.dropped == [replica.connections[1]] and replica.driver.failure is None
    assert replica.broken == {1}
    assert reports(replica)[-1].torn == (1,)
    replica.driver.lost(replica.connections[1], "it was dropped", 0.0)
    assert reports(replica)[-1].unreachable == (1,)


def test_nothing_comes_of_an_attempt_with_something_that_could_not_be_taken() -> None:
    replica = running()
    works: list[Survey | Conclude | Judge] = [Survey(6), Conclude(6), Judge(6)]
    replica.driver.act(works)
    assert replica.bulk.started == [(type(work), HERE) for work in works], "all is well"
    replica.bulk.started.clear()
    replica.bulk.refuses = True
    replica.hear_word(ALL[1], Part(6))
    replica.driver.act(works)
    assert not replica.bulk.started, "the step waits for the next view"
    replica.adopt(1, NEXT)
    replica.driver.act([Conclude(6)])
    assert replica.bulk.started == [(Conclude, At(3, 6))]


def test_no_work_begins_for_a_view_that_the_cores_have_left() -> None:
    replica = running()
    replica.steps.view = NEXT
    replica.driver.act([Survey(6), Conclude(6), Judge(6)])
    assert not replica.bulk.started


def test_an_error_of_ours_is_nobody_elses() -> None:
    """Whoever's frame was being served when it came to light keeps its connection; and the training thread
    ends with it."""
    replica = running()
    replica.bulk.fails = RuntimeError("all parts are in, but")
    part_way(replica)
    assert replica.outlet.dropped == [] and not replica.broken
    with pytest.raises(RuntimeError, match="all parts are in, but"):
        replica.driver.next(Stage.STEPPING, 0.0)


def test_nothing_is_done_after_an_error_of_ours() -> None:
    replica = running()
    replica.bulk.fails = RuntimeError()
    woken = replica.outlet.woken
    replica.driver.act([Conclude(6), Found()])
    assert not replica.driver.life.founding and replica.outlet.woken > woken
    replica.driver.act([Found()])
    assert not replica.driver.life.founding


def test_an_error_of_a_core_is_ours_and_known_to_who_has_brought_the_event() -> None:
    replica = running()
    replica.driver.participant.tell = lambda now: [][0]  # type: ignore[method-assign]
    with pytest.raises(IndexError):
        replica.driver.tell(0.0)
    with pytest.raises(IndexError):
        replica.driver.next(Stage.STEPPING, 0.0)


def test_who_goes_back_again_and_again_ends_with_an_error() -> None:
    replica = running(copies=True)
    back = GoBack(Fork(1, 5), 5)
    replica.driver.act([Differ(6, (), 5)])
    replica.driver.act([back] * RETURNS_MOST)
    assert replica.driver.failure is None
    replica.driver.act([Verified(5, kept=True)])
    replica.driver.act([back] * RETURNS_MOST)
    assert replica.driver.failure is None, "a state was verified in between"
    replica.driver.act([back])
    with pytest.raises(DivergedError, match=r"again and again after step 5 \(the last time in bias\)"):
        replica.driver.next(Stage.STEPPING, 0.0)


def test_one_that_goes_astray_life_after_life_ends_with_an_error() -> None:
    learner = learning(copies=True)
    astray = Lost("another state", Differ(6, (4,), 5))
    for life in range(2, STRAYS_MOST + 1):
        learner.driver.act([astray])
        assert learner.driver.failure is None
        assert learner.driver.next(Stage.STEPPING, 0.0) is None
        learner.adopt(life, learners_view(life, life))
    learner.driver.act([astray])
    with pytest.raises(DivergedError, match=f"replica 4 went astray {STRAYS_MOST} times"):
        learner.driver.next(Stage.STEPPING, 0.0)


# Connections.


def test_a_gap_is_told_until_an_era_ends_also_through_planned_views() -> None:
    replica = running()
    driver, member = replica.driver, replica.driver.member
    driver.lost(replica.connections[1], "reset", 0.0)
    assert member.unreachable == {1}
    replica.connect(ALL[1])
    assert member.torn == {1} and not member.unreachable
    replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(Member(4, 1),)))
    assert driver.view.number == 2 and member.torn == {1}
    driver.received(ViewNews(view=NEXT), 0.0)
    assert driver.view.number == 3
    assert not replica.broken and not member.torn


def test_a_gap_in_the_next_era_too_is_told_again() -> None:
    """The cores forget with the era what they were told of the one before."""
    replica = running()
    driver = replica.driver
    driver.lost(replica.connections[1], "reset", 0.0)
    replica.connect(ALL[1])
    replica.hear(ALL[1], Header(Kind.GAP, view=3))
    driver.received(ViewNews(view=NEXT), 0.0)
    assert driver.view.number == 3 and replica.broken == {1}
    assert driver.member.torn == {1}


def test_one_that_cannot_be_reached_two_windows_after_a_view_began_is_lost() -> None:
    replica = Replica(0)
    replica.adopt(1, VIEW)
    replica.connect(ALL[1])
    soon = Timing().detect_within_s
    replica.driver.tick(soon)
    assert not replica.broken
    replica.driver.tick(soon + 2 * Timing().detect_within_s)
    assert replica.broken == {2}


def test_a_learner_waits_for_members_that_are_in_the_middle_of_a_long_step() -> None:
    replica = Replica(4)
    replica.adopt(1, learners_view())
    replica.driver.tick(100.0)
    assert not replica.broken and replica.driver.life.over is None


def test_the_connections_of_a_life_that_is_over_are_not_missed_in_the_next_one() -> None:
    """A learner that was cut off from a member begins anew, so it must not believe so for no reason."""
    learner = learning()
    old = learner.connections[0]
    learner.driver.end_life("it lacks something, say")
    assert learner.driver.next(Stage.STEPPING, 0.0) is None
    learner.adopt(2, learners_view(2, 2))
    learner.driver.lost(old, "it is of an old life", 0.0)
    learner.connect(ALL[0])
    assert not learner.broken


def test_a_connection_that_was_in_use_is_missed_and_another_is_not() -> None:
    """The first one is parked and closed while members are in the middle of a long step: that is no loss."""
    learner = Replica(4)
    learner.adopt(1, learners_view())
    learner.driver.lost(learner.connect(ALL[0]), "parked", 0.0)
    assert not learner.broken
    line = learner.connect(ALL[0])
    learner.hear(ALL[0], Header(Kind.FOUNDING, view=1))
    learner.driver.lost(line, "reset", 0.0)
    assert learner.broken == {0}
    assert learner.driver.life.over is None, "the member may be dead, and a view on its way"
    learner.connect(ALL[0])
    over = learner.driver.life.over
    assert over is not None and "replica 0" in over


def test_when_the_job_is_over_nobody_is_missed() -> None:
    replica = running()
    replica.driver.received(Ended(outcome=Outcome(finished=True, reason="")), 0.0)
    before = len(replica.outlet.told)
    replica.driver.lost(replica.connections[1], "it has left", 0.0)
    assert not replica.broken and len(replica.outlet.told) == before


def test_one_that_leaves_stays_for_those_who_lack_its_last_frames() -> None:
    for leaving in (False, True):
        replica = running()
        if leaving:
            replica.driver.leave(0.0)
            assert reports(replica)[-1].leaving
        replica.driver.received(Evicted(replica=0, incarnation=1, reason="it leaves"), 0.0)
        reached = replica.outlet.reached[-1]
        assert reached == ((1, ALL) if leaving else (1, ()))
        assert isinstance(replica.driver.next(Stage.STEPPING, 0.0), Leave) == leaving


def test_those_who_wait_for_the_state_are_asked_for_patience() -> None:
    replica = running()
    learner = Member(9, 1)
    replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(learner,)))
    replica.connect(learner)
    replica.driver.tick(0.1)
    assert (9, Kind.FOUNDING) not in replica.outlet.kinds
    replica.driver.act([Pin(learner, 6, (0, 1))])
    replica.driver.tick(0.2)
    assert (9, Kind.FOUNDING) in replica.outlet.kinds and (1, Kind.FOUNDING) not in replica.outlet.kinds


def test_all_wait_patiently_for_who_looks_for_the_beginning() -> None:
    replica = Replica(0)
    replica.adopt(1, VIEW)
    for peer in ALL[1:]:
        replica.connect(peer)
        replica.hear_word(peer, Holding(BLANK))
    assert replica.steps.mode is Mode.FOUNDING
    replica.driver.tick(0.1)
    assert (1, Kind.FOUNDING) not in replica.outlet.kinds, "it has not begun to look"
    todo = replica.driver.next(Stage.STARTING, 0.1)
    replica.driver.tick(0.2)
    assert [kind for kind in replica.outlet.kinds if kind[1] is Kind.FOUNDING] == [
        (1, Kind.FOUNDING),
        (2, Kind.FOUNDING),
    ]
    assert isinstance(todo, todos.Found)
    replica.driver.founded(todo, 0.2, step=0, view=1)
    assert replica.driver.applied == 0 and replica.steps.mode is Mode.RUNNING
    give = replica.driver.next(Stage.STARTING, 0.3), replica.driver.next(Stage.STARTING, 0.3)
    assert all(isinstance(one, Give) for one in give)
    replica.outlet.sent.clear()
    replica.driver.tick(0.3)
    assert replica.outlet.sent == [], "it is found, and given"


# A life that is over.

SAVE = Save(6, 1, 1, (0, 1, 2))
OUTCOME = Outcome(finished=True, reason="all is done")


def test_what_a_life_that_is_over_wanted_is_not_done_but_for_what_it_says() -> None:
    replica = running(saves=True)
    replica.driver.end_life("it is tried")
    foundation = Foundation(lineage=1, view=1, claim=1)
    void: list[Action] = [
        Found(),
        MayBegin(foundation),
        AllDone(),
        LeftAlone((1,)),
        Completed(6),
        Lost("again"),
        Conclude(6),
    ]
    said: list[Action] = [Tell(Fetch()), saving.Ended(SAVE, False, "why"), JobOver(OUTCOME)]
    done: list[Action] = []
    replica.driver.watch = lambda _, action: done.append(action)
    replica.driver.act([*void, saving.Copy(SAVE), *said])
    assert done == said
    assert replica.outlet.told[-1] == Fetch() and replica.outlet.outcomes == [OUTCOME]
    assert replica.saves.done == [saving.Ended(SAVE, False, "why")]
    assert replica.driver.life.over == "it is tried" and not replica.driver.life.founding
    assert isinstance(replica.driver.next(Stage.STEPPING, 0.0), JobEnded)


def test_a_life_that_cannot_go_on_says_so_until_the_training_thread_begins_another() -> None:
    """Others wait for its word, and the thread may be in the middle of a long step."""
    replica = running()
    replica.driver.act([Lost("its branch was left")])
    assert not reports(replica), "mostly the thread is there at once"
    replica.driver.tick(10.0)
    assert reports(replica)[-1].given_up == "its branch was left"
    replica.driver.next(Stage.STEPPING, 10.1)
    replica.adopt(2, View(number=2, members=ALL[1:], learners=(Member(0, 2),), planned_since=2))
    assert reports(replica)[-1].given_up == ""


def test_what_was_decided_in_a_life_is_not_done_in_the_next_one() -> None:
    """It may come to that in the middle of the queue."""
    replica = running(saves=True)
    driver = replica.driver
    replica.outlet.on_stable = driver.begin_life
    driver.life.records[5] = Record(5, bytearray(10))
    driver.act([Stable(5), Found(), saving.Copy(SAVE), Tell(Fetch()), saving.Ended(SAVE, False, "why")])
    assert not driver.life.founding and driver.life.over is None
    assert replica.saves.done == [saving.Ended(SAVE, False, "why")]
    assert Fetch() in replica.outlet.told


def test_what_is_decided_with_the_end_of_a_life_is_not_done_but_for_the_end_of_its_save() -> None:
    replica = running(saves=True)
    replica.driver.act(replica.driver.participant.save_decided(5, 1, 0.0))
    [copy] = replica.saves.done
    assert isinstance(copy, saving.Copy)
    replica.driver.received(Evicted(replica=0, incarnation=1, reason="it was silent"), 0.0)
    assert replica.driver.life.over == "it was silent"
    assert [type(action) for action in replica.saves.done] == [saving.Copy, saving.Ended]


def test_a_new_life_has_nothing_of_the_one_before() -> None:
    replica = running(copies=True)
    driver, learner = replica.driver, Member(9, 1)
    replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(learner,)))
    old = driver.life
    # A word that waits, a share that is under way, a record, a state to give and one on its way.
    driver.act([Pin(learner, 6, (0,)), Found(), LeftAlone((1,))])
    old.records[5] = Record(5, bytearray(10))
    assert replica.hear(ALL[1], Header(Kind.SHARE, flags=Way.STABLE, view=2, step=7), bytes(2))
    old.post.send(learner, driver.header(Kind.FOUNDING))
    old.arrival.described(Header(Kind.IMAGE, view=2, step=5), b"\x01", replica.bulk)
    late = driver.room(replica.connections[1], Header(Kind.SHARE, 1, 0, 1, 2, 7, 1, size=3))
    assert late is not None
    assert old.post.lines.waiting == {9: 1} and old.inbox._arriving and old.giving.owed(5)

    driver.received(Evicted(replica=0, incarnation=1, reason="it was silent"), 1.0)
    assert driver.next(Stage.STEPPING, 1.0) is None
    life = driver.life
    assert life is not old and life.over is None and replica.copies.lives == 2
    assert driver.view == View() and driver.applied == BLANK and driver.steps.newest == BLANK
    assert not life.records and not life.inbox._arriving and not life.inbox._under_way
    assert not life.giving.owed(-1) and life.giving.final is None and life.giving.due(6) is None
    assert not life.post.lines.waiting and not life.post.lines.torn and life.post.lines.own == 0
    assert life.arrival.assembly is None and not life.founding and life.left_alone is None
    assert life.begun_at == life.heard_at == 1.0
    # What still comes over the connections of the old one is for nobody.
    assert driver.room(replica.connections[1], Header(Kind.PART, view=2, step=6, size=3)) is None
    driver.arrived(replica.connections[1], Header(Kind.SHARE, 1, 0, 1, 2, 7, 1, size=3), late, 1.0)
    assert not life.inbox._arriving
    # And what waited in it is said to nobody.
    replica.outlet.sent.clear()
    replica.adopt(2, View(number=3, members=ALL[1:], learners=(learner, Member(0, 2)), planned_since=3))
    for peer in (*ALL[1:], learner):
        replica.connect(peer)
    assert replica.outlet.sent == []
    assert not replica.broken


def test_a_new_life_registers_anew() -> None:
    replica = running()
    replica.driver.end_life("it lacks something")
    assert replica.driver.next(Stage.STEPPING, 0.0) is None
    [register] = replica.outlet.told
    assert register.rejoin == 1  # type: ignore[attr-defined]
    assert any("begins a new life: it lacks something" in text for _, text in replica.outlet.noted)
    assert replica.outlet.phases[-1] is Phase.STARTING


# What is done for something that is over.


@pytest.mark.parametrize("at", [HERE, At(2, 6), At(0, 6), At(1, 7), At(1, 5), At(1, 6, Trial.HEARING)])
def test_work_for_another_attempt_is_void(at: At) -> None:
    replica = running(steps=lambda replica: StepCore(replica, judges=True))
    charge = Charge(view=1, step=6, reason="it is wrong", replica=1, incarnation=1)
    replica.driver.done(Worked(at, Judge, charges=(charge,)), 0.0)
    told = [report.charges for report in reports(replica)]
    assert told == ([(charge,)] if at == HERE else [])
    assert not replica.driver.life.discredited


@pytest.mark.parametrize("at", [HERE, At(2, 6), At(1, 7), At(1, 6, Trial.FINAL)])
def test_sums_for_another_attempt_are_void(at: At) -> None:
    replica = part_way(running())
    replica.outlet.sent.clear()
    replica.driver.done(Worked(at, Conclude), 0.0)
    assert replica.outlet.kinds == ([(1, Kind.SUM), (2, Kind.SUM)] if at == HERE else [])


def test_what_was_summed_for_a_view_that_is_over_is_not_said_in_the_next_one() -> None:
    """At the same step, and in the same trial."""
    replica = part_way(running())
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    todo = replica.driver.next(Stage.STEPPING, 0.0)
    assert isinstance(todo, Compute) and todo.at == At(3, 6)
    replica.driver.did(todo, 0.0)
    for peer in ALL[1:]:
        replica.hear_word(peer, Part(6), view=3)
    replica.outlet.sent.clear()
    replica.driver.done(Worked(HERE, Conclude), 0.0)
    assert replica.outlet.sent == []
    replica.driver.done(Worked(At(3, 6), Conclude), 0.0)
    assert replica.outlet.kinds == [(1, Kind.SUM), (2, Kind.SUM)]


def test_one_whose_own_work_is_found_to_be_wrong_does_it_again() -> None:
    replica = running(steps=lambda replica: StepCore(replica, judges=True))
    first = replica.driver.next(Stage.STEPPING, 0.0)
    assert isinstance(first, Compute) and not first.afresh
    charge = Charge(view=1, step=6, reason="it is wrong", replica=0, incarnation=1)
    replica.driver.done(Worked(HERE, Judge, charges=(charge,)), 0.0)
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    again = replica.driver.next(Stage.STEPPING, 0.0)
    assert isinstance(again, Compute) and again.afresh
    assert not replica.driver.life.discredited


class Digests(StepCore):
    """Writes down which digests it is told."""

    def __init__(self, replica: int) -> None:
        super().__init__(replica, verifies=True)
        self.told: dict[int, bytes] = {}

    def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[object]:  # type: ignore[override]
        self.told[step] = digest
        return []


def test_a_digest_of_another_life_or_of_what_members_went_back_behind_is_void() -> None:
    replica = running(steps=Digests, copies=True)
    driver, steps = replica.driver, replica.steps
    assert isinstance(steps, Digests)
    driver.done(Digested(object(), steps.fork, 5, b"digest"), 0.0)
    driver.done(Digested(driver.life, Fork(1, 3), 5, b"digest"), 0.0)
    assert not steps.told
    driver.done(Digested(driver.life, steps.fork, 5, b"digest"), 0.0)
    assert steps.told == {5: b"digest"}
    replica.adopt(1, NEXT)
    driver.done(Digested(driver.life, steps.fork, 6, b"digest"), 0.0)
    assert steps.told == {5: b"digest", 6: b"digest"}, "a view does not matter"
    before = driver.life
    driver.end_life("it is tried")
    driver.next(Stage.STEPPING, 0.0)
    driver.done(Digested(before, steps.fork, 7, b"digest"), 0.0)
    now = replica.steps
    assert isinstance(now, Digests) and now is not steps and not now.told


INTENT = Intent(step=5, lineage=1, seal="s")
SAVE_DONE: list[Callable[[Save], Done]] = [
    lambda save: Written(save, b"stripe"),
    lambda save: Sealed(save, INTENT),
    lambda save: Committed(save),
    lambda save: GaveUp(save, "why"),
]


@pytest.mark.parametrize("done", SAVE_DONE)
@pytest.mark.parametrize(
    "other", [{}, {"view": 2}, {"lineage": 2}, {"writers": (1, 2)}, {"step": 4, "later": 1}, {"named": True}]
)
def test_what_was_done_for_another_save_is_void(done: Callable[[Save], Done], other: dict[str, int]) -> None:
    """All of them are of the same step, and were decided at the same one; there may be another attempt."""
    replica = running(saves=True)
    replica.driver.act(replica.driver.participant.save_decided(5, 1, 0.0))
    save = replica.driver.participant.saves.save
    assert save is not None and save.at == 5
    replica.saves.done.clear()
    replica.outlet.sent.clear()
    parts = {"step": 5, "lineage": 1, "view": 1, "writers": (0, 1, 2), "later": 0, "named": False} | other
    what = done(Save(**parts))  # type: ignore[arg-type]
    replica.driver.done(what, 0.0)
    saves = replica.driver.participant.saves
    changed = (
        saves.save != save
        or saves._mine is not None
        or replica.driver.member.intent is not None
        or bool(replica.saves.done or replica.outlet.sent)
    )
    assert changed == (not other)


def test_a_save_takes_its_course() -> None:
    replica = running(saves=True)
    driver = replica.driver
    driver.act(driver.participant.save_decided(5, 1, 0.0))
    save = driver.participant.saves.save
    assert save is not None
    driver.done(Written(save, b"mine"), 0.0)
    driver.act([*driver.participant._run([Stable(5)], 0.0)])
    for peer in ALL[1:]:
        replica.hear_word(peer, Stripe(5, 1, b"theirs"))
    assert [type(action) for action in replica.saves.done] == [saving.Copy, saving.Intend]
    driver.done(Sealed(save, INTENT), 0.0)
    assert reports(replica)[-1].intent == INTENT
    driver.act(driver.participant.allowed(INTENT, 0.0))
    replica.saves.saved_step = 5
    driver.done(Committed(save), 0.0)
    assert [type(action) for action in replica.saves.done[2:]] == [saving.Commit, saving.Ended]
    assert [kind for kind in replica.outlet.kinds if kind[1] is Kind.SAVED] == [
        (1, Kind.SAVED),
        (2, Kind.SAVED),
    ]
    assert replica.outlet.saves[-1][0] == 5


def test_one_who_is_alone_asks_nobody_whether_it_may_commit() -> None:
    replica = Replica(0, alone=True, saves=True)
    me = Member(0, 1)
    replica.driver.alone(
        View(number=1, lineage=1, members=(me,), shards=(0,), slices=(0,), planned_since=1), 0.0
    )
    todo = replica.driver.next(Stage.STARTING, 0.0)
    assert isinstance(todo, todos.Found)
    replica.driver.founded(todo, 0.0, step=0, view=1)
    replica.driver.done(Decided(0, later=0), 0.0)
    save = replica.driver.participant.saves.save
    assert save is not None and save.writers == (0,)
    replica.driver.done(Written(save, b"mine"), 0.0)
    replica.driver.finals(0)
    replica.driver.done(Sealed(save, Intent(step=0, lineage=1, seal="s")), 0.0)
    assert [type(a) for a in replica.saves.done] == [saving.Copy, saving.Intend, saving.Commit]
    assert replica.outlet.told == []


def test_a_record_that_says_so_begins_a_save() -> None:
    learner = learning(saves=True)
    record = Record(6, bytearray(10), note_of(1, save=True))
    learner.driver.life.inbox._offered[6] = record
    learner.driver.act([Completed(6)])
    assert learner.driver.participant.saves._decided == 6
    assert learner.driver.life.records == {6: record}


@pytest.mark.parametrize("over", [False, True])
def test_a_life_that_is_over_decides_on_no_save(over: bool) -> None:
    for decided in (Decided(5), Decided(5, alone=True)):
        replica = running(saves=True)
        if over:
            replica.driver.end_life("it is tried")
        replica.driver.done(decided, 0.0)
        assert (replica.driver.participant.saves.save is None) == over


@pytest.mark.parametrize("over", [False, True])
def test_a_state_that_was_copied_in_another_life_is_not_given(over: bool) -> None:
    replica = running()
    driver = replica.driver
    life = object() if over else driver.life
    header = driver.header(Kind.IMAGE, 5)
    driver.done(Described(life, ALL[1], header, b"\x01\x01"), 0.0)
    assert driver.life.giving.owed(5) == ([] if over else [ALL[1]])
    driver.done(Gave(life, ALL[1], header, [(0, memoryview(b"a")), (1, memoryview(b"b"))]), 0.0)
    assert driver.life.giving.owed(5) == []
    sent = [(one.to, one.kind, one.header.lo, one.payload) for one in replica.outlet.sent]
    image, *pieces = [(1, Kind.IMAGE, 0, b"\x01\x01"), (1, Kind.PIECE, 0, b"a"), (1, Kind.PIECE, 1, b"b")]
    assert sent == ([] if over else [image, *pieces])


def test_one_whose_share_could_not_be_copied_is_not_asked_for_patience_any_more() -> None:
    replica = running()
    driver = replica.driver
    driver.done(Described(driver.life, ALL[1], driver.header(Kind.IMAGE, 5), b"\x01"), 0.0)
    driver.done(Gave(driver.life, ALL[1], driver.header(Kind.IMAGE, 5), None), 0.0)
    assert replica.outlet.kinds == [(1, Kind.IMAGE)] and not driver.life.giving.owed(5)


# For whom others wait.


def complete(replica: Replica) -> Replica:
    """Step 6 is done; the training thread has not looked since it contributed."""
    replica.bulk.works = Worked
    part_way(replica)
    for peer in ALL[1:]:
        replica.hear_word(peer, Sum(6))
    assert replica.outlet.done == [(6, True)]
    return replica


def test_from_a_step_that_is_done_on_others_wait_for_the_training_thread() -> None:
    """It may hang while it waits, and never look; its page has to show whose turn it is."""
    replica = complete(running())
    assert replica.outlet.phases[-1] is Phase.COMPUTING


def test_one_who_waits_for_a_record_and_is_given_it_has_to_apply_it() -> None:
    for waits in (True, False):
        replica = learning(5)
        if waits:
            assert replica.driver.next(Stage.STEPPING, 0.0) is None
        else:
            replica.outlet.enter(Phase.ASIDE)
        before = replica.outlet.phases[-1]
        replica.hear(ALL[0], Header(Kind.NOTE, flags=Way.STABLE, view=1, step=6), encode(note_of()))
        for index, size in enumerate((2, 3, 2, 3)):
            header = Header(Kind.SHARE, flags=Way.STABLE, view=1, step=6, lo=index)
            assert replica.hear(ALL[index % 3], header, bytes(size))
        assert replica.outlet.done == [(6, False)]
        assert replica.outlet.phases[-1] is (Phase.COMPUTING if waits else before)


# Hearings.


def test_only_who_is_asked_in_a_hearing_needs_its_training_thread() -> None:
    for asked in (False, True):
        replica = running(steps=lambda replica: StepCore(replica, judges=True))
        replica.bulk.works = lambda at, work: Worked(
            at, work, again=work is Judge and at.trial == Trial.FIRST
        )
        replica.bulk.asked = asked
        part_way(replica)
        for peer in ALL[1:]:
            replica.hear_word(peer, Sum(6))
        assert replica.steps.trial is Trial.HEARING
        at = At(1, 6, Trial.HEARING)
        assert replica.bulk.testified == ([] if asked else [at])
        assert (replica.outlet.phases[-1] is Phase.COMPUTING) == asked
        todo = replica.driver.next(Stage.STEPPING, 0.0)
        if asked:
            assert isinstance(todo, Compute) and todo.at == at
            replica.driver.did(todo, 0.0)
            assert replica.bulk.testified == [at] and replica.outlet.phases[-1] is Phase.WAITING
        else:
            assert todo is None
        assert (
            len([sent for sent in replica.outlet.sent if sent.header[:2] == (Kind.PART, Trial.HEARING)]) == 2
        )


# The coordinator.


def test_what_the_coordinator_said_before_it_was_asked_does_not_count() -> None:
    replica = running(saves=True)
    status = Status(job="j", view=VIEW, seats=())
    replica.now = 4.0
    woken = replica.outlet.woken
    replica.driver.received(status, 4.0)
    assert replica.driver.status == status and replica.outlet.woken == woken + 1
    assert replica.saves.heard_at[-1] == 4.0
    replica.driver.forget_status()
    replica.driver.ask()
    assert replica.driver.status is None and replica.outlet.told[-1] == Ask()


def test_one_that_fails_says_so_with_what_it_was_computing() -> None:
    replica = running()
    replica.driver.fail("ZeroDivisionError", 3, 0.0)
    report = reports(replica)[-1]
    assert (report.failing, report.failing_step, report.failing_shard) == ("ZeroDivisionError", 6, 3)


def test_one_that_stood_still_says_what_it_waited_for() -> None:
    replica = part_way(running())
    replica.driver.tick(0.1)
    replica.driver.received(ViewNews(view=msgspec.structs.replace(NEXT, renews=True)), 0.2)
    [text] = [text for _, text in replica.outlet.noted if "stood still" in text]
    assert "at step 6" in text and "connected with ['1.1', '2.1']" in text


# The end.


def test_when_all_have_left_the_loop_the_last_state_is_saved() -> None:
    replica = running(saves=True)
    replica.driver.act([AllDone()])
    assert replica.saves.finished == [(5, {0: (5,), 1: (5,), 2: (5,)})]
    assert replica.driver.life.all_done


def test_one_who_saves_no_more_keeps_nobody_waiting() -> None:
    replica = running(saves=True)
    replica.driver.save_no_more()
    replica.driver.act([AllDone()])
    assert replica.saves.finished == []
    [one, other] = replica.outlet.sent
    assert {one.to, other.to} == {1, 2} and one.kind is Kind.UNABLE
    replica = running()
    replica.driver.save_no_more()
    replica.driver.act([AllDone()])
    assert replica.outlet.sent == [], "where nothing was saved nobody waits for that"


def test_in_a_view_that_begins_while_the_script_rests_it_is_said_that_it_does() -> None:
    replica = running()
    replica.driver.rest(None, 0.0)
    replica.driver.close(0.0)
    assert replica.outlet.phases[-1] is Phase.ASIDE
    replica.adopt(1, NEXT)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=3)
    [(at, said)] = replica.bulk.left
    assert at == At(3, 6) and said.asked is None
    assert [sent.header.view for sent in replica.outlet.sent if sent.kind is Kind.PART] == [3, 3]


def test_a_learner_at_the_end_says_that_it_has_the_final_state() -> None:
    replica = running()
    replica.driver.rest(None, 0.0)
    assert not replica.driver.member.final, "a member need not say so"
    for given in (False, True):
        learner = learning(copies=True)
        learner.driver.life.final, learner.driver.life.loaded = given, learner.driver.applied
        learner.driver.rest(None, 0.0)
        assert learner.driver.member.final == given
        learner.driver.go_on(0.0)
        assert not learner.driver.member.final, "there are more steps"


def test_nothing_is_adopted_behind_the_last_word() -> None:
    replica = running()
    replica.driver.ends(closes=True)
    last = replica.outlet.emitted[-1]
    assert isinstance(last, events.LifeOver) and last.closes
    replica.driver.received(ViewNews(view=NEXT), 0.1)
    assert replica.driver.view == VIEW and replica.outlet.emitted[-1] is last


def test_that_all_are_done_is_said_anew_in_each_view() -> None:
    replica = running()
    replica.driver.act([AllDone()])
    replica.adopt(1, NEXT)
    assert not replica.driver.life.all_done


def test_what_was_given_before_members_went_back_is_void() -> None:
    """Records and shares of them, states that were promised, and what is being computed."""
    learner = Member(9, 1)
    replica = running(copies=True)
    replica.follow(msgspec.structs.replace(VIEW, number=2, learners=(learner,)))
    life = replica.driver.life
    computes = Compute(At(2, 6))
    life.computes = computes
    life.records[6] = life.inbox._offered[7] = Record(6, bytearray(10))
    assert replica.hear(ALL[1], Header(Kind.SHARE, flags=Way.STABLE, view=2, step=8), bytes(2))
    replica.driver.act([Pin(learner, 6, (0,)), Pin(learner, 3, (0,)), GoBack(Fork(1, 3), 3)])
    assert not life.records and not life.inbox._offered and not life.inbox._arriving
    assert life.giving.due(6) is None and life.giving.due(3) is not None
    replica.driver.did(computes, 0.0)
    assert not replica.bulk.contributed


def test_what_was_given_in_a_view_is_void_in_the_next_and_all_is_in_another_lineage() -> None:
    replica = running()
    inbox = replica.driver.life.inbox
    given, offered = Record(6, bytearray(10)), Record(6, bytearray(10))
    inbox._given[6], inbox._offered[6] = given, offered
    replica.adopt(1, NEXT)
    assert not inbox._given and inbox._offered == {6: offered}
    replica.adopt(1, msgspec.structs.replace(NEXT, number=4, planned_since=4, lineage=2))
    assert not inbox._offered
    header = Header(Kind.NOTE, flags=Way.STABLE, view=3, step=6)
    assert not inbox.wants(header, 4, 5) and inbox.wants(header._replace(view=4), 4, 5)


def test_a_share_that_is_lost_with_its_connection_is_not_under_way_any_more() -> None:
    learner = learning()
    header = Header(Kind.SHARE, flags=Way.STABLE, incarnation=1, view=1, step=6, size=2)
    for peer in (0, 1):
        assert learner.driver.room(learner.connections[peer], header) is not None
    learner.driver.lost(learner.connections[0], "reset", 0.0)
    assert set(learner.driver.life.inbox._under_way) == {1}


def test_a_state_that_is_void_is_not_gone_back_to_twice() -> None:
    """One that had none before takes the one that has come."""
    replica = Replica(0, copies=True)
    replica.adopt(1, VIEW)
    for peer in ALL[1:]:
        replica.connect(peer)
        replica.hear_word(peer, Holding(5))
    replica.give_state(ALL[1], 5)
    replica.driver.act([GoBack(Fork(1, 5), BLANK)])
    assert replica.driver.life.back is None
    assert isinstance(replica.driver.next(Stage.STARTING, 0.0), Load)


def test_a_save_that_is_given_up_is_told_with_its_reason() -> None:
    replica = running(saves=True)
    replica.driver.act(replica.driver.participant.save_decided(5, 1, 0.0))
    replica.hear_word(ALL[1], Unable(5, "the disk is full"))
    ended = replica.saves.done[-1]
    assert isinstance(ended, saving.Ended) and ended.reason == "the disk is full"
