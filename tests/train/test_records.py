"""Records on their way: shares from many senders become one record, and only the right ones do."""

import gc

import pytest
import torch

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import SHARES, Kind, RecordNote, Way
from outlast.train.flats import FlatPool
from outlast.train.records import INBOX_MOST, Inbox, Record, share_bounds

SENDER = 1
NOTE = RecordNote(weight=4.0, loss=2.0, mask=b"\x05", integers={}, view=3, shards=(0, 1))


def record_of(step: int, size: int = 100) -> tuple[Record, FlatPool]:
    pool = FlatPool(size, torch.float32)
    vector = pool.take()
    vector.copy_(torch.arange(size) + 1000.0 * step)
    return Record(step, vector, NOTE, pool), pool


def head(record: Record, index: int, way: Way = Way.STABLE, view: int = 3) -> Header:
    return Header(
        Kind.SHARE, flags=way, view=view, step=record.step, lo=index, size=record.share(index).nbytes
    )


def give(
    inbox: Inbox, record: Record, index: int, way: Way = Way.STABLE, view: int = 3, sender: int = SENDER
) -> Record | None:
    slot = inbox.slot(sender, head(record, index, way, view))
    if slot is None:
        return None
    slot[:] = record.share(index)
    return inbox.arrived(sender, head(record, index, way, view), None)


def give_note(inbox: Inbox, record: Record, way: Way = Way.STABLE, view: int = 3) -> Record | None:
    return inbox.arrived(SENDER, head(record, 0, way, view), record.note)


@pytest.mark.parametrize("size", [1, 5, 15, 16, 17, 100, 1001])
def test_shares_cut_a_vector_without_gaps(size: int) -> None:
    bounds = [share_bounds(size, index) for index in range(SHARES)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(bounds[i][1] == bounds[i + 1][0] for i in range(SHARES - 1))


@pytest.mark.parametrize("size", [1, 5, 16, 100])
def test_a_record_is_there_when_the_last_of_it_is(size: int) -> None:
    record, _ = record_of(7, size)
    inbox = Inbox(FlatPool(size, torch.float32))
    indices = [index for index in range(SHARES) if record.share(index).nbytes]
    assert give_note(inbox, record) is None
    for index in reversed(indices[1:]):
        assert give(inbox, record, index) is None
    found = give(inbox, record, indices[0])
    assert found is not None
    assert torch.equal(found.vector, record.vector)
    assert (found.step, found.note, found.mask, found.loss) == (7, NOTE, 5, 0.5)


def test_the_note_may_come_last_and_more_than_once() -> None:
    record, _ = record_of(7)
    inbox = Inbox(FlatPool(100, torch.float32))
    for index in range(SHARES):
        assert give(inbox, record, index) is None
    found = give_note(inbox, record)
    assert found is not None and torch.equal(found.vector, record.vector)


def test_a_share_that_is_there_is_not_received_again() -> None:
    record, _ = record_of(7)
    inbox = Inbox(FlatPool(100, torch.float32))
    give(inbox, record, 3)
    assert inbox.slot(SENDER, head(record, 3)) is None


def test_a_stable_record_may_come_in_pieces_from_several_views() -> None:
    record, _ = record_of(7)
    inbox = Inbox(FlatPool(100, torch.float32))
    give_note(inbox, record)
    for index in range(SHARES - 1):
        give(inbox, record, index, view=3)
    inbox.keep_stable()
    assert give(inbox, record, SHARES - 1, view=4) is not None


@pytest.mark.parametrize("way", [Way.WHOLE, Way.HANDED])
def test_any_other_record_counts_in_its_view_only(way: Way) -> None:
    record, _ = record_of(7)
    inbox = Inbox(FlatPool(100, torch.float32))
    for index in range(SHARES - 1):
        give(inbox, record, index, way, view=3)
    assert give(inbox, record, SHARES - 1, way, view=4) is None
    assert give_note(inbox, record, way, view=4) is None
    give_note(inbox, record, way, view=3)
    inbox.keep_stable()
    assert give(inbox, record, SHARES - 1, way, view=3) is None, "what came before is void"


def test_a_share_that_was_under_way_when_its_record_became_void_counts_for_nothing() -> None:
    """Its bytes are in the memory of the old record, whatever has begun since."""
    old, new = record_of(7)[0], record_of(8)[0]
    new.step = 7
    inbox = Inbox(FlatPool(100, torch.float32))
    late = inbox.slot(SENDER, head(old, 3))
    assert late is not None
    inbox.clear()
    give_note(inbox, new)
    for index in range(SHARES):
        if index != 3:
            assert give(inbox, new, index, sender=2) is None
    late[:] = old.share(3)
    assert inbox.arrived(SENDER, head(old, 3), None) is None
    found = give(inbox, new, 3, sender=2)
    assert found is not None and torch.equal(found.vector, new.vector)


def test_a_share_that_two_are_sending_is_there_with_the_first_and_nobody_is_overwritten() -> None:
    record, _ = record_of(7)
    pool = FlatPool(100, torch.float32)
    inbox = Inbox(pool)
    give_note(inbox, record)
    for index in range(1, SHARES):
        give(inbox, record, index)
    slow, quick = inbox.slot(1, head(record, 0)), inbox.slot(2, head(record, 0))
    assert slow is not None and quick is not None
    quick[:] = record.share(0)
    found = inbox.arrived(2, head(record, 0), None)
    assert found is not None and torch.equal(found.vector, record.vector)
    # It is applied, and its vector used for something else, while the other one is still sending.
    del found
    gc.collect()
    other = pool.take().zero_()
    slow[:] = record.share(0)
    assert inbox.arrived(1, head(record, 0), None) is None
    assert not other.any()


def test_a_share_that_came_aside_is_put_into_its_place() -> None:
    record, _ = record_of(7)
    inbox = Inbox(FlatPool(100, torch.float32))
    give_note(inbox, record)
    first, second = inbox.slot(1, head(record, 0)), inbox.slot(2, head(record, 0))
    assert first is not None and second is not None
    second[:] = record.share(0)
    inbox.arrived(2, head(record, 0), None)
    found = [give(inbox, record, index) for index in range(1, SHARES)][-1]
    assert found is not None and torch.equal(found.vector, record.vector)


def test_a_share_of_the_wrong_size_or_number_is_refused() -> None:
    record, _ = record_of(7)
    inbox = Inbox(FlatPool(100, torch.float32))
    for wrong in (head(record, 3)._replace(size=1), head(record, 3)._replace(lo=SHARES)):
        with pytest.raises(ProtocolError, match="step 7 has a wrong size"):
            inbox.slot(SENDER, wrong)


def test_there_is_an_end_to_what_an_inbox_holds() -> None:
    inbox = Inbox(FlatPool(16, torch.float32))
    for step in range(INBOX_MOST + 5):
        slot = inbox.slot(SENDER, Header(Kind.SHARE, flags=Way.STABLE, step=step, lo=0, size=4))
        assert (slot is None) == (step >= INBOX_MOST)
    inbox.drop_after(9)
    assert inbox.slot(SENDER, Header(Kind.SHARE, flags=Way.STABLE, step=INBOX_MOST, lo=0, size=4)) is not None


def test_a_vector_is_free_when_the_last_reference_to_its_record_is_gone() -> None:
    record, pool = record_of(7)
    vector = record.vector
    frame = record
    del record
    gc.collect()
    assert pool.take() is not vector
    del frame
    gc.collect()
    assert pool.take() is vector


def test_a_step_without_any_weight_has_no_loss() -> None:
    pool = FlatPool(1, torch.float32)
    record = Record(1, pool.take(), RecordNote(0.0, 0.0, b"", {}, 1, (0,)), pool)
    assert record.loss != record.loss


def test_a_share_that_is_lost_with_its_connection_holds_nothing() -> None:
    """Where somebody still writes to a record, a copy of it is made; of one that is gone, nobody does."""
    record, _ = record_of(7)
    pool = FlatPool(100, torch.float32)
    inbox = Inbox(pool)
    assert inbox.slot(2, head(record, 3)) is not None
    inbox.lost(2)
    give_note(inbox, record)
    found = [give(inbox, record, index) for index in range(SHARES)][-1]
    assert found is not None and torch.equal(found.vector, record.vector)
    assert pool.allocated == 1
