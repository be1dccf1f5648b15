"""Connections and gaps: all frames of one era from one life to another travel on one connection, or not."""

import pytest

from outlast.protocol import lines as module
from outlast.protocol.lines import Line, Lines
from outlast.protocol.views import Member, View

ME, PEER, THIRD = Member(0, 1), Member(1, 4), Member(2, 2)


def view(number: int, since: int | None = None, *, members: tuple[Member, ...] = (ME, PEER, THIRD)) -> View:
    return View(number=number, members=members, planned_since=number if since is None else since)


def line(number: int, *, peer: Member = PEER, own: int = 1) -> Line:
    return Line(peer, own, number)


@pytest.fixture
def lines() -> Lines[str]:
    made = Lines[str]()
    made.adopt(view(5), own=1)
    return made


def used(lines: Lines[str], number: int = 7) -> Line:
    """A connection over which something has gone in this era."""
    assert lines.connected(line(number)) == ([], False)
    assert lines.route(PEER, "word") == line(number)
    return line(number)


def test_what_is_said_before_there_is_a_connection_waits_for_it_in_order(lines: Lines[str]) -> None:
    assert lines.route(PEER, "a") is None and lines.route(PEER, "b") is None
    assert lines.waiting == {1: 2}
    assert lines.connected(line(7)) == (["a", "b"], False)
    assert not lines.waiting and lines.route(PEER, "c") == line(7)


def test_what_is_held_waits_with_all_that_comes_behind_it(lines: Lines[str]) -> None:
    lines.connected(line(7))
    lines.hold(PEER, 1)
    assert lines.route(PEER, "a") is None and lines.route(PEER, "b") is None
    lines.hold(PEER, 2)
    assert lines.route(PEER, "c") is None
    assert lines.release(1) == [(line(7), ["a", "b"])]
    assert lines.release(2) == [(line(7), ["c"])]
    assert lines.route(PEER, "d") == line(7) and lines.release(3) == []


def test_a_connection_that_is_made_meanwhile_sets_nothing_free(lines: Lines[str]) -> None:
    lines.hold(PEER, 1)
    lines.route(PEER, "a")
    assert lines.connected(line(7)) == ([], False)
    lines.lost(line(7))
    assert not lines.torn, "nothing went over it"
    lines.release(1)
    assert lines.connected(line(8)) == (["a"], False)


def test_what_is_held_goes_with_its_era(lines: Lines[str]) -> None:
    lines.connected(line(7))
    lines.hold(PEER, 1)
    lines.route(PEER, "a")
    lines.adopt(view(6), own=1)
    assert lines.route(PEER, "b") is None, "what is to be written is not written yet"
    assert lines.release(1) == [(line(7), ["b"])]


def test_nothing_crosses_a_gap_in_either_direction(lines: Lines[str]) -> None:
    """The story of a result whose connection breaks behind it, as the owner and as the others see it."""
    lines.lost(used(lines))
    assert lines.torn == {PEER} and not lines.torn_and_back
    assert lines.route(PEER, "sum") is None and not lines.waiting, "it is not kept for the next connection"
    assert lines.connected(line(8)) == ([], True), "nothing but GAP"
    assert lines.torn_and_back == {PEER}
    assert not lines.takes(line(8), 5) and lines.route(PEER, "sum") is None
    assert lines.takes(line(8), 6), "the next view is for the member core to judge"


def test_another_era_heals_and_a_planned_view_does_not(lines: Lines[str]) -> None:
    lines.lost(used(lines))
    lines.connected(line(8))
    lines.adopt(view(6, since=5), own=1)
    assert lines.torn == {PEER} and not lines.takes(line(8), 6)
    lines.adopt(view(7), own=1)
    assert not lines.torn and lines.takes(line(8), 7) and lines.route(PEER, "holding") == line(8)


def test_a_connection_that_nothing_went_over_is_no_gap(lines: Lines[str]) -> None:
    """A joiner's early one is parked and closed while members finish a long step."""
    lines.connected(line(7))
    lines.lost(line(7))
    assert not lines.torn
    lines.route(PEER, "word")
    assert lines.connected(line(8)) == (["word"], False)


def test_what_was_taken_is_use_too(lines: Lines[str]) -> None:
    lines.connected(line(7))
    assert lines.takes(line(7), 5)
    lines.lost(line(7))
    assert lines.torn == {PEER}


def test_the_other_end_may_have_used_what_this_one_never_knew_of(lines: Lines[str]) -> None:
    lines.connected(line(8))
    lines.gap(line(8), era=5)
    assert lines.torn == lines.torn_and_back == {PEER}
    assert not lines.takes(line(8), 5)


def test_a_gap_of_an_era_that_is_over_is_none(lines: Lines[str]) -> None:
    lines.connected(line(8))
    lines.gap(line(8), era=4)
    assert not lines.torn


def test_a_gap_of_an_era_to_come_is_remembered_for_it(lines: Lines[str]) -> None:
    lines.connected(line(8))
    lines.gap(line(8), era=9)
    assert not lines.torn
    lines.adopt(view(9), own=1)
    assert lines.torn == {PEER}
    lines.adopt(view(12), own=1)
    assert not lines.torn


def test_frames_and_ends_of_another_connection_do_not_count(lines: Lines[str]) -> None:
    lines.connected(line(8))
    assert not lines.takes(line(7), 5)
    lines.route(PEER, "word")
    lines.lost(line(7))
    lines.gap(line(7), era=5)
    assert not lines.torn and lines.line(PEER) == line(8)


def test_a_life_that_is_over_takes_everything_with_it(lines: Lines[str]) -> None:
    lines.lost(used(lines))
    lines.route(THIRD, "for nobody")
    lines.adopt(view(6, since=5), own=2)
    assert not lines.torn and not lines.waiting
    assert not lines.takes(line(7), 5), "of the old life"
    assert lines.connected(line(9)) == ([], False) and lines.line(PEER) is None
    assert lines.connected(line(10, own=2)) == ([], False) and lines.line(PEER) == line(10, own=2)


def test_one_who_is_not_in_the_view_is_not_written_to(lines: Lines[str]) -> None:
    assert lines.route(Member(1, 3), "to a life that is over") is None and not lines.waiting
    lines.adopt(view(6, since=5, members=(ME, THIRD)), own=1)
    assert lines.route(PEER, "word") is None and not lines.waiting
    assert not lines.takes(line(7), 6)


def test_one_who_does_not_come_is_given_up(lines: Lines[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED_FRAMES_MOST", 3)
    for word in "abcd":
        lines.route(PEER, word)
    assert lines.torn == {PEER} and not lines.waiting
    assert lines.connected(line(7)) == ([], True)


def test_records_wait_up_to_a_bound_of_bytes(lines: Lines[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED_BYTES_MOST", 100)
    lines.route(PEER, "a state that it needs", 0)
    lines.route(PEER, "a record", 60)
    assert not lines.torn
    lines.route(PEER, "another", 60)
    assert lines.torn == {PEER}


def test_whoever_looks_sees_that_there_is_news(lines: Lines[str]) -> None:
    seen = lines.changes
    lines.route(PEER, "word")
    assert lines.changes == seen
    lines.connected(line(7))
    assert lines.changes > seen
    seen = lines.changes
    lines.lost(line(7))
    assert lines.changes > seen


def test_nothing_counts_that_comes_on_a_line_when_another_has_taken_its_place(lines: Lines[str]) -> None:
    lines.connected(line(7))
    assert lines.takes(line(7), 5)
    lines.connected(line(8))
    assert not lines.takes(line(7), 5) and lines.takes(line(8), 5)
    lines.adopt(view(6, members=(ME, THIRD)), own=1)
    assert not lines.takes(line(8), 6), "it is no peer any more"
    lines.connected(line(9, peer=THIRD))
    lines.adopt(view(7), own=2)
    assert not lines.takes(line(9, peer=THIRD), 7), "it was made in a life that is over"


def test_who_leaves_with_a_planned_view_is_listened_to_until_its_connection_ends(lines: Lines[str]) -> None:
    """Its share of the last record may be under way to a learner that knows of that view already."""
    used(lines)
    lines.adopt(view(6, since=5, members=(ME, THIRD)), own=1)
    assert lines.departed == (PEER,)
    assert lines.takes(line(7), 5) and lines.route(PEER, "word") is None and not lines.waiting
    lines.lost(line(7))
    assert not lines.departed and not lines.torn and not lines.takes(line(7), 5)


def test_nobody_is_listened_to_who_left_in_another_era_or_is_there_in_another_life(lines: Lines[str]) -> None:
    used(lines)
    lines.adopt(view(6, since=5, members=(ME, Member(1, 5))), own=1)
    assert not lines.departed and not lines.takes(line(7), 5)
    lines.connected(line(8, peer=THIRD))
    lines.adopt(view(7, members=(ME,)), own=1)
    assert not lines.departed
