"""Words to peers: in order, from this life to those lives, on one connection, in nobody's way."""

from stand_ins import Bulk, Outlet, Record

from outlast.protocol.header import Header
from outlast.protocol.kinds import RECORD, Kind, Way, decode
from outlast.protocol.lines import Line, Lines
from outlast.protocol.post import Post
from outlast.protocol.views import Member, View

PEER = Member(0, 2)
VIEW = View(number=7, members=(PEER, Member(1, 1)), planned_since=6)


def word(step: int, *, life: int = 1) -> Header:
    return Header(Kind.PART, incarnation=life, view=VIEW.number, step=step)


def start(life: int = 1) -> tuple[Post, Outlet]:
    """There is one connection or none, and frames are taken for that one alone."""
    outlet = Outlet()
    outlet.lines = set()
    post = Post(outlet, Bulk(), Lines())
    post.adopt(VIEW, life)
    return post, outlet


def connect(post: Post, outlet: Outlet, number: int, life: int = 1) -> Line:
    line = Line(PEER, life, number)
    outlet.lines = {line}
    post.connected(line)
    return line


def steps(outlet: Outlet) -> list[int]:
    return [sent.header.step for sent in outlet.sent if sent.kind is Kind.PART]


def words(outlet: Outlet) -> list[tuple[int, Kind, int]]:
    """The connection, kind and step of what has left."""
    return [(sent.line.number, sent.kind, sent.header.step) for sent in outlet.sent]


def test_what_is_said_before_there_is_a_connection_waits_for_it_in_order() -> None:
    post, outlet = start()
    post.send(PEER, word(1))
    post.send(PEER, word(2))
    connect(post, outlet, 1)
    post.send(PEER, word(3))
    assert steps(outlet) == [1, 2, 3] and not post.lines.waiting


def test_what_is_sent_into_a_connection_that_is_over_is_not_made_good_on_the_next() -> None:
    post, outlet = start()
    connect(post, outlet, 1)
    post.send(PEER, word(1))
    other = Line(PEER, 1, 2)  # There is another one, which this side has not heard of.
    outlet.lines = {other}
    post.send(PEER, word(2))
    assert post.lines.torn == {PEER}
    post.connected(other)
    post.send(PEER, word(3))
    assert words(outlet) == [(1, Kind.PART, 1), (2, Kind.GAP, 0)]


def test_a_connection_that_breaks_while_words_are_flushed_takes_the_rest_with_it() -> None:
    post, outlet = start()
    post.send(PEER, word(1))
    post.send(PEER, word(2))
    post.connected(Line(PEER, 1, 1))
    assert outlet.sent == [] and post.lines.torn == {PEER} and not post.lines.waiting


def test_nothing_is_said_after_a_word_that_was_lost() -> None:
    """Though the connection may be there again, and take it."""
    post, outlet = start()
    post.send(PEER, word(1))
    post.send(PEER, word(2))
    sends = iter([False, True])
    outlet.send = lambda *sent, **more: next(sends)  # type: ignore[method-assign,assignment]
    post.connected(Line(PEER, 1, 1))
    assert list(sends) == [True], "the second one was not tried"


def test_one_whose_words_are_not_taken_is_cut_off() -> None:
    post, outlet = start()
    line = connect(post, outlet, 1)
    post.cut(PEER, "it is too far ahead")
    assert outlet.dropped == [line] and post.lines.torn == {PEER}


def test_what_a_life_that_is_over_still_had_to_say_does_not_hold_up_the_next_one() -> None:
    """A snapshot is copied by the training thread, which may come to send it when its life is over."""
    post, outlet = start()
    connect(post, outlet, 1)
    post.adopt(VIEW, own=2)
    connect(post, outlet, 2, life=2)
    post.send(PEER, word(1, life=1))
    post.send(PEER, word(2, life=2))
    assert steps(outlet) == [2] and not post.lines.waiting


def test_what_waits_when_a_life_ends_is_not_said_in_the_next_one() -> None:
    post, outlet = start()
    post.send(PEER, word(1))
    post.adopt(VIEW, own=2)
    connect(post, outlet, 1, life=2)
    post.send(PEER, word(2, life=2))
    assert steps(outlet) == [2]


def test_what_is_said_between_two_lives_is_for_nobody() -> None:
    post, outlet = start()
    post.adopt(View(number=7), own=1)
    post.send(PEER, word(1))
    post.adopt(VIEW, own=2)
    connect(post, outlet, 1, life=2)
    post.send(PEER, word(2, life=2))
    assert steps(outlet) == [2]


def test_what_is_for_a_life_of_a_peer_that_is_over_does_not_reach_its_next_one() -> None:
    post, outlet = start()
    connect(post, outlet, 1)
    post.send(Member(0, 1), word(1))
    post.send(PEER, word(2))
    assert steps(outlet) == [2]


def test_a_record_goes_out_in_shares_and_is_held_until_they_have_left() -> None:
    """One who only learns and does not keep up is dropped; of one who was asked, everything waits."""
    post, outlet = start()
    connect(post, outlet, 1)
    record = Record(7, bytearray(range(10)))
    post.record(PEER, record, word(0), Way.STABLE, 1, 3)
    assert [(sent.kind, sent.header.lo, sent.header.step) for sent in outlet.sent] == [
        (Kind.NOTE, 0, 7),
        (Kind.SHARE, 1, 7),
    ]
    note, share = outlet.sent
    assert decode(RECORD, note.payload) == record.note
    assert share.payload == bytes(range(2, 5)) and share.keep is record and share.header.size == 3
    assert all(sent.droppable and sent.header.flags == Way.STABLE for sent in outlet.sent)
    outlet.sent.clear()
    post.record(PEER, record, word(0), Way.WHOLE, 0, 1)
    assert b"".join(sent.payload for sent in outlet.sent[1:]) == bytes(range(10))
    assert not any(sent.droppable for sent in outlet.sent)


def test_a_share_without_bytes_is_not_sent() -> None:
    post, outlet = start()
    connect(post, outlet, 1)
    post.record(PEER, Record(7, bytearray(b"abc")), word(0), Way.WHOLE, 0, 1)
    assert [sent.payload for sent in outlet.sent if sent.kind is Kind.SHARE] == [b"a", b"b", b"c"]
