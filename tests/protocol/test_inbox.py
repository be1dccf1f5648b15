"""What a life is given: stable records are facts, all others count in the view in which they were sent;
shares from many senders become one record, and only the right ones do; and two states never mix."""

from __future__ import annotations

import pytest
from stand_ins import Assembly, Bulk, Record, note_of

from outlast.errors import ProtocolError
from outlast.protocol.header import Header
from outlast.protocol.inbox import RECORDS_MOST, Arrival, Inbox
from outlast.protocol.kinds import Kind, Way, encode
from outlast.protocol.views import View

SENDER = 1
SIZE = 10


def head(step: int, way: Way, view: int, kind: Kind = Kind.SHARE) -> Header:
    return Header(kind, flags=way, view=view, step=step)


def record_of(step: int, size: int = SIZE) -> Record:
    return Record(step, bytearray((index + 16 * step) % 256 for index in range(size)))


class Box:
    """An inbox, and those who send to it."""

    def __init__(self, size: int = SIZE) -> None:
        self.bulk = Bulk(size)
        self.inbox = Inbox(self.bulk)

    def share(self, record: Record, index: int, way: Way = Way.STABLE, view: int = 3) -> Header:
        size = self.bulk.share(record.vector, index).nbytes
        return head(record.step, way, view)._replace(lo=index, size=size)

    def slot(self, record: Record, index: int, sender: int) -> memoryview:
        """Something begins to come."""
        slot = self.inbox.slot(sender, self.share(record, index))
        assert slot is not None
        return slot

    def fill(self, slot: memoryview, record: Record, index: int, sender: int) -> Record | None:
        """And is there; the whole record, if that was the last of it."""
        slot[:] = self.bulk.share(record.vector, index)
        found = self.inbox.came(sender, self.share(record, index), slot)
        assert found is None or isinstance(found, Record)
        return found

    def give(
        self, record: Record, index: int, way: Way = Way.STABLE, view: int = 3, sender: int = SENDER
    ) -> Record | None:
        header = self.share(record, index, way, view)
        slot = self.inbox.slot(sender, header)
        if slot is None:
            return None
        slot[:] = self.bulk.share(record.vector, index)
        found = self.inbox.came(sender, header, slot)
        assert found is None or isinstance(found, Record)
        return found

    def give_note(self, record: Record, way: Way = Way.STABLE, view: int = 3) -> Record | None:
        header = head(record.step, way, view, Kind.NOTE)
        found = self.inbox.came(SENDER, header, memoryview(encode(record.note)))
        assert found is None or isinstance(found, Record)
        return found

    def give_all(self, step: int, way: Way, view: int, value: int) -> Record | None:
        """A whole record that is the same number everywhere."""
        record = Record(step, bytearray([value]) * SIZE, note_of(view))
        self.give_note(record, way, view)
        return [self.give(record, index, way, view) for index in range(self.bulk.shares)][-1]

    def pop(self, step: int) -> int | None:
        record = self.inbox.pop(step)
        return None if record is None else int(record.vector[0])


# Which of them count.


def test_what_was_given_in_a_view_is_void_in_the_next() -> None:
    """Nobody took it, and the step was done again: perhaps with other bits."""
    box = Box()
    assert box.give_all(7, Way.HANDED, view=3, value=1) is not None
    box.inbox.adopt(View(number=4), anew=False)
    assert box.pop(7) is None


def test_a_stable_record_outlasts_views() -> None:
    box = Box()
    box.give_all(7, Way.STABLE, view=3, value=1)
    box.inbox.adopt(View(number=4), anew=False)
    assert box.pop(7) == 1


def test_a_record_that_was_asked_for_is_taken_though_a_stable_one_lies_there() -> None:
    """Whoever asked may have forgotten that one; and waits."""
    box = Box()
    box.give_all(7, Way.STABLE, view=3, value=1)
    assert not box.inbox.wants(head(7, Way.STABLE, 3, Kind.NOTE), view=4, newest=6)
    assert box.inbox.wants(head(7, Way.WHOLE, 4, Kind.NOTE), view=4, newest=6)
    box.give_all(7, Way.WHOLE, view=4, value=2)
    assert box.pop(7) == 2
    assert box.pop(7) is None, "both are gone"


def test_what_is_of_another_view_or_of_a_step_that_is_done_is_not_wanted() -> None:
    box = Box()
    for way in (Way.WHOLE, Way.HANDED):
        assert box.inbox.wants(head(7, way, 4), view=4, newest=6)
        assert not box.inbox.wants(head(7, way, 3), view=4, newest=6)
        assert not box.inbox.wants(head(7, way, 5), view=4, newest=6)
        assert not box.inbox.wants(head(6, way, 4), view=4, newest=6)
    assert box.inbox.wants(head(7, Way.STABLE, 3), view=4, newest=6)
    assert not box.inbox.wants(head(6, Way.STABLE, 4), view=4, newest=6)


def test_going_back_forgets_all_records() -> None:
    box = Box()
    box.give_all(7, Way.STABLE, view=3, value=1)
    box.give_all(8, Way.WHOLE, view=3, value=1)
    box.inbox.forget()
    assert box.pop(7) is None
    assert box.pop(8) is None


def test_what_came_with_a_later_state_is_not_kept() -> None:
    """Records of steps that the state includes: whole ones, and others of which the rest is not wanted."""
    box = Box()
    box.give_all(5, Way.STABLE, view=3, value=1)
    box.give(record_of(6), 0)
    box.give_all(8, Way.STABLE, view=3, value=2)
    assert box.inbox.pop(7) is None
    assert set(box.inbox._offered) == {8}
    assert not box.inbox._arriving
    assert box.pop(8) == 2


def test_records_of_a_lineage_that_is_over_are_nothing_to_go_on_from() -> None:
    """Its steps are done anew: the record of one must not be taken for that of the other."""
    box = Box()
    box.give_all(1, Way.STABLE, view=3, value=1)
    box.inbox.adopt(View(number=5), anew=True)
    assert box.pop(1) is None
    assert not box.inbox.wants(head(1, Way.STABLE, 4, Kind.NOTE), view=5, newest=-1), "nor what is late"
    assert box.inbox.wants(head(1, Way.STABLE, 5, Kind.NOTE), view=6, newest=-1)


def test_what_members_do_again_is_not_kept_when_they_feed_anew() -> None:
    box = Box()
    for step in (7, 8):
        box.give_all(step, Way.STABLE, view=3, value=step)
    box.give(record_of(9), 0)
    box.inbox.fed_again(4, first=8, top=7)
    assert set(box.inbox._offered) == {7} and not box.inbox._arriving
    box.give_all(8, Way.STABLE, view=4, value=9)
    box.inbox.fed_again(4, first=8, top=7)
    assert box.pop(8) == 9, "the others who say so in that view say the same"


def test_what_was_given_of_a_record_before_members_fed_again_is_not_mixed_with_what_they_give_then() -> None:
    """They may have gone back in between, and nobody has told (simulator, seed 700106)."""
    box = Box()
    for index in (0, 2):
        box.give(record_of(15), index)
    box.inbox.fed_again(4, first=15, top=16)
    assert not box.inbox._arriving
    assert not box.inbox.wants(head(15, Way.STABLE, 3), view=4, newest=14), "nor what comes late"
    assert box.inbox.wants(head(14, Way.STABLE, 3), view=4, newest=13), "what is not given again still may"
    assert box.inbox.wants(head(15, Way.STABLE, 4), view=4, newest=14)
    box.inbox.fed_again(4, first=17, top=16)
    assert box.inbox.wants(head(15, Way.STABLE, 3), view=4, newest=14), "not all of them have it"


# Putting them together.


@pytest.mark.parametrize("size", [1, 3, 4, 10, 101])
def test_a_record_is_there_when_the_last_of_it_is(size: int) -> None:
    record, box = record_of(7, size), Box(size)
    indices = [index for index in range(4) if box.bulk.share(record.vector, index).nbytes]
    assert box.give_note(record) is None
    for index in reversed(indices[1:]):
        assert box.give(record, index) is None
    found = box.give(record, indices[0])
    assert found is not None and found is not record
    assert (found.step, found.vector, found.note) == (7, record.vector, record.note)
    assert box.inbox.pop(7) is found


def test_the_note_may_come_last_and_more_than_once() -> None:
    record, box = record_of(7), Box()
    for index in range(4):
        assert box.give(record, index) is None
    found = box.give_note(record)
    assert found is not None and found.vector == record.vector
    first = box.inbox.pop(7)
    assert first is found and box.give_note(record_of(8)) is None and box.give_note(record_of(8)) is None


def test_a_share_that_is_there_is_not_received_again() -> None:
    record, box = record_of(7), Box()
    box.give(record, 3)
    assert box.inbox.slot(SENDER, box.share(record, 3)) is None
    assert box.inbox.slot(2, box.share(record, 3)) is None


def test_a_share_counts_once_though_it_comes_twice() -> None:
    """Four times something has come then, and the record is not there."""
    record, box = record_of(7), Box()
    box.give_note(record)
    box.give(record, 0)
    box.give(record, 1)
    slow, quick = box.slot(record, 2, sender=1), box.slot(record, 2, sender=2)
    assert box.fill(slow, record, 2, sender=1) is None
    assert box.fill(quick, record, 2, sender=2) is None
    assert box.inbox.came(2, box.share(record, 2), quick) is None, "nor if it is told again"
    found = box.give(record, 3)
    assert found is not None and found.vector == record.vector


def test_a_stable_record_may_come_in_pieces_from_several_views() -> None:
    record, box = record_of(7), Box()
    box.give_note(record)
    for index in range(3):
        box.give(record, index, view=3)
    box.inbox.adopt(View(number=4), anew=False)
    assert box.give(record, 3, view=4, sender=2) is not None


@pytest.mark.parametrize("way", [Way.WHOLE, Way.HANDED])
def test_any_other_record_counts_in_its_view_only(way: Way) -> None:
    record, box = record_of(7), Box()
    for index in range(3):
        box.give(record, index, way, view=3)
    assert box.give(record, 3, way, view=4) is None
    assert box.give_note(record, way, view=4) is None
    box.give_note(record, way, view=3)
    box.inbox.adopt(View(number=5), anew=False)
    assert box.give(record, 3, way, view=3) is None, "what came before is void"


@pytest.mark.parametrize("kept", [None, "forget", "anew", "fed_again", "popped"])
def test_a_share_that_was_under_way_when_its_record_became_void_counts_for_nothing(kept: str | None) -> None:
    """Its bytes are in the memory of the old record, whatever has begun since."""
    old, new = record_of(7), Record(7, record_of(8).vector)
    box = Box()
    late = box.slot(old, 3, SENDER)
    match kept:
        case "forget":
            box.inbox.forget()
        case "anew":
            box.inbox.adopt(View(number=4), anew=True)
        case "fed_again":
            box.inbox.fed_again(4, first=8, top=6)
        case "popped":
            box.inbox.pop(7)
    box.give_note(new)
    for index in range(3):
        assert box.give(new, index, sender=2) is None
    found = box.fill(late, old, 3, SENDER)
    if kept is None:
        assert found is not None, "all is well as long as nothing is void"
        return
    assert found is None
    found = box.give(new, 3, sender=2)
    assert found is not None and found.vector == new.vector


def test_a_share_that_two_are_sending_is_there_with_the_first_and_nobody_is_overwritten() -> None:
    """The one that is slow writes to memory that nobody else is given, whichever of them it is."""
    for first, second in ((1, 2), (2, 1)):
        record, box = record_of(7), Box()
        box.give_note(record)
        for index in range(1, 4):
            box.give(record, index, sender=3)
        slots = {1: box.slot(record, 0, sender=1), 2: box.slot(record, 0, sender=2)}
        found = box.fill(slots[first], record, 0, sender=first)
        assert found is not None and found.vector == record.vector
        slots[second][:] = b"\xff" * slots[second].nbytes
        assert found.vector == record.vector, "it is applied while the other one is still sending"
        assert box.inbox.came(second, box.share(record, 0), slots[second]) is None
        assert found.vector == record.vector


def test_memory_that_somebody_still_writes_to_is_not_handed_out() -> None:
    """Whoever gets a record uses its memory again, for another one."""
    record, box = record_of(7), Box()
    box.give_note(record)
    for index in range(1, 4):
        box.give(record, index)
    box.slot(record, 0, sender=1)
    quick = box.slot(record, 0, sender=2)
    found = box.fill(quick, record, 0, sender=2)
    assert found is not None
    assert box.bulk.copies == 1 and found.vector is not box.bulk.vectors[0]
    other = Box()
    other.give_note(record)
    found = [other.give(record, index) for index in range(4)][-1]
    assert found is not None
    assert other.bulk.copies == 0 and found.vector is other.bulk.vectors[0], "else there is no need for that"


def test_a_share_that_came_aside_is_put_into_its_place() -> None:
    record, box = record_of(7), Box()
    box.give_note(record)
    first, second = box.slot(record, 0, sender=1), box.slot(record, 0, sender=2)
    first[0], second[0] = 1, 2
    assert first[0] == 1, "until then nobody writes where another one does"
    assert box.fill(second, record, 0, sender=2) is None
    found = [box.give(record, index, sender=3) for index in range(1, 4)][-1]
    assert found is not None and found.vector == record.vector


def test_two_senders_of_different_shares_are_not_in_each_others_way() -> None:
    record, box = record_of(7), Box()
    box.give_note(record)
    slots = {index: box.slot(record, index, sender=index) for index in range(4)}
    found = [box.fill(slots[index], record, index, sender=index) for index in (2, 0, 3, 1)]
    assert found[:3] == [None] * 3
    assert found[3] is not None and found[3].vector == record.vector
    assert box.bulk.copies == 0 and len(box.bulk.vectors) == 1


def test_a_share_of_the_wrong_size_or_number_is_refused() -> None:
    record, box = record_of(7), Box()
    for wrong, why in (({"size": 1}, "has a wrong size"), ({"lo": 4}, "is none")):
        with pytest.raises(ProtocolError, match=f"share . of the record of step 7 {why}"):
            box.inbox.slot(SENDER, box.share(record, 3)._replace(**wrong))


def test_a_note_that_cannot_be_read_is_refused() -> None:
    box = Box()
    with pytest.raises(ProtocolError, match="can not be read"):
        box.inbox.came(SENDER, head(7, Way.STABLE, 3, Kind.NOTE), memoryview(b"\xc1"))


def test_there_is_an_end_to_what_an_inbox_holds() -> None:
    box = Box(4)
    for step in range(RECORDS_MOST + 5):
        slot = box.inbox.slot(SENDER, head(step, Way.STABLE, 3)._replace(size=1))
        assert (slot is None) == (step >= RECORDS_MOST)
    assert box.give_note(record_of(RECORDS_MOST, 4)) is None
    box.inbox.fed_again(4, first=8, top=9)
    assert box.inbox.slot(SENDER, head(RECORDS_MOST, Way.STABLE, 4)._replace(size=1)) is not None


def test_a_share_that_is_lost_with_its_connection_holds_nothing() -> None:
    """Where somebody still writes to a record, a copy of it is made; of one that is gone, nobody does."""
    record, box = record_of(7), Box()
    slot = box.slot(record, 3, sender=2)
    box.inbox.lost(2)
    assert box.inbox.came(2, box.share(record, 3), slot) is None
    box.give_note(record)
    found = [box.give(record, index) for index in range(4)][-1]
    assert found is not None and found.vector == record.vector
    assert box.bulk.copies == 0 and len(box.bulk.vectors) == 1


# The state to begin with.

BULK = Bulk()
IMAGE = bytes([3, 2])
"""Two pieces, of so many bytes."""


def piece(index: int, size: int, *, view: int = 2, step: int = 5) -> Header:
    return Header(Kind.PIECE, view=view, step=step, lo=index, size=size)


def describe(arrival: Arrival, image: bytes = IMAGE, *, view: int = 2, final: bool = False) -> None:
    arrival.described(Header(Kind.IMAGE, view=view, step=5, flags=int(final)), image, BULK)


def put(arrival: Arrival, index: int, payload: bytes, *, view: int = 2) -> bool:
    """Whether that completed it."""
    header = piece(index, len(payload), view=view)
    slot = arrival.slot(header)
    if slot is None:
        return False
    slot[:] = payload
    return arrival.arrived(header)


def memory(arrival: Arrival) -> list[bytearray]:
    assert isinstance(arrival.assembly, Assembly)
    return arrival.assembly.memory


def test_pieces_of_all_who_give_it_are_the_state() -> None:
    arrival = Arrival()
    describe(arrival)
    assert not put(arrival, 1, b"de")
    describe(arrival)
    assert put(arrival, 0, b"abc")
    assert arrival.complete and (arrival.view, arrival.step) == (2, 5)
    assert memory(arrival) == [b"abc", b"de"]


def test_a_later_view_begins_anew_and_an_earlier_one_is_not_listened_to() -> None:
    arrival = Arrival()
    describe(arrival, view=2)
    put(arrival, 0, b"abc", view=2)
    describe(arrival, view=3)
    put(arrival, 1, b"DE", view=3)
    describe(arrival, view=2)
    assert arrival.view == 3
    assert not put(arrival, 0, b"abc", view=2), "not even the piece that it lacks"
    assert put(arrival, 0, b"ABC", view=3)
    assert memory(arrival) == [b"ABC", b"DE"]


def test_a_piece_before_its_description_has_no_place() -> None:
    arrival = Arrival()
    assert arrival.slot(piece(0, 3)) is None
    assert not arrival.arrived(piece(0, 3))
    assert not arrival.complete


def test_a_piece_of_the_wrong_size_or_number_is_refused() -> None:
    arrival = Arrival()
    describe(arrival)
    for wrong in (piece(0, 2), piece(2, 3)):
        with pytest.raises(ProtocolError, match="after step 5 has a wrong size"):
            arrival.slot(wrong)


def test_members_whose_states_differ_are_noticed() -> None:
    arrival = Arrival()
    describe(arrival)
    with pytest.raises(ProtocolError, match="two members hold different states after step 5"):
        describe(arrival, bytes([2, 3]))


def test_a_complete_state_is_complete_once() -> None:
    arrival = Arrival()
    describe(arrival)
    put(arrival, 0, b"abc")
    assert put(arrival, 1, b"de")
    assert not put(arrival, 1, b"de")
    assert arrival.complete


def test_a_state_is_final_only_if_all_who_give_it_say_so() -> None:
    for said in ([True, True], [True, False], [False, True]):
        arrival = Arrival()
        for final in said:
            describe(arrival, final=final)
        assert arrival.final == all(said)
