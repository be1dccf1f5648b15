"""What comes in over the mesh reaches the cores, also where there is nothing to receive with it."""

from __future__ import annotations

import msgspec
import pytest
from stand_ins import ALL, VIEW, Replica, learning, note_of, running

from outlast.errors import ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, PartNote, ReadRequest, Way, encode
from outlast.protocol.member import HELD_FRAMES
from outlast.protocol.participant import Action
from outlast.protocol.step_words import Attempt, Holding, Lost, Mode, Part, Switched
from outlast.protocol.todos import Load, Read, Stage
from outlast.protocol.views import Member, View

OLD, LATE = ALL[0], ALL[1]
ME = Member(4, 1)
JOINED = View(number=2, lineage=1, members=(*ALL, ME), shards=(0,), slices=(0, 1, 2, 4), planned_since=1)

CHUNKS = ReadRequest(0, "manifest", "seal", (1, 2))


def watched(replica: Replica) -> list[Action]:
    done: list[Action] = []
    replica.driver.watch = lambda _, action: done.append(action)
    return done


def give_record(replica: Replica, sender: Member, step: int, way: Way, view: int = 1) -> None:
    replica.hear(sender, Header(Kind.NOTE, flags=way, view=view, step=step), encode(note_of(view)))
    for index in range(4):
        memory = replica.bulk.share(bytearray(10), index)
        replica.hear(
            sender, Header(Kind.SHARE, flags=way, view=view, step=step, lo=index), bytes(memory.nbytes)
        )


# Records.


def test_what_members_have_gone_back_behind_is_not_mixed_with_what_they_do_instead() -> None:
    learner = learning(newest=40)
    old = Header(Kind.SHARE, flags=Way.STABLE, view=1, step=41)
    assert learner.hear(OLD, old._replace(lo=1), bytes(3)), "all is well so far"
    learner.hear(OLD, Header(Kind.FEED_FROM, view=2, step=41, offset=40))
    assert not learner.hear(LATE, old._replace(lo=3), bytes(3)), "one that is slow to go back"
    assert learner.hear(OLD, old._replace(lo=1, view=2), bytes(3))
    assert learner.hear(LATE, old._replace(lo=3, view=2), bytes(3))


@pytest.mark.parametrize(("newest", "follows"), [(5, Attempt(6)), (6, Lost)])
def test_that_a_record_is_handed_is_heard_by_who_has_it_already(newest: int, follows: object) -> None:
    learner = learning(newest)
    done = watched(learner)
    learner.hear_word(OLD, Switched(JOINED), view=2)
    assert learner.steps.mode is Mode.JOINING
    learner.hear(OLD, Header(Kind.NOTE, flags=Way.HANDED, view=2, step=5), encode(note_of()))
    assert any(action == follows or type(action) is follows for action in done), done


def test_that_a_record_was_handed_in_a_view_that_is_not_in_force_is_no_news() -> None:
    learner = learning(5)
    learner.hear_word(OLD, Switched(JOINED), view=2)
    learner.hear(OLD, Header(Kind.NOTE, flags=Way.HANDED, view=1, step=5), encode(note_of()))
    learner.hear(OLD, Header(Kind.NOTE, flags=Way.STABLE, view=2, step=5), encode(note_of()))
    assert learner.steps.mode is Mode.JOINING


def test_a_record_that_is_fed_is_applied_by_who_learns() -> None:
    learner = learning(5)
    give_record(learner, OLD, 6, Way.STABLE)
    assert learner.steps.newest == 6 and set(learner.driver.life.records) == {6}
    assert learner.outlet.done == [(6, False)], "it was not made here"


def test_a_record_that_was_handed_is_the_beginning_of_membership() -> None:
    learner = learning(5)
    learner.hear_word(OLD, Switched(JOINED), view=2)
    give_record(learner, OLD, 6, Way.HANDED, view=2)
    assert learner.steps.mode is Mode.RUNNING and learner.steps.step == 7


def test_a_record_that_was_asked_for_is_taken() -> None:
    replica = running()
    replica.adopt(
        1, View(number=2, lineage=1, members=ALL, shards=(0, 1, 2), slices=(2, 0, 1), planned_since=2)
    )
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(6), view=2)
    assert replica.steps.mode is Mode.FETCHING
    assert (1, Kind.WANT) in replica.outlet.kinds
    give_record(replica, ALL[1], 6, Way.WHOLE, view=2)
    assert replica.steps.mode is Mode.RUNNING and replica.steps.newest == 6


# Bulk and words.


def test_bulk_of_the_view_in_force_is_taken_at_once_and_that_of_a_later_one_when_it_is() -> None:
    replica = running()
    assert replica.hear(ALL[1], Header(Kind.SCATTER, view=1, step=6), b"gradient")
    assert [(sender, bytes(payload)) for sender, _, payload in replica.bulk.taken] == [(1, b"gradient")]
    assert replica.hear(ALL[1], Header(Kind.SCATTER, view=2, step=6), b"later")
    assert len(replica.bulk.taken) == 1
    replica.adopt(
        1, View(number=2, lineage=1, members=ALL, shards=(0, 1, 2), slices=(2, 0, 1), planned_since=2)
    )
    assert [bytes(payload) for *_, payload in replica.bulk.taken] == [b"gradient", b"later"]


def test_what_goes_with_a_word_is_for_whoever_reduces() -> None:
    replica = running()
    note = PartNote(save=2)
    replica.hear_word(ALL[1], Part(6), encode(note))
    [(sender, header, payload)] = replica.bulk.taken
    assert (sender, header.kind, header.step, payload) == (1, Kind.PART, 6, note)


def test_what_cannot_be_read_is_its_senders_fault_and_nobody_elses() -> None:
    replica = running()
    with pytest.raises(ProtocolError, match="can not be read"):
        replica.hear(ALL[1], Header(Kind.PART, view=1, step=6), b"\xc1")
    with pytest.raises(ProtocolError, match="trial 7"):
        replica.hear(ALL[1], Header(Kind.SUM, flags=7, view=1, step=6), b"")
    assert replica.driver.failure is None


def test_an_error_of_ours_in_the_middle_of_a_frame_ends_this_replica() -> None:
    """The training thread is told, whoever has sent it."""
    replica = running()
    replica.bulk.state = lambda encoded: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    replica.steps.newest = -1
    with pytest.raises(ZeroDivisionError):
        replica.hear(ALL[1], Header(Kind.IMAGE, view=1, step=5), b"\x04")
    with pytest.raises(ZeroDivisionError):
        replica.driver.next(Stage.STEPPING, 0.0)
    assert replica.outlet.dropped == []


def test_one_that_is_too_far_ahead_is_cut_off() -> None:
    replica = running()
    replica.driver.member._held = [None] * HELD_FRAMES  # type: ignore[list-item]
    replica.hear_word(ALL[1], Part(6), view=2)
    assert replica.outlet.dropped == [replica.connections[1]] and replica.broken == {1}


def test_what_comes_over_a_connection_that_is_torn_is_not_received() -> None:
    replica = running()
    replica.driver.cut(1, 1, "it is tried")
    assert not replica.hear(ALL[1], Header(Kind.SCATTER, view=1, step=6), b"gradient")
    assert not replica.bulk.taken


@pytest.mark.parametrize("kind", list(Kind))
def test_nothing_is_received_by_a_life_that_is_over(kind: Kind) -> None:
    replica = running()
    replica.driver.end_life("it is tried")
    before = replica.steps.stands
    assert not replica.hear(ALL[1], Header(kind, view=1, step=6), b"anything")
    assert replica.steps.stands == before and not replica.bulk.taken


# The state to begin with.


def blank() -> Replica:
    """One that knows that it is to be given the state."""
    replica = Replica(0)
    replica.adopt(
        1, View(number=1, lineage=1, members=ALL, shards=(0, 1, 2), slices=(2, 0, 1), planned_since=1)
    )
    for peer in ALL[1:]:
        replica.connect(peer)
    return replica


def test_a_state_that_comes_before_it_is_known_that_it_is_needed_is_taken() -> None:
    replica = blank()
    replica.give_state(ALL[1], 5)
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5))
    assert isinstance(replica.driver.next(Stage.STARTING, 0.0), Load)
    assert replica.steps.mode is Mode.RUNNING and replica.steps.newest == 5


def test_a_state_that_is_not_needed_is_not_described() -> None:
    replica = running()
    replica.hear(ALL[1], Header(Kind.IMAGE, view=1, step=5), b"\x04")
    assert replica.driver.life.arrival.assembly is None
    assert not replica.hear(ALL[1], Header(Kind.PIECE, view=1, step=5), b"abcd")


def test_one_that_may_turn_out_to_have_none_takes_the_state_of_the_present_view() -> None:
    """What it has may be void when all have spoken."""
    replica = running()
    view = msgspec.structs.replace(VIEW, number=3, planned_since=3)
    replica.adopt(1, view)
    assert replica.steps.mode is Mode.RECONCILING
    replica.hear(ALL[1], Header(Kind.IMAGE, view=2, step=5), b"\x04")
    assert replica.driver.life.arrival.assembly is None
    replica.hear(ALL[1], Header(Kind.IMAGE, view=3, step=5), b"\x04")
    assert replica.driver.life.arrival.assembly is not None


def test_every_word_of_a_state_is_a_sign_of_life() -> None:
    replica = blank()
    words = [
        (Header(Kind.FOUNDING, view=1), b""),
        (Header(Kind.READ, view=1), encode(CHUNKS)),
        (Header(Kind.IMAGE, view=1, step=5), b"\x04\x04"),
        (Header(Kind.PIECE, view=1, step=5, lo=1), b"abcd"),
    ]
    for replica.now, (header, payload) in enumerate(words, start=1):
        replica.hear(ALL[1], header, payload)
        assert replica.driver.life.heard_at == replica.now
    assert replica.driver.life.begun_at == 3.0, "when the first word of this state came"


def test_one_without_a_state_is_asked_to_read_in_its_view() -> None:
    replica = blank()
    woken = replica.outlet.woken
    replica.hear(ALL[1], Header(Kind.READ, view=1), encode(CHUNKS))
    assert replica.outlet.woken > woken
    todo = replica.driver.next(Stage.STARTING, 0.0)
    assert isinstance(todo, Read) and (todo.view, todo.founder, todo.request) == (1, ALL[1], CHUNKS)
    assert replica.driver.next(Stage.STARTING, 0.0) is None
    replica.hear(ALL[1], Header(Kind.READ, view=2), encode(CHUNKS))
    assert replica.driver.next(Stage.STARTING, 0.0) is None, "in another one it may be somebody else's"


def test_a_request_that_cannot_be_read_is_its_senders_fault() -> None:
    with pytest.raises(ProtocolError):
        blank().hear(ALL[1], Header(Kind.READ, view=1), b"chunks")


@pytest.mark.parametrize("loaded", [False, True])
def test_one_who_needs_no_state_any_more_is_given_none(loaded: bool) -> None:
    replica = running()
    member = Member(9, 1)
    view = View(
        number=2, lineage=1, members=ALL, learners=(member,), shards=(0,), slices=(0,), planned_since=2
    )
    replica.adopt(1, view)
    replica.connect(member)
    if loaded:
        replica.hear(member, Header(Kind.LOADED, view=2))
    for peer in ALL[1:]:
        replica.hear_word(peer, Holding(5), view=2)
    assert replica.driver.life.giving.owed(5) == ([] if loaded else [member])


def test_what_others_have_read_is_for_who_gathers_it() -> None:
    class Gathering:
        over = False

        def __init__(self) -> None:
            self.chunks: list[bytes] = []

        def room(self, header: Header) -> memoryview | None:
            return memoryview(bytearray(header.size))

        def arrived(self, header: Header, chunk: memoryview) -> None:
            self.chunks.append(bytes(chunk))

    replica, gathering = blank(), Gathering()
    assert not replica.hear(ALL[1], Header(Kind.CHUNK, view=1), b"chunk"), "nobody gathers"
    replica.driver.gathering = gathering
    assert replica.hear(ALL[1], Header(Kind.CHUNK, view=1), b"chunk")
    assert gathering.chunks == [b"chunk"] and not gathering.over
    replica.adopt(1, View(number=2, lineage=2, members=ALL, shards=(0,), slices=(0,), planned_since=2))
    assert gathering.over
