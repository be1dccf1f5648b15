"""A model's buffers over one step: every shard starts from the step's own.

A forward pass may change buffers (a BatchNorm's running statistics, a counter). If a shard saw what the shard
before it left behind, the result would depend on who computed what. So the values with which a step begins
are remembered, each shard starts from them, and what the shards made of them is averaged like a gradient.

A buffer has changed if it was written to or has another content: the latter finds what came in by another
tensor, and what was written past autograd's eyes by way of `.data`. One that has not changed in any shard
keeps its bits.

What is remembered is all that a step ever starts from: it is written into the model before each shard, the
first one included, so whatever happens to the model's own buffers between two shards enters nothing. And its
digest, taken when all shards are done, is that of the bits that they started from: memory that has lost a bit
does not find it again (`protocol/verifying.py` says what members do with it).

Most models have many small buffers, and to call torch for each of them takes longer than everything that is
done to them, so they are copied all at once. Some have a few large ones, masks and tables, which training
never changes: a digest of these in every step would cost more than all else, so it is taken once, and again
if somebody has written to them between two steps. A bit that flips in the copy of such a one does what one in
a weight does: it makes gradients of this replica wrong until states are compared, and reaches no other
replica's copy, since nothing is averaged that did not change. From the first shard or result on that changes
it, a large buffer is like any other.
"""

from collections.abc import Sequence

import torch
from blake3 import blake3
from torch import Tensor, nn

from outlast.errors import ConfigError
from outlast.mesh.memory import bytes_of
from outlast.state.entries import entries_of_tensors
from outlast.state.structure import plain_name
from outlast.train.layout import Layout
from outlast.train.sums import from_bytes, raw_bytes

ALIGNED_BYTES = 16
"""Each remembered buffer begins at a multiple of this, which suits all dtypes."""

DIGEST_BYTES = 16

LARGE_BYTES = 1 << 20
"""A buffer of so much is a large one."""


class _Place:
    """One buffer's place in the model; the tensor there may be replaced at any time."""

    saved: Tensor
    """What the step began with."""

    def __init__(self, model: nn.Module, name: str) -> None:
        path, _, self._key = name.rpartition(".")
        self._registry = model.get_submodule(path)._buffers
        self.name = name
        self.own = self.current()
        self._shape = self.own.shape
        self._dtype = self.own.dtype
        self._version = -1
        self.is_large = self.own.nbytes >= LARGE_BYTES
        self.changes = False
        """Whether training has ever changed it."""
        self._digest = b""
        """Of what is remembered, if it is large; empty if that is another by now."""

    @property
    def room_bytes(self) -> int:
        return -(-self.own.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES

    def remember_in(self, memory: Tensor) -> None:
        """From now on, in this memory."""
        self.saved = memory[: self.own.nbytes].view(self._dtype).view(self._shape)
        with torch.no_grad():
            self.saved.copy_(self.own)

    def current(self) -> Tensor:
        buffer = self._registry.get(self._key)
        if buffer is None:
            raise ConfigError(
                f"The buffer {self.name} is gone. Buffers must stay registered while the job runs; to clear "
                "one, fill it with zeros."
            )
        return buffer

    def find(self) -> Tensor:
        """The tensor that is the model's own in the step that begins."""
        # Moving or loading a model between steps replaces its buffers, so look again.
        self.own = self.current()
        if self.own.shape != self._shape or self.own.dtype is not self._dtype:
            raise ConfigError(
                f"The buffer {self.name} became {self.own.dtype} {tuple(self.own.shape)}; it was "
                f"{self._dtype} {tuple(self._shape)} when the job was joined, and members must "
                "agree. Change buffers before joining."
            )
        return self.own

    def remember(self) -> None:
        """By itself, without writing what is there already."""
        if not _same_bits(self.find(), self.saved):
            self.saved.copy_(self.own)
            self._digest = b""

    def digest(self) -> bytes:
        """Of what the step began with."""
        if self.changes or not self._digest:
            self._digest = blake3(bytes_of(self.saved.cpu())).digest(DIGEST_BYTES)
        return self._digest

    def put_back(self) -> None:
        """The model's own tensor is in its place again, with what was just written to it."""
        self._registry[self._key] = self.own
        self._version = self.own._version

    def look(self) -> Tensor:
        """What is there now."""
        now = self.current()
        if now.shape != self._shape:
            raise ConfigError(
                f"The buffer {self.name} changed its shape from {tuple(self._shape)} to "
                f"{tuple(now.shape)} in a shard, so the shards' values can't be merged. Keep its shape."
            )
        return now

    def differs(self, now: Tensor) -> bool:
        """Whether what is there now differs from what the step began with."""
        return now._version != self._version or not _same(now, self.saved)


def _same(one: Tensor, other: Tensor) -> bool:
    """NaN is the same as NaN here: a table that marks its gaps with it has not changed."""
    if other.nbytes >= LARGE_BYTES and _same_bits(one, other):
        return True
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """False also where that cannot be told at once. Words are compared ten times as fast as single bytes."""
    alike = one.dtype is other.dtype and one.device == other.device and not one.is_complex()
    whole = all(t.is_contiguous() and not t.nbytes % 8 and not t.data_ptr() % 8 for t in (one, other))
    return alike and whole and torch.equal(_words(one), _words(other))


def _words(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1).view(torch.int64)


class _Probes:
    """The first number of each float buffer.

    The statistics of a BatchNorm change in every shard, and nothing but their content tells, since torch does
    not count that as writing to them. To compare all of it costs several calls for each of them; but mostly
    one number will do, and all of these can be looked at together. Whatever has the same first number as
    before has to be compared in whole."""

    def __init__(self, layout: Layout, places: Sequence[_Place]) -> None:
        fit = {
            index: place
            for index, place in enumerate(places, layout.parameter_count)
            if place.own.dtype is layout.dtype and place.own.is_cpu and place.own.numel()
        }
        self._indices = list(fit)
        self._saved = [place.saved.view(-1)[:1] for place in fit.values()]
        self._places = torch.tensor([layout.entries[index].span.start for index in fit], dtype=torch.int64)

    def differing(self, flat: Tensor) -> int:
        """The mask of those that are another number in this vector than when the step began."""
        if not self._indices:
            return 0
        before = torch.cat(self._saved).tolist()
        now = flat.index_select(0, self._places).tolist()
        mask = 0
        for index, one, other in zip(self._indices, before, now, strict=True):
            # NaN is the same as NaN, and different from itself.
            if one != other and (one == one or other == other):
                mask |= 1 << index
        return mask


class StepBuffers:
    """All buffers of a model, for one step after another."""

    def __init__(self, layout: Layout, model: nn.Module) -> None:
        self._floats = [_Place(model, entry.name) for entry in layout.float_entries]
        self._integers = [_Place(model, integer.name) for integer in layout.integers]
        self._all = self._floats + self._integers
        self._large = [place for place in self._all if place.is_large]
        self._small = [place for place in self._all if not place.is_large]
        self._memory = _make_room(self._small)
        for place in self._large:
            _make_room([place])
        self._saved = [place.saved for place in self._all]
        self._saved_small = [place.saved for place in self._small]
        self._layout = layout
        self._first = layout.parameter_count
        self._probes = _Probes(layout, self._floats)
        # Also as a tensor: torch takes longer to wrap a number than to multiply by it.
        self._factor = 0.0
        self._factor_tensor = torch.zeros((), dtype=layout.dtype)
        self._touched = False
        self._remembered = False
        """Whether what is saved is what the present step began with."""

    def remember(self) -> None:
        """These are the buffers of the step that begins."""
        if self._all:
            with torch.no_grad():
                if self._small:
                    torch._foreach_copy_(self._saved_small, [place.find() for place in self._small])
                for place in self._large:
                    place.remember()
            self._touched, self._remembered = False, True

    def begin_shard(self) -> None:
        """Undo what any shard before did, or whatever else has happened to them."""
        if self._all:
            self._put(self._all, self._saved)
            self._touched = True

    def end_shard(self, weight: float, flat: Tensor) -> tuple[int, dict[int, bytes]]:
        """Write the shard's float buffers, times its weight, to their places in the vector. Returns the mask
        of those that changed, and the integer buffers that changed. Without weight a shard has no say in
        either."""
        if not self._all:
            return 0, {}
        if weight == 0:
            if self._floats:
                self._layout.bucket_views(flat)[-1].zero_()
            return 0, {}
        with torch.no_grad():
            return self._write_floats(weight, flat), self._changed_integers()

    def digest(self) -> bytes:
        """Of what the present step began with; empty if there are no buffers."""
        if not self._all:
            return b""
        digest = blake3()
        for memory in self._memory:
            digest.update(bytes_of(memory.cpu()))
        for place in self._large:
            digest.update(place.digest())
        return digest.digest(DIGEST_BYTES)

    def entries(self) -> bytes:
        """The same, each buffer by itself and by name."""
        return entries_of_tensors("buffers", [(plain_name(p.name), p.digest()) for p in self._all])

    def saved(self) -> dict[int, Tensor]:
        """The buffers in the model, by their `id`, and what they were when the step began: copies that stay
        as they are to its end. Empty between two steps, where the buffers themselves are what counts."""
        return {id(place.current()): place.saved for place in self._all} if self._remembered else {}

    def take(self, views: list[Tensor], mask: int, integers: dict[int, bytes]) -> None:
        """The step's result: what changed in any shard is set, all else is what the step began with."""
        if not self._all:
            return
        results = {place: views[i] for i, place in enumerate(self._floats, self._first) if mask >> i & 1}
        for index, place in enumerate(self._integers):
            if index in integers:
                results[place] = from_bytes(integers[index], place.saved.dtype).view(place.saved.shape)
        for place in results:
            place.changes = True
        if self._touched:
            self._put(self._all, [results.get(place, place.saved) for place in self._all])
        else:
            self._put(list(results), list(results.values()))
        self._touched = self._remembered = False

    def _put(self, places: list[_Place], values: list[Tensor]) -> None:
        if places:
            with torch.no_grad():
                torch._foreach_copy_([place.own for place in places], values)
        for place in places:
            place.put_back()

    def _write_floats(self, weight: float, flat: Tensor) -> int:
        if not self._floats:
            return 0
        found = [place.look() for place in self._floats]
        torch._foreach_copy_(self._layout.views(flat)[self._first :], found)
        mask = self._probes.differing(flat)
        for index, (place, now) in enumerate(zip(self._floats, found, strict=True), self._first):
            if mask >> index & 1 or place.differs(now):
                mask |= 1 << index
                place.changes = True
        if weight != self._factor:
            self._factor = weight
            self._factor_tensor.fill_(weight)
        self._layout.bucket_views(flat)[-1].mul_(self._factor_tensor)
        return mask

    def _changed_integers(self) -> dict[int, bytes]:
        integers: dict[int, bytes] = {}
        for index, place in enumerate(self._integers):
            now = place.look()
            if place.differs(now):
                place.changes = True
                integers[index] = raw_bytes(_mergeable(place, now))
        return integers


def _make_room(places: Sequence[_Place]) -> list[Tensor]:
    """Memory in which these buffers are remembered: one piece where all are on one device, so that a digest
    takes one call and not one for each; the same bytes in any case."""
    if len({place.own.device for place in places}) > 1:
        return [memory for place in places for memory in _make_room([place])]
    if not places:
        return []
    rooms = [place.room_bytes for place in places]
    memory = torch.zeros(sum(rooms), dtype=torch.uint8, device=places[0].own.device)
    begin = 0
    for place, room in zip(places, rooms, strict=True):
        place.remember_in(memory[begin : begin + room])
        begin += room
    return [memory]


def _mergeable(place: _Place, now: Tensor) -> Tensor:
    if now.is_complex():
        raise ConfigError(
            f"The complex buffer {place.name} changed in a shard, and there is no way to merge the shards' "
            "values. Register its real and imaginary part as two buffers."
        )
    return now.to(place.saved.dtype)
