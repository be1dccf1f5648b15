"""Words to peers: in order, from this life to those lives, on one connection, in nobody's way."""

from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind
from outlast.protocol.lines import Line
from outlast.protocol.views import Member, View
from outlast.train.post import Post

PEER = Member(0, 2)
VIEW = View(number=7, members=(PEER, Member(1, 1)), planned_since=6)


class Mesh:
    """In the place of the mesh: it has one connection or none, and takes frames for that one alone."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.sent: list[tuple[int, Kind, int]] = []
        """The connection, kind and step of what has left."""
        self.dropped: list[Line | None] = []

    def send(self, line: Line, header: Header, *_payload: bytes, **_more: object) -> bool:
        if line != self.line:
            return False
        self.sent.append((line.number, Kind(header.kind), header.step))
        return True

    def drop(self, _replica: int, _why: str, line: Line | None = None) -> None:
        self.dropped.append(line)


def word(step: int, *, life: int = 1) -> Header:
    return Header(Kind.PART, incarnation=life, view=VIEW.number, step=step)


def start(life: int = 1) -> tuple[Post, Mesh]:
    mesh = Mesh()
    post = Post(mesh)  # type: ignore[arg-type]
    post.adopt(VIEW, life)
    return post, mesh


def connect(post: Post, mesh: Mesh, number: int, life: int = 1) -> Line:
    mesh.line = Line(PEER, life, number)
    post.connected(mesh.line)
    return mesh.line


def steps(mesh: Mesh) -> list[int]:
    return [step for _, kind, step in mesh.sent if kind is Kind.PART]


def test_what_is_said_before_there_is_a_connection_waits_for_it_in_order() -> None:
    post, mesh = start()
    post.send(PEER, word(1))
    post.send(PEER, word(2))
    connect(post, mesh, 1)
    post.send(PEER, word(3))
    assert steps(mesh) == [1, 2, 3] and not post.lines.waiting


def test_what_is_sent_into_a_connection_that_is_over_is_not_made_good_on_the_next() -> None:
    post, mesh = start()
    connect(post, mesh, 1)
    post.send(PEER, word(1))
    mesh.line = Line(PEER, 1, 2)  # The mesh has another one, which this side has not heard of.
    post.send(PEER, word(2))
    assert post.lines.torn == {PEER}
    post.connected(mesh.line)
    post.send(PEER, word(3))
    assert mesh.sent == [(1, Kind.PART, 1), (2, Kind.GAP, 0)]


def test_a_connection_that_breaks_while_words_are_flushed_takes_the_rest_with_it() -> None:
    post, mesh = start()
    post.send(PEER, word(1))
    post.send(PEER, word(2))
    post.connected(Line(PEER, 1, 1))
    assert mesh.sent == [] and post.lines.torn == {PEER} and not post.lines.waiting


def test_one_whose_words_are_not_taken_is_cut_off() -> None:
    post, mesh = start()
    line = connect(post, mesh, 1)
    post.cut(PEER, "it is too far ahead")
    assert mesh.dropped == [line] and post.lines.torn == {PEER}


def test_what_a_life_that_is_over_still_had_to_say_does_not_hold_up_the_next_one() -> None:
    """A snapshot is copied by the training thread, which may come to send it when its life is over."""
    post, mesh = start()
    connect(post, mesh, 1)
    post.adopt(VIEW, life=2)
    connect(post, mesh, 2, life=2)
    post.send(PEER, word(1, life=1))
    post.send(PEER, word(2, life=2))
    assert steps(mesh) == [2] and not post.lines.waiting


def test_what_waits_when_a_life_ends_is_not_said_in_the_next_one() -> None:
    post, mesh = start()
    post.send(PEER, word(1))
    post.adopt(VIEW, life=2)
    connect(post, mesh, 1, life=2)
    post.send(PEER, word(2, life=2))
    assert steps(mesh) == [2]


def test_what_is_said_between_two_lives_is_for_nobody() -> None:
    post, mesh = start()
    post.adopt(View(number=7), life=1)
    post.send(PEER, word(1))
    post.adopt(VIEW, life=2)
    connect(post, mesh, 1, life=2)
    post.send(PEER, word(2, life=2))
    assert steps(mesh) == [2]


def test_what_is_for_a_life_of_a_peer_that_is_over_does_not_reach_its_next_one() -> None:
    post, mesh = start()
    connect(post, mesh, 1)
    post.send(Member(0, 1), word(1))
    post.send(PEER, word(2))
    assert steps(mesh) == [2]
