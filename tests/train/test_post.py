"""Words to peers: in order, from this life to those lives, and never in the way of later ones."""

from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind
from outlast.protocol.views import Member, View
from outlast.train.post import Post

PEER = Member(0, 2)
VIEW = View(number=7, members=(PEER, Member(1, 1)))


class Lines:
    """In the place of the mesh, which has a connection or none, made in one life of this process."""

    def __init__(self) -> None:
        self.life: int | None = None
        self.sent: list[tuple[int, int]] = []
        """The lives and steps of what has left."""

    def send(self, peer: int, header: Header, *_payload: bytes, **_more: object) -> bool:
        assert peer == PEER.replica
        if header.incarnation != self.life:
            return False
        self.sent.append((header.incarnation, header.step))
        return True


def word(step: int, *, life: int) -> Header:
    return Header(Kind.PART, incarnation=life, view=VIEW.number, step=step)


def start(life: int) -> tuple[Post, Lines]:
    lines = Lines()
    post = Post(lines)  # type: ignore[arg-type]
    post.adopt(VIEW, life)
    return post, lines


def connect(post: Post, lines: Lines, life: int) -> None:
    lines.life = life
    post.connected(PEER)


def test_what_is_said_before_there_is_a_connection_waits_for_it_in_order() -> None:
    post, lines = start(life=1)
    post.send(PEER, word(1, life=1))
    post.send(PEER, word(2, life=1))
    assert post.waiting == {0: 2}
    connect(post, lines, life=1)
    post.send(PEER, word(3, life=1))
    assert lines.sent == [(1, 1), (1, 2), (1, 3)] and not post.waiting


def test_what_a_life_that_is_over_still_had_to_say_does_not_hold_up_the_next_one() -> None:
    """A snapshot is copied by the training thread, which may come to send it when its life is over."""
    post, lines = start(life=1)
    connect(post, lines, life=1)
    post.adopt(VIEW, life=2)
    connect(post, lines, life=2)
    post.send(PEER, word(1, life=1))
    post.send(PEER, word(2, life=2))
    assert lines.sent == [(2, 2)] and not post.waiting


def test_what_waits_when_a_life_ends_is_not_said_in_the_next_one() -> None:
    post, lines = start(life=1)
    post.send(PEER, word(1, life=1))
    post.adopt(VIEW, life=2)
    connect(post, lines, life=2)
    post.send(PEER, word(2, life=2))
    assert lines.sent == [(2, 2)] and not post.waiting


def test_what_is_said_between_two_lives_is_for_nobody() -> None:
    post, lines = start(life=1)
    post.adopt(View(number=7), life=1)
    post.send(PEER, word(1, life=1))
    post.adopt(VIEW, life=2)
    connect(post, lines, life=2)
    post.send(PEER, word(2, life=2))
    assert lines.sent == [(2, 2)] and not post.waiting


def test_what_is_for_a_life_of_a_peer_that_is_over_does_not_reach_its_next_one() -> None:
    post, lines = start(life=1)
    connect(post, lines, life=1)
    post.send(Member(0, 1), word(1, life=1))
    post.send(PEER, word(2, life=1))
    assert lines.sent == [(1, 2)] and not post.waiting
