"""Whom to ask of several coordinators, and how long to rest before the next attempt."""

import random

from outlast.protocol.finding import REST_MOST_S, Finder
from outlast.protocol.messages import NotLeading, ReportAck
from outlast.protocol.timing import Timing

TIMING = Timing()
HEARD = ReportAck(view=1)


def finder(*addresses: str) -> Finder:
    return Finder(addresses, TIMING, lambda: 0.0)


def test_one_after_the_other_is_tried_and_only_then_there_is_a_rest() -> None:
    one = finder("a", "b", "c")
    rests = []
    tried = []
    for _ in range(6):
        tried.append(one.where)
        rests.append(one.failed())
    assert tried == ["a", "b", "c", "a", "b", "c"]
    assert [rest > 0 for rest in rests] == [False, False, True, False, False, True]
    assert rests[5] > rests[2], "longer each time"


def test_rests_end_and_grow_to_a_bound_and_an_answer_makes_them_short_again() -> None:
    alone = finder("a")
    rests = [alone.failed() for _ in range(2000)]
    assert rests == sorted(rests)
    assert rests[-1] == REST_MOST_S / 2
    alone.connected(0.0)
    assert alone.heard(HEARD, 0.0) is None
    assert alone.failed() == rests[0]


def test_a_fleet_does_not_come_back_in_the_same_instant() -> None:
    chance = random.Random(7)
    fleet = [Finder(["a", "b", "c"], TIMING, chance.random) for _ in range(300)]
    starts = {one.where for one in fleet}
    assert starts == {"a", "b", "c"}
    rests = [sum(one.failed() for _ in range(12)) for one in fleet]
    assert max(rests) > 1.5 * min(rests)


def test_who_is_sent_to_the_leader_goes_there_at_once() -> None:
    one = finder("a", "b", "c")
    one.connected(0.0)
    assert one.heard(NotLeading(leader="elsewhere"), 0.1) == 0.0
    assert one.where == "elsewhere", "also if nobody has told of that one before"
    one.failed()
    assert one.where == "a", "should it not be there, the others are asked"


def test_two_that_send_one_to_each_other_are_not_asked_without_a_rest() -> None:
    one = finder("a", "b")
    rests = [
        one.heard(NotLeading(leader="b" if one.where == "a" else "a"), float(moment)) for moment in range(8)
    ]
    assert [bool(rest) for rest in rests] == [False, True] * 4


def test_one_that_knows_no_leader_or_is_about_to_lead_is_as_good_as_any() -> None:
    one = finder("a", "b")
    one.connected(0.0)
    assert one.heard(NotLeading(), 0.1) is None
    assert one.heard(NotLeading(leader="a"), 0.2) is None
    assert one.where == "a"


def test_one_that_says_nothing_is_left() -> None:
    one = finder("a", "b")
    assert not one.is_silent(100.0), "nobody is at the other end"
    one.connected(0.0)
    assert not one.is_silent(TIMING.unanswered_s - 0.01)
    one.heard(HEARD, 1.0)
    assert not one.is_silent(TIMING.unanswered_s)
    assert one.is_silent(1.0 + TIMING.unanswered_s)
    one.failed()
    assert one.where == "b"
    assert not one.is_silent(1000.0)
