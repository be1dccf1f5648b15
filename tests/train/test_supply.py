"""What a replica is given: stable records are facts, all others count in the view in which they were sent."""

import torch

from outlast.mesh.frames import Header
from outlast.mesh.kinds import SHARES, Kind, RecordNote, Way, encode
from outlast.train.flats import FlatPool
from outlast.train.records import Record
from outlast.train.supply import Supply

SENDER = 1
SIZE = 64


def head(kind: Kind, step: int, way: Way, view: int) -> Header:
    return Header(kind, flags=way, view=view, step=step)


def give(supply: Supply, step: int, way: Way, view: int, value: float) -> Record | None:
    """A whole record that is the same number everywhere."""
    note = RecordNote(weight=1.0, loss=0.0, mask=b"", integers={}, view=view, shards=(0,))
    supply.came(SENDER, head(Kind.NOTE, step, way, view), memoryview(encode(note)))
    record = None
    for index in range(SHARES):
        header = head(Kind.SHARE, step, way, view)._replace(lo=index, size=4 * SIZE // SHARES)
        memory = supply.slot(SENDER, header)
        assert memory is not None
        memory[:] = memoryview(torch.full((SIZE // SHARES,), value).numpy()).cast("B")
        record = supply.came(SENDER, header, memory)
    return record


def taken(supply: Supply, step: int) -> float | None:
    record = supply.take(step)
    return None if record is None else float(record.vector[0])


def made() -> Supply:
    return Supply(FlatPool(SIZE, torch.float32))


def test_what_was_given_in_a_view_is_void_in_the_next() -> None:
    """Nobody took it, and the step was done again: perhaps with other bits."""
    supply = made()
    assert give(supply, 7, Way.HANDED, view=3, value=1.0) is not None
    supply.adopt(4, anew=False)
    assert taken(supply, 7) is None


def test_a_stable_record_outlasts_views() -> None:
    supply = made()
    give(supply, 7, Way.STABLE, view=3, value=1.0)
    supply.adopt(4, anew=False)
    assert taken(supply, 7) == 1.0


def test_a_record_that_was_asked_for_is_taken_though_a_stable_one_lies_there() -> None:
    """Whoever asked may have forgotten that one; and waits."""
    supply = made()
    give(supply, 7, Way.STABLE, view=3, value=1.0)
    assert not supply.wants(head(Kind.NOTE, 7, Way.STABLE, view=3), view=4, newest=6)
    assert supply.wants(head(Kind.NOTE, 7, Way.WHOLE, view=4), view=4, newest=6)
    give(supply, 7, Way.WHOLE, view=4, value=2.0)
    assert taken(supply, 7) == 2.0
    assert taken(supply, 7) is None, "both are gone"


def test_going_back_forgets_all_records() -> None:
    supply = made()
    give(supply, 7, Way.STABLE, view=3, value=1.0)
    give(supply, 8, Way.WHOLE, view=3, value=1.0)
    supply.go_back(view=4)
    assert taken(supply, 7) is None
    assert taken(supply, 8) is None


def test_what_came_with_a_later_state_is_not_kept() -> None:
    """Records of steps that the state includes: whole ones, and others of which the rest is not wanted."""
    pool = FlatPool(SIZE, torch.float32)
    supply = Supply(pool)
    give(supply, 5, Way.STABLE, view=3, value=1.0)
    header = head(Kind.SHARE, 6, Way.STABLE, view=3)._replace(lo=0, size=4 * SIZE // SHARES)
    memory = supply.slot(SENDER, header)
    assert memory is not None
    supply.came(SENDER, header, memory)
    give(supply, 8, Way.STABLE, view=3, value=2.0)
    assert supply.take(7) is None
    assert set(supply._offered) == {8}
    assert not supply._inbox._arriving
    assert taken(supply, 8) == 2.0


def test_records_of_a_lineage_that_is_over_are_nothing_to_go_on_from() -> None:
    """Its steps are done anew: the record of one must not be taken for that of the other."""
    supply = made()
    give(supply, 1, Way.STABLE, view=3, value=1.0)
    supply.adopt(5, anew=True)
    assert taken(supply, 1) is None
    assert not supply.wants(head(Kind.NOTE, 1, Way.STABLE, view=4), view=5, newest=-1), "nor what is late"
    assert supply.wants(head(Kind.NOTE, 1, Way.STABLE, view=5), view=6, newest=-1)
