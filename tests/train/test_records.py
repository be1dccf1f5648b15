"""Records as tensors: how they are cut, put together, and when their memory is used again."""

import gc

import pytest
import torch
from torch import nn

from outlast.protocol.header import Header
from outlast.protocol.inbox import Inbox
from outlast.protocol.kinds import SHARES, Kind, RecordNote, Way, encode
from outlast.train.bulk import TensorBulk
from outlast.train.exchange import Exchange
from outlast.train.flats import FlatPool
from outlast.train.layout import Layout
from outlast.train.records import Record, share

SENDER = 1
NOTE = RecordNote(weight=4.0, loss=2.0, mask=b"\x05", integers={}, view=3, shards=(0, 1))


def record_of(step: int, size: int = 100) -> tuple[Record, FlatPool]:
    pool = FlatPool(size, torch.float32)
    vector = pool.take()
    vector.copy_(torch.arange(size) + 1000.0 * step)
    return Record(step, vector, NOTE, pool), pool


def inbox_of(size: int = 100) -> tuple[Inbox, FlatPool]:
    """An inbox, and where it takes its vectors from."""
    layout = Layout(nn.Linear(size, 1, bias=False))
    exchange = Exchange(layout, 0, FlatPool(layout.size, layout.dtype))
    bulk = TensorBulk(exchange, None, 0, lambda: 0, lambda *_: None)  # type: ignore[arg-type]
    return Inbox(bulk), exchange.vectors


def head(record: Record, index: int) -> Header:
    size = share(record.vector, index).nbytes
    return Header(Kind.SHARE, flags=Way.STABLE, view=3, step=record.step, lo=index, size=size)


def give(inbox: Inbox, record: Record, index: int, sender: int = SENDER) -> Record | None:
    slot = inbox.slot(sender, head(record, index))
    if slot is None:
        return None
    slot[:] = share(record.vector, index)
    found = inbox.came(sender, head(record, index), slot)
    assert found is None or isinstance(found, Record)
    return found


def give_note(inbox: Inbox, record: Record) -> None:
    header = head(record, 0)._replace(kind=Kind.NOTE)
    assert inbox.came(SENDER, header, memoryview(encode(record.note))) is None


@pytest.mark.parametrize("size", [1, 5, 15, 16, 17, 100, 1001])
def test_shares_cut_a_vector_without_gaps(size: int) -> None:
    vector = torch.arange(size, dtype=torch.float32)
    shares = [share(vector, index) for index in range(SHARES)]
    assert b"".join(shares) == vector.numpy().tobytes()
    assert max(one.nbytes for one in shares) - min(one.nbytes for one in shares) <= vector.itemsize


def test_what_is_written_to_a_share_is_in_the_vector() -> None:
    vector = torch.zeros(100)
    share(vector, 3)[:] = share(torch.ones(100), 3)
    assert vector.sum() == share(vector, 3).nbytes // 4 > 0


@pytest.mark.parametrize("size", [1, 5, 16, 100])
def test_a_record_is_there_when_the_last_of_it_is(size: int) -> None:
    record, _ = record_of(7, size)
    inbox, _ = inbox_of(size)
    indices = [index for index in range(SHARES) if share(record.vector, index).nbytes]
    give_note(inbox, record)
    for index in reversed(indices[1:]):
        assert give(inbox, record, index) is None
    found = give(inbox, record, indices[0])
    assert found is not None
    assert torch.equal(found.vector, record.vector)
    assert (found.step, found.note, found.mask, found.note.mean_loss) == (7, NOTE, 5, 0.5)


def test_memory_that_somebody_still_writes_to_is_not_used_again() -> None:
    """Two are sending the same share, and the record is there with the first; see `protocol/inbox.py`."""
    record, _ = record_of(7)
    inbox, pool = inbox_of()
    give_note(inbox, record)
    for index in range(1, SHARES):
        give(inbox, record, index)
    slow, quick = inbox.slot(1, head(record, 0)), inbox.slot(2, head(record, 0))
    assert slow is not None and quick is not None
    quick[:] = share(record.vector, 0)
    found = inbox.came(2, head(record, 0), quick)
    assert found is not None and torch.equal(found.vector, record.vector)
    # It is applied, and its vector used for something else, while the other one is still sending.
    assert inbox.pop(7) is found
    del found
    gc.collect()
    other = pool.take().zero_()
    slow[:] = share(record.vector, 0)
    assert inbox.came(1, head(record, 0), slow) is None
    assert not other.any()


def test_where_nobody_does_a_record_has_the_vector_that_it_came_in() -> None:
    record, _ = record_of(7)
    inbox, pool = inbox_of()
    assert inbox.slot(2, head(record, 3)) is not None
    inbox.lost(2)
    give_note(inbox, record)
    found = [give(inbox, record, index) for index in range(SHARES)][-1]
    assert found is not None and torch.equal(found.vector, record.vector)
    assert pool.allocated == 1


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
    note = RecordNote(0.0, 0.0, b"", {}, 1, (0,))
    assert note.mean_loss != note.mean_loss
