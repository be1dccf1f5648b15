"""Records: the results of steps, kept for those who lack them, and put together from what others send.

A record is immutable from the moment it exists. Whoever sends one keeps it alive by a reference, so its
vector is used again only when the last frame that was made of it has left.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import SHARES, RecordNote, Way
from outlast.mesh.memory import bytes_of
from outlast.train.flats import FlatPool

INBOX_MOST = 256
"""Records that a learner holds before it has the state to apply them to."""


class Record:
    """The sum of all shards' gradients and buffers, times their weights, and what belongs to it."""

    def __init__(self, step: int, vector: Tensor, note: RecordNote, pool: FlatPool) -> None:
        self.step = step
        self.vector = vector
        self.note = note
        weakref.finalize(self, pool.give_back, vector)

    @property
    def mask(self) -> int:
        return int.from_bytes(self.note.mask, "little")

    @property
    def loss(self) -> float:
        """The weighted mean of the shards' losses."""
        return self.note.loss / self.note.weight if self.note.weight else float("nan")

    def share(self, index: int) -> memoryview:
        """One of the `SHARES` parts in which a record travels."""
        lo, hi = share_bounds(self.vector.numel(), index)
        return bytes_of(self.vector[lo:hi])


def share_bounds(size: int, index: int) -> tuple[int, int]:
    return size * index // SHARES, size * (index + 1) // SHARES


class _Arriving:
    def __init__(self, vector: Tensor) -> None:
        self.vector = vector
        self.note: RecordNote | None = None
        self.shares = {
            index
            for index in range(SHARES)
            if share_bounds(vector.numel(), index)[0] == share_bounds(vector.numel(), index)[1]
        }

    @property
    def complete(self) -> bool:
        return self.note is not None and len(self.shares) == SHARES


class _UnderWay(NamedTuple):
    """A share that is being received: in its place, or aside if another member is sending the same."""

    entry: _Arriving
    number: int
    place: memoryview
    memory: memoryview


class Inbox:
    """Records on their way to this replica.

    A stable record is a fact, whoever sends it and in whichever view, so its shares may come from many. Any
    other counts in one view only, and its shares are kept apart from those of every other.

    Receiving a share takes a while, and much may happen meanwhile: the record may be void, or begun again, or
    complete, because another member has sent the same share. So each sender's share under way is known.
    """

    def __init__(self, pool: FlatPool) -> None:
        self._pool = pool
        self._arriving: dict[tuple[int, int], _Arriving] = {}
        self._under_way: dict[int, _UnderWay] = {}
        """By sender, who sends one frame after the other."""

    def clear(self) -> None:
        # Not given back to the pool: frames may still be arriving in them.
        self._arriving.clear()

    def keep_stable(self) -> None:
        """A view has ended: what counted in it alone is void."""
        self._arriving = {key: entry for key, entry in self._arriving.items() if key[1] == 0}

    def drop_after(self, step: int) -> None:
        """What is arriving of later steps is void."""
        self._arriving = {key: entry for key, entry in self._arriving.items() if key[0] <= step}

    def drop_until(self, step: int) -> None:
        """What is arriving of this step, and of those before it, is not needed any more."""
        if self._arriving:
            self._arriving = {key: entry for key, entry in self._arriving.items() if key[0] > step}

    def lost(self, sender: int) -> None:
        """The connection to it is gone, and with it the share that was under way."""
        self._under_way.pop(sender, None)

    def slot(self, sender: int, header: Header) -> memoryview | None:
        """Where a share belongs; None if it is not needed (any more)."""
        self._under_way.pop(sender, None)
        entry = self._entry(header)
        if entry is None or header.lo in entry.shares:
            return None
        lo, hi = share_bounds(entry.vector.numel(), header.lo)
        if header.lo >= SHARES or header.size != (hi - lo) * entry.vector.itemsize:
            raise ProtocolError(f"share {header.lo} of the record of step {header.step} has a wrong size")
        place = bytes_of(entry.vector[lo:hi])
        twice = any(one.entry is entry and one.number == header.lo for one in self._under_way.values())
        memory = memoryview(bytearray(header.size)) if twice else place
        self._under_way[sender] = _UnderWay(entry, header.lo, place, memory)
        return memory

    def arrived(self, sender: int, header: Header, note: RecordNote | None) -> Record | None:
        """A share (or, with `note`, the note) is there. Returns the record if that was the last of it."""
        if note is not None:
            entry = self._entry(header)
            if entry is None:
                return None
            entry.note = note
        else:
            share = self._under_way.pop(sender, None)
            if share is None or self._arriving.get(_key(header)) is not share.entry:
                return None
            entry = share.entry
            if share.number not in entry.shares and share.memory is not share.place:
                share.place[:] = share.memory
            entry.shares.add(share.number)
        if not entry.complete:
            return None
        assert entry.note is not None
        del self._arriving[_key(header)]
        return Record(header.step, self._let_go(entry), entry.note, self._pool)

    def _let_go(self, entry: _Arriving) -> Tensor:
        """The vector of a record that is complete. Where somebody still writes to it, a copy: this one must
        not be used for anything else."""
        if all(one.entry is not entry for one in self._under_way.values()):
            return entry.vector
        vector = self._pool.take()
        vector.copy_(entry.vector)
        return vector

    def _entry(self, header: Header) -> _Arriving | None:
        entry = self._arriving.get(_key(header))
        if entry is None:
            if len(self._arriving) >= INBOX_MOST:
                return None
            entry = self._arriving[_key(header)] = _Arriving(self._pool.take())
        return entry


def _key(header: Header) -> tuple[int, int]:
    return header.step, 0 if header.flags == Way.STABLE else header.view
