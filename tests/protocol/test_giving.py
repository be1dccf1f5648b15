"""Giving to others: whom a share of the state is owed, the final state, and who sends which share of a
record."""

from __future__ import annotations

from stand_ins import ALL, Bulk, Final, Outlet, Record

from outlast.protocol.giving import Giving
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, Way
from outlast.protocol.lines import Line, Lines
from outlast.protocol.post import Post
from outlast.protocol.step_words import FeedAgain, HandOver, Pin
from outlast.protocol.views import Member, View

LEARNER, OTHER = Member(9, 1), Member(8, 1)
VIEW = View(number=2, members=ALL, learners=(LEARNER,), planned_since=1)
PIN = Pin(to=LEARNER, step=5, servers=(0, 1))


class Giver:
    """Replica 0, connected with everybody."""

    def __init__(self, view: View = VIEW, replica: int = 0) -> None:
        self.outlet = Outlet()
        post = Post(self.outlet, Bulk(), Lines())
        post.adopt(view, 1)
        for number, peer in enumerate((*view.members, *view.learners)):
            post.connected(Line(peer, 1, number))
        self.giving = Giving(replica, post, self.outlet.passes)

    def shares(self, to: int) -> list[int]:
        return [s.header.lo for s in self.outlet.sent if s.to == to and s.kind is Kind.SHARE]


def header(kind: Kind = Kind.NOTE) -> Header:
    return Header(kind, incarnation=1, view=2)


def record(step: int) -> Record:
    return Record(step, bytearray([step]) * 10)


# States.


def test_one_who_waits_for_its_share_is_told_until_the_step_is_over() -> None:
    """The step in which it was promised may take minutes, and one that hears nothing begins anew."""
    giving = Giver().giving
    giving.pin(PIN, header())
    assert giving.owed(applied=4) == giving.owed(applied=5) == [LEARNER]
    assert giving.owed(applied=6) == [], "it stands behind that step, and nothing will come"
    assert giving.due(4) is None
    assert giving.due(5) == (PIN, Header(Kind.IMAGE, incarnation=1, view=2, step=5))
    assert giving.due(5) is None and giving.owed(applied=5) == []


def test_one_to_whom_it_is_promised_is_told_until_it_has_been_sent() -> None:
    giving = Giver().giving
    giving.promised.add(LEARNER)
    assert giving.owed(applied=50) == [LEARNER]


def test_who_is_not_asked_to_give_gives_nothing() -> None:
    giving = Giver(replica=2).giving
    giving.pin(PIN, header())
    assert giving.owed(4) == [] and giving.due(5) is None


def test_states_that_members_have_gone_back_behind_are_not_given() -> None:
    giving = Giver().giving
    giving.final, giving.final_is_known = Final(7), True
    for step in (5, 6):
        giving.pin(Pin(LEARNER, step, (0,)), header())
    giving.go_back(5)
    assert giving.due(6) is None and giving.due(5) is not None
    assert giving.final is None and not giving.final_is_known


def test_the_final_state_is_given_to_whoever_waits_for_it_and_for_no_other() -> None:
    giver = Giver()
    giver.giving.give_final()
    for step in (7, 8):
        giver.giving.pin(Pin(LEARNER, step, (1, 0)), header())
    giver.giving.final = Final(7)
    giver.giving.give_final()
    image, piece = giver.outlet.sent
    assert (image.to, image.kind, image.payload, image.header.step) == (9, Kind.IMAGE, b"\x01\x01", 7)
    assert (piece.to, piece.kind, piece.payload, piece.header.lo) == (9, Kind.PIECE, b"f", 1)
    assert giver.outlet.passed == [("serving", 7)]
    giver.giving.give_final()
    assert len(giver.outlet.sent) == 2, "once"
    assert giver.giving.due(8) is not None


def test_it_is_said_of_the_final_state_whether_it_is_known_to_be() -> None:
    """One that was given another one has to be given it anew."""
    for known in (False, True):
        giver = Giver()
        giver.giving.pin(PIN, header())
        giver.giving.final, giver.giving.final_is_known = Final(5), known
        giver.giving.give_final()
        assert giver.outlet.sent[0].header.flags == int(known)


# Records.


def test_a_record_is_fed_to_all_learners_by_each_member_its_share() -> None:
    view = View(number=2, members=ALL, learners=(LEARNER, OTHER))
    shares = {}
    for replica in range(3):
        giver = Giver(view, replica)
        giver.giving.feed(record(6), view, header())
        assert giver.shares(9) == giver.shares(8)
        assert {sent.to for sent in giver.outlet.sent} == {8, 9}, "members have it"
        assert all(sent.header.flags == Way.STABLE and sent.droppable for sent in giver.outlet.sent)
        shares[replica] = giver.shares(9)
    assert shares == {0: [0, 3], 1: [1], 2: [2]}


def test_what_is_not_kept_any_more_is_not_fed() -> None:
    giver = Giver()
    giver.giving.feed(None, VIEW, header())
    assert not giver.outlet.sent


def test_feeding_again_begins_with_what_there_is() -> None:
    giver = Giver()
    records = {step: record(step) for step in (5, 6, 8)}
    giver.giving.feed_again(FeedAgain(first=4, last=6, top=7), records, VIEW, header())
    first, *rest = giver.outlet.sent
    assert (first.to, first.kind, first.header.step, first.header.offset) == (9, Kind.FEED_FROM, 5, 7)
    assert [sent.header.step for sent in rest if sent.kind is Kind.NOTE] == [5, 6]


def test_feeding_again_says_so_where_there_is_nothing_to_feed() -> None:
    giver = Giver()
    giver.giving.feed_again(FeedAgain(first=4, last=6, top=7), {}, VIEW, header())
    [first] = giver.outlet.sent
    assert (first.kind, first.header.step, first.header.offset) == (Kind.FEED_FROM, 7, 7)


def test_the_record_of_a_switch_is_handed_to_new_members_alone() -> None:
    giver = Giver()
    giver.giving.hand_over(HandOver(6, to=(2,), servers=(0, 1)), record(6), VIEW, header())
    assert {sent.to for sent in giver.outlet.sent} == {2} and giver.shares(2) == [0, 2]
    assert all(sent.header.flags == Way.HANDED and not sent.droppable for sent in giver.outlet.sent)
    giver = Giver(replica=2)
    giver.giving.hand_over(HandOver(6, to=(2,), servers=(0, 1)), record(6), VIEW, header())
    assert not giver.outlet.sent


def test_one_who_asks_is_given_all_of_a_record() -> None:
    giver = Giver()
    giver.giving.answer([ALL[1]], record(6), header())
    assert giver.shares(1) == [0, 1, 2, 3] and {sent.to for sent in giver.outlet.sent} == {1}
    assert all(sent.header.flags == Way.WHOLE and not sent.droppable for sent in giver.outlet.sent)
