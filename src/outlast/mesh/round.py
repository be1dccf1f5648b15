"""The butterfly reduce: one attempt at one step, from one member's side.

The flat gradient is cut into buckets (what goes out while backward still runs), and each bucket into one
slice per member. A member sends slice *i* of its contributions to slice *i*'s owner; the owner adds them up
along the fixed tree and sends the result to everyone:

    contributions ──SCATTER──▶ owner ──fold──▶ result ──RESULT──▶ all members

With one shard per member that moves exactly the bytes of a ring all-reduce, in two hops instead of many.

Where a rule decides what becomes of the contributions, every shard is contributed *apart*, and nothing is
added here: when all parts are in, whoever knows the rule takes the rows, writes the result to its place in
the record and publishes it. See `train/ruling.py`.

Contributions are received into scratch memory and stay as they are until the step is over, so a bucket that
is sent again (its owner was surprised by a late gradient) is simply folded and sent again; whatever comes
last is what counts, since PART and SUM come after it on the same connection. Results are received straight
into the record's own vector.

Beside that, each contribution to the own slice is measured (`squares`), for those who judge it. What they
leave out is told to the round (`left_out`, `replace`), which then reduces again; see `train/court.py`.

A round belongs to one (view, step) and is dropped with it. Frames that are still arriving then end in memory
that nobody looks at any more: a buffer that was handed to a connection is never used for anything else before
its frame has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.memory import bytes_of
from outlast.protocol.kinds import NodeNote, PartNote, RecordNote
from outlast.protocol.step_words import NOTHING_SAID, Verdict
from outlast.protocol.tree import Addition, Node, cover, fold_order, leaf
from outlast.protocol.views import View
from outlast.protocol.wishes import decided

ScatterTo = Callable[[int, int, Node, memoryview, object], None]
"""(owner, bucket, node, memory, keep): send a contribution; `keep` has to live until it has left."""

ResultTo = Callable[[int, memoryview], None]
"""(bucket, memory): send a reduced slice to every other member."""

CELLS_LEAST = 16
CELL_MOST = 1 << 18
"""Enough cells that members can share them fairly, and none so large that a copy of its rows would hurt."""

Merge = Callable[[int, bytes, bytes], bytes]
"""Two values of one integer buffer become one."""


class Plan:
    """What a view means for the reduce; the same for all of its steps."""

    def __init__(
        self,
        view: View,
        replica: int,
        buckets: Sequence[tuple[int, int]],
        *,
        apart: bool = False,
        cells: bool = False,
        screened: int = 0,
    ) -> None:
        """`apart`: every shard is contributed by itself, and not added to others. `cells`: slices are made of
        whole cells, which are the same in every view. `screened`: in so many buckets, from the first one on,
        contributions are measured."""
        self.view = view
        self.screened = screened
        self.apart = apart
        self.replica = replica
        self.owners = view.slices
        self.others = tuple(owner for owner in view.slices if owner != replica)
        held: dict[int, list[int]] = {owner: [] for owner in view.slices}
        for shard, owner in enumerate(view.shards):
            held[owner].append(shard)
        count = len(view.shards)
        self.shards = tuple(held.get(replica, ()))
        self.cover = {
            owner: tuple(map(leaf, shards)) if apart else cover(shards, count)
            for owner, shards in held.items()
        }
        self.holder = {node: owner for owner, nodes in self.cover.items() for node in nodes}
        self.nodes = tuple(sorted(self.holder))
        self.additions: tuple[Addition, ...] = () if apart else fold_order(self.holder, count)
        cut = _cut_at_cells if cells else _cut
        self.bounds = tuple(cut(start, stop, len(view.slices)) for start, stop in buckets)
        self.index = {owner: place for place, owner in enumerate(view.slices)}
        self.results = tuple(
            (owner, bucket)
            for bucket, bounds in enumerate(self.bounds)
            for owner in self.others
            if bounds[self.index[owner]] < bounds[self.index[owner] + 1]
        )
        """By owner and bucket, what comes from others; a slice of nothing does not."""

    def slice_of(self, owner: int, bucket: int) -> tuple[int, int]:
        place = self.index[owner]
        return self.bounds[bucket][place], self.bounds[bucket][place + 1]


def _cut(start: int, stop: int, parts: int) -> tuple[int, ...]:
    return tuple(start + (stop - start) * part // parts for part in range(parts + 1))


def cells_of(start: int, stop: int) -> tuple[int, ...]:
    """The bounds of a bucket's cells. They depend on nothing but the bucket, so what is worked out cell by
    cell is the same whoever does it."""
    return _cut(start, stop, max(CELLS_LEAST, -(-(stop - start) // CELL_MOST)))


def _cut_at_cells(start: int, stop: int, parts: int) -> tuple[int, ...]:
    cells = cells_of(start, stop)
    return tuple(cells[(len(cells) - 1) * part // parts] for part in range(parts + 1))


class Scratch:
    """Memory for contributions, used again from step to step."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._free: dict[int, list[Tensor]] = {}

    def take(self, size: int) -> Tensor:
        free = self._free.get(size)
        return free.pop() if free else torch.empty(size, dtype=self._dtype)

    def give_back(self, tensor: Tensor) -> None:
        self._free.setdefault(tensor.numel(), []).append(tensor)


@dataclass(slots=True)
class _Bucket:
    contributions: dict[Node, Tensor]


class Round:
    """One attempt: (view, step)."""

    def __init__(
        self,
        plan: Plan,
        step: int,
        *,
        scratch: Scratch,
        vector: Callable[[], Tensor],
        scatter: ScatterTo,
        result: ResultTo,
        merge: Merge,
    ) -> None:
        self.plan = plan
        self.step = step
        self._scratch = scratch
        self._vector = vector
        self._scatter = scatter
        self._result = result
        self._merge = merge
        self._record: Tensor | None = None
        self._bytes: memoryview | None = None
        self._buckets = [_Bucket({}) for _ in plan.bounds]
        self._received: dict[tuple[int, Node], Tensor] = {}
        self._in_place: set[tuple[int, int, int]] = set()
        self.trial = 0
        """The trial whose results make the record."""
        self._results: dict[tuple[int, int], int] = {}
        """By owner and bucket, the newest trial whose result has come."""
        self.parts: dict[int, PartNote] = {}
        self.surveys: dict[int, bytes] = {}
        self.whole: NodeNote | None = None
        """What the parts say, taken together; if nobody else decides that, they are added up."""
        self.sent: set[tuple[Node, int]] = set()
        self.flats: dict[Node, Tensor] = {}
        """The own contributions, whole; they are good as long as the attempt is."""
        self.squares: dict[tuple[int, Node], float] = {}
        """The squared norm of the own slice of each contribution, by bucket; not finite if it is not."""
        self.left_out: frozenset[Node] = frozenset()
        """Contributions that do not count."""
        self.named_out: frozenset[Node] = frozenset()
        """Those that the record names as left out: the same, unless the update is skipped anyway."""
        self.norm = 0.0
        """The largest norm among those that do."""
        self._additions = plan.additions
        self._refined: dict[Node, NodeNote] = {}
        self._dissolved: set[Node] = set()

    @property
    def record(self) -> Tensor:
        """The vector that results are collected in."""
        if self._record is None:
            self._record = self._vector()
        return self._record

    def _record_bytes(self, lo: int, hi: int) -> memoryview:
        """Of these elements of it."""
        if self._bytes is None:
            self._bytes = bytes_of(self.record)
        size = self.record.itemsize
        return self._bytes[lo * size : hi * size]

    # What comes in.

    def scatter_slot(self, sender: int, bucket: int, node: Node, size: int) -> memoryview:
        """Where a contribution belongs."""
        self._check_bucket(bucket)
        if self.plan.holder.get(node) != sender:
            raise ProtocolError(f"replica {sender} sends {tuple(node)}, which is not its part of the step")
        lo, hi = self.plan.slice_of(self.plan.replica, bucket)
        memory = self._received.get((bucket, node))
        if memory is None:
            memory = self._received[bucket, node] = self._scratch.take(hi - lo)
        if size != memory.nbytes:
            raise ProtocolError(f"replica {sender} sends {size} bytes for a slice of {memory.nbytes}")
        self._in_place.add((sender, bucket, node.lo))
        return bytes_of(memory)

    def scattered(self, sender: int, bucket: int, node: Node, payload: memoryview) -> None:
        """A contribution has come."""
        if (sender, bucket, node.lo) in self._in_place:
            self._in_place.discard((sender, bucket, node.lo))
        else:
            self.scatter_slot(sender, bucket, node, len(payload))[:] = payload
            self._in_place.discard((sender, bucket, node.lo))
        self._contribute(bucket, node, self._received[bucket, node])

    def result_slot(self, owner: int, bucket: int, size: int) -> memoryview:
        self._check_bucket(bucket)
        if owner not in self.plan.index:
            raise ProtocolError(f"replica {owner} sends a result, but reduces no slice of this view")
        lo, hi = self.plan.slice_of(owner, bucket)
        if size != (hi - lo) * self.record.itemsize:
            raise ProtocolError(f"replica {owner} sends {size} bytes for a slice of {hi - lo} elements")
        self._in_place.add((owner, bucket, -1))
        return self._record_bytes(lo, hi)

    def resulted(self, owner: int, bucket: int, payload: memoryview, trial: int = 0) -> None:
        if (owner, bucket, -1) not in self._in_place:
            self.result_slot(owner, bucket, len(payload))[:] = payload
        self._in_place.discard((owner, bucket, -1))
        self._results[owner, bucket] = trial

    def _check_bucket(self, bucket: int) -> None:
        if bucket >= len(self._buckets):
            raise ProtocolError(f"there is no bucket {bucket}; does the peer have another model?")

    # What goes out.

    def own(self, node: Node, bucket: int, flat: Tensor, keep: object = None) -> None:
        """A bucket of an own contribution is there: to its owners with it. `keep` is what keeps its memory
        from being used for anything else; whoever drops it says that this attempt may be torn."""
        bounds = self.plan.bounds[bucket]
        memory: memoryview | None = None
        itemsize = flat.itemsize
        base = bounds[0]
        for place, owner in enumerate(self.plan.owners):
            lo, hi = bounds[place], bounds[place + 1]
            if lo == hi:
                continue
            if owner == self.plan.replica:
                self._contribute(bucket, node, flat[lo:hi])
                continue
            if memory is None:
                memory = bytes_of(flat[base : bounds[-1]])
            part = memory[(lo - base) * itemsize : (hi - base) * itemsize]
            self._scatter(owner, bucket, node, part, keep)
        self.sent.add((node, bucket))
        self.flats[node] = flat

    def _contribute(self, bucket: int, node: Node, memory: Tensor) -> None:
        state = self._buckets[bucket]
        state.contributions[node] = memory
        if bucket < self.plan.screened:
            # Here, because what has just come is still in the cache.
            self.squares[bucket, node] = torch.dot(memory, memory).item()
        if len(state.contributions) == len(self.plan.holder) and not self.plan.apart:
            self._fold(bucket, state)

    def _fold(self, bucket: int, state: _Bucket) -> None:
        lo, hi = self.plan.slice_of(self.plan.replica, bucket)
        out = self.record[lo:hi]
        fold(state.contributions, self.plan.additions, out)
        self.publish(bucket)

    def refine(self, node: Node, leaves: dict[Node, tuple[NodeNote, Sequence[Tensor | None]]]) -> None:
        """Instead of a contribution, the shards that it is made of count, each by itself: its note, and for
        each bucket the own slice."""
        self._dissolved.add(node)
        for state in self._buckets:
            state.contributions.pop(node, None)
        for one, (note, rows) in leaves.items():
            self._refined[one] = note
            for state, row in zip(self._buckets, rows, strict=True):
                if row is not None:
                    state.contributions[one] = row
        if not self.plan.apart:
            self._additions = fold_order(self.notes(), len(self.plan.view.shards))

    def reduce_again(self) -> None:
        """Add up what counts, and send that."""
        for bucket, state in enumerate(self._buckets):
            lo, hi = self.plan.slice_of(self.plan.replica, bucket)
            if lo < hi:
                counts = {n: row for n, row in state.contributions.items() if n not in self.left_out}
                fold(counts, self._additions, self.record[lo:hi])
                self.publish(bucket)

    def publish(self, bucket: int) -> None:
        """The own slice of this bucket is in the record: to all others with it."""
        if self.plan.others:
            lo, hi = self.plan.slice_of(self.plan.replica, bucket)
            self._result(bucket, self._record_bytes(lo, hi))

    # The end.

    def concluded(self) -> None:
        """All parts are in, so by the order of frames all contributions are, too."""
        for bucket, state in enumerate(self._buckets):
            lo, hi = self.plan.slice_of(self.plan.replica, bucket)
            if lo < hi and len(state.contributions) < len(self.plan.holder):
                missing = sorted(node for node in self.plan.holder if node not in state.contributions)
                raise ProtocolError(
                    f"step {self.step}: all parts are in, but of bucket {bucket} the contributions "
                    f"{[tuple(node) for node in missing]} are not"
                )

    def completed(self) -> None:
        """All sums are in, so by the order of frames all results are, too. Should one be missing, it must not
        go unnoticed: the vector is used again from step to step, so its slice has an older step's numbers."""
        for owner, bucket in self.plan.results:
            if self._results.get((owner, bucket)) != self.trial:
                raise ProtocolError(
                    f"step {self.step}: all sums are in, but of bucket {bucket} the result of replica "
                    f"{owner} is not"
                )

    def rows(self, bucket: int) -> list[Tensor]:
        """The own slice of all contributions, in the order of shards."""
        contributions = self._buckets[bucket].contributions
        return [contributions[node] for node in sorted(contributions)]

    def notes(self) -> dict[Node, NodeNote]:
        """What goes with the contributions."""
        notes = {Node(note.lo, note.hi): note for part in self.parts.values() for note in part.nodes}
        return {node: note for node, note in notes.items() if node not in self._dissolved} | self._refined

    def row(self, bucket: int, node: Node) -> Tensor:
        """The own slice of one contribution."""
        return self._buckets[bucket].contributions[node]

    def _summed_up(self) -> NodeNote:
        notes = {node: note for node, note in self.notes().items() if node not in self.left_out}
        whole = Node(0, len(self.plan.view.shards))
        summed = self.add_notes(notes, self._additions).get(whole)
        return summed or NodeNote(*whole, weight=0.0, loss=0.0, mask=b"", integers={})

    def add_notes(self, notes: dict[Node, NodeNote], additions: Sequence[Addition]) -> dict[Node, NodeNote]:
        """With all sums that these additions lead to; what is missing is nothing."""
        notes = dict(notes)
        for left, right, parent in additions:
            one, other = notes.get(left), notes.get(right)
            if one is not None and other is not None:
                notes[parent] = _added(one, other, self._merge)
            elif (there := one or other) is not None:
                notes[parent] = there
        return notes

    def note(self, verdict: Verdict = NOTHING_SAID) -> RecordNote:
        """What the parts say, added up along the same tree, unless `whole` says it; and what is known of the
        state."""
        save, kept = decided(self.parts, verdict)
        whole = self.whole if self.whole is not None else self._summed_up()
        return RecordNote(
            weight=whole.weight,
            loss=whole.loss,
            mask=whole.mask,
            integers=whole.integers,
            view=self.plan.view.number,
            shards=self.plan.view.shards,
            save=save,
            norm=self.norm,
            left_out=tuple(shard for node in sorted(self.named_out) for shard in range(*node)),
            verdict=verdict,
            kept=kept,
        )

    def release(self) -> None:
        """The step is over and no frame of it is on its way: its scratch memory can be used again."""
        for memory in self._received.values():
            self._scratch.give_back(memory)
        self._received.clear()
        self._buckets.clear()


def fold(contributions: dict[Node, Tensor], additions: Sequence[Addition], out: Tensor) -> None:
    """Add up along the tree into `out`, leaving the contributions as they are. Where some are missing, the
    others are added as if these were nothing."""
    sums = dict(contributions)
    temporary: set[Node] = set()
    for left, right, parent in additions:
        one, other = sums.get(left), sums.get(right)
        if one is None or other is None:
            there, way = (other, right) if one is None else (one, left)
            if there is not None:
                sums[parent] = there
                if way in temporary:
                    temporary.add(parent)
            continue
        if left in temporary:
            target = one
        elif parent.lo == 0:
            # The leftmost branch grows into the root; everything else is added to it sooner or later.
            target = out
        else:
            target = torch.empty_like(out)
        torch.add(one, other, out=target)
        sums[parent] = target
        temporary.add(parent)
    whole = sums.get(additions[-1].parent) if additions else next(iter(sums.values()), None)
    if whole is None:
        out.zero_()
    elif whole is not out:
        out.copy_(whole)


def _added(left: NodeNote, right: NodeNote, merge: Merge) -> NodeNote:
    integers = dict(left.integers)
    for index, value in right.integers.items():
        integers[index] = merge(index, integers[index], value) if index in integers else value
    mask = int.from_bytes(left.mask, "little") | int.from_bytes(right.mask, "little")
    size = max(len(left.mask), len(right.mask))
    return NodeNote(
        lo=left.lo,
        hi=right.hi,
        weight=left.weight + right.weight,
        loss=left.loss + right.loss,
        mask=mask.to_bytes(size, "little"),
        integers=integers,
    )
