"""A step's contributions before their judges: numbers first, and second opinions where these raise a doubt.

A court belongs to one round, and so to one (view, step). When all sums are in, it `examine`s the numbers that
came with them. If something is doubted, or audited, there is a hearing: members who are called compute
contributions again and send them to the owners of slices (`testify`), and senders give audited slices to
their auditors. Owners and auditors `look` at that and tell everybody what they found, and from that all come
to the same verdict (`conclude`).

A contribution may be the sum of several shards. Witnesses show each shard by itself, and their sum is
compared. So if data is at fault, only the shards are left out whose data it is, whoever held what beside
them, and the result is the same whoever they are.

Everything that decides is in `protocol/hearing.py` and `train/screening.py`; here are the tensors. Used under
the engine's lock.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from outlast.errors import ProtocolError
from outlast.mesh.memory import bytes_of
from outlast.mesh.round import Round, fold
from outlast.protocol import hearing
from outlast.protocol.kinds import FindingsNote, NodeNote, PartNote
from outlast.protocol.tree import Node, additions_within, leaf
from outlast.train.layout import Layout
from outlast.train.screening import Screening
from outlast.train.sums import NodeSum, raw_bytes

Reduce = Callable[[int, int, dict[Node, Tensor], Tensor], None]
"""(owner, bucket, contributions, out): what the owner of this slice does with them."""

Show = Callable[[int, int, int, Node, memoryview, Tensor], None]
"""(member, place, bucket, node, memory, whole): send a part of `whole` to who hears it."""

DIGEST_BYTES = 16

_NOTHING = hearing.Hearing()


class Court:
    def __init__(
        self, round_: Round, layout: Layout, screening: Screening, reduce: Reduce, show: Show
    ) -> None:
        self._round = round_
        self._layout = layout
        self._screening = screening
        self._reduce = reduce
        self._show = show
        self._plan = round_.plan
        self._me = round_.plan.replica
        self._numbers: dict[int, tuple[float, ...]] = {}
        self._limit = math.inf
        self._norms: dict[Node, float] = {}
        self.hearing = _NOTHING
        self._evidence: dict[tuple[int, int, Node], dict[int, Tensor]] = {}
        """What was shown here, by place of the slice, sender and contribution; for each bucket its part."""
        self.parts: dict[int, PartNote] = {}
        self._findings: dict[int, FindingsNote] = {}
        self._bad: set[Node] = set()
        """Shards that a hearing has found not to be sane, whoever computes them."""

    # Numbers.

    def measure(self) -> None:
        """All contributions are there: the squared norms of their own slice."""
        squares = self._round.squares
        numbers = [
            sum([squares.get((bucket, node), 0.0) for bucket in range(self._plan.screened)])
            for node in self._plan.nodes
        ]
        if self._plan.screened < len(self._plan.bounds):
            notes = self._round.notes()
            for place, node in enumerate(self._plan.nodes):
                numbers[place] += self._buffers_are_sane(self._version(node), notes[node])
        self._numbers[self._me] = tuple(numbers)

    @property
    def numbers(self) -> bytes:
        """What goes with the own sum."""
        return struct.pack(f"<{len(self._plan.holder)}d", *self._numbers[self._me])

    def take_numbers(self, sender: int, payload: bytes) -> None:
        if len(payload) != 8 * len(self._plan.holder):
            raise ProtocolError(f"replica {sender} sends {len(payload)} bytes of numbers, which does not fit")
        self._numbers[sender] = struct.unpack(f"<{len(self._plan.holder)}d", payload)

    def _buffers_are_sane(self, rows: Sequence[Tensor | None], note: NodeNote) -> float:
        """0, or NaN if a float buffer that the contribution changes is not finite. Others may be anything: a
        mask of infinities is nobody's fault."""
        for bucket in range(self._plan.screened, len(rows)):
            row = rows[bucket]
            if row is None or torch.dot(row, row).isfinite():
                continue
            lo, hi = self._plan.slice_of(self._me, bucket)
            mask = int.from_bytes(note.mask, "little")
            for index, entry in enumerate(self._layout.float_entries, start=self._layout.parameter_count):
                start, stop = max(lo, entry.span.start), min(hi, entry.span.stop)
                if mask >> index & 1 and start < stop and not row[start - lo : stop - lo].isfinite().all():
                    return math.nan
        return 0.0

    def examine(self, seed: int) -> bool:
        """All sums are in: whether there has to be a hearing."""
        notes = self._round.notes()
        numbers = [self._numbers[owner] for owner in self._plan.owners]
        for node, *squares in zip(self._plan.nodes, *numbers, strict=True):
            self._norms[node] = _norm(sum(squares), notes[node])
        self._limit = self._screening.limit(self._norms.values())
        self._accept(self._norms)
        # This is what every step comes to, so it takes no longer than that.
        if self._round.norm <= self._limit and not self._screening.audit and self._round.norm < math.inf:
            return False
        doubted = self._screening.doubts(self._norms)
        audited: list[Node] = []
        owners: list[int] = []
        if not doubted:
            audited, owners = self._screening.audited(
                seed,
                self._round.step,
                self._plan.nodes,
                [owner for owner in self._plan.owners if self._owns(owner)],
            )
        if not doubted and not audited:
            return False
        members = [member.replica for member in self._plan.view.members]
        self.hearing = hearing.call(
            members, self._plan.holder, doubted=doubted, audited=audited, owners=owners
        )
        return True

    def _accept(self, nodes: Iterable[Node]) -> None:
        self._round.norm = max((self._norms[node] for node in nodes), default=0.0)

    def _owns(self, owner: int) -> bool:
        return any(lo < hi for lo, hi in self._bounds(owner))

    def _bounds(self, owner: int) -> list[tuple[int, int]]:
        return [self._plan.slice_of(owner, bucket) for bucket in range(len(self._plan.bounds))]

    # The hearing.

    @property
    def asked(self) -> list[Node]:
        """The shards that this replica is to compute again."""
        return [one for node in self.hearing.of(self._me) for one in _leaves(node)]

    def testify(self, opinions: Sequence[NodeSum], notes: Sequence[NodeNote]) -> None:
        """Send the opinions that were asked for to the owners of slices, and audited slices to auditors."""
        for opinion in opinions:
            for owner in self._plan.owners:
                self._give(owner, owner, opinion.node, opinion.flat)
        for owner, auditors in self.hearing.auditors.items():
            for auditor in auditors:
                if auditor != owner:
                    for node in self._plan.cover[self._me]:
                        self._give(auditor, owner, node, self._round.flats[node])
        self.parts[self._me] = PartNote(nodes=tuple(notes))

    def _give(self, to: int, owner: int, node: Node, flat: Tensor) -> None:
        place = self._plan.index[owner]
        for bucket, (lo, hi) in enumerate(self._bounds(owner)):
            if lo == hi:
                continue
            if to == self._me:
                self._evidence.setdefault((place, self._me, node), {})[bucket] = flat[lo:hi]
            else:
                self._show(to, place, bucket, node, bytes_of(flat[lo:hi]), flat)

    def slot(self, sender: int, place: int, bucket: int, node: Node, size: int) -> memoryview:
        """Where something that is shown here belongs."""
        known = node in self._plan.holder or (node.size == 1 and node.hi <= len(self._plan.view.shards))
        if bucket >= len(self._plan.bounds) or place >= len(self._plan.owners) or not known:
            raise ProtocolError(f"replica {sender} shows something in a hearing that there is not")
        lo, hi = self._plan.slice_of(self._plan.owners[place], bucket)
        rows = self._evidence.setdefault((place, sender, node), {})
        memory = rows.get(bucket)
        if memory is None:
            memory = rows[bucket] = torch.empty(hi - lo, dtype=self._layout.dtype)
        if size != memory.nbytes:
            raise ProtocolError(f"replica {sender} shows {size} bytes of a slice of {memory.nbytes}")
        return bytes_of(memory)

    def shown(self, sender: int, place: int, bucket: int, node: Node, payload: memoryview) -> None:
        # Most have been received into their place already, where this changes nothing.
        self.slot(sender, place, bucket, node, len(payload))[:] = payload

    def look(self) -> None:
        """All that is shown is there: what this member finds in it."""
        notes = self._opinion_notes()
        versions, squares = [], []
        for node in sorted(self.hearing.witnesses):
            first = self._version(node)
            shown = [self._shown_by(witness, node) for witness in self.hearing.witnesses[node]]
            versions.append(_numbered([first, *(self._added_up(node, leaves) for leaves in shown)]))
            squares.append(
                tuple(
                    self._square(rows) + self._buffers_are_sane(rows, notes[witness, one])
                    for witness, leaves in zip(self.hearing.witnesses[node], shown, strict=True)
                    for one, rows in leaves.items()
                )
            )
        audited = [owner for owner, some in self.hearing.auditors.items() if self._me in some]
        findings = FindingsNote(
            versions=tuple(versions),
            squares=tuple(squares),
            held={owner: self._digest_held(owner) for owner in self.hearing.auditors},
            reduced={owner: self._digest_reduced(owner) for owner in audited},
        )
        self._findings[self._me] = findings

    @property
    def findings(self) -> FindingsNote:
        """The own ones."""
        return self._findings[self._me]

    def take_findings(self, sender: int, findings: FindingsNote) -> None:
        self._findings[sender] = findings

    def _opinion_notes(self) -> dict[tuple[int, Node], NodeNote]:
        notes = {
            (sender, Node(note.lo, note.hi)): note
            for sender, part in self.parts.items()
            for note in part.nodes
        }
        for node, witnesses in self.hearing.witnesses.items():
            for witness in witnesses:
                if any((witness, one) not in notes for one in _leaves(node)):
                    raise ProtocolError(f"replica {witness} did not compute {hearing.named(node)} again")
        return notes

    def _version(self, node: Node) -> list[Tensor | None]:
        """The own slice of a contribution as it was sent, for each bucket."""
        return [
            self._round.row(bucket, node) if lo < hi else None
            for bucket, (lo, hi) in enumerate(self._bounds(self._me))
        ]

    def _shown_by(self, witness: int, node: Node) -> dict[Node, list[Tensor | None]]:
        """The same of each shard of a contribution, as a witness has computed it."""
        place = self._plan.index[self._me]
        leaves: dict[Node, list[Tensor | None]] = {}
        for one in _leaves(node):
            shown = self._evidence.get((place, witness, one), {})
            rows = [
                shown.get(bucket) if lo < hi else None
                for bucket, (lo, hi) in enumerate(self._bounds(self._me))
            ]
            if sum(row is not None for row in rows) < sum(lo < hi for lo, hi in self._bounds(self._me)):
                raise ProtocolError(f"replica {witness} did not show {hearing.named(one)}")
            leaves[one] = rows
        return leaves

    def _added_up(self, node: Node, leaves: dict[Node, list[Tensor | None]]) -> list[Tensor | None]:
        additions = additions_within(node, len(self._plan.view.shards))
        rows: list[Tensor | None] = []
        for bucket, (lo, hi) in enumerate(self._bounds(self._me)):
            if lo == hi:
                rows.append(None)
                continue
            out = torch.empty(hi - lo, dtype=self._layout.dtype)
            fold(
                {one: row for one, some in leaves.items() if (row := some[bucket]) is not None},
                additions,
                out,
            )
            rows.append(out)
        return rows

    def _square(self, rows: Sequence[Tensor | None]) -> float:
        return sum(torch.dot(row, row).item() for row in rows[: self._plan.screened] if row is not None)

    def _digest_held(self, owner: int) -> bytes:
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for lo, hi in self._bounds(owner):
            found.update(raw_bytes(self._round.record[lo:hi]))
        return found.digest()

    def _digest_reduced(self, owner: int) -> bytes:
        """Do what the owner has done. Its survey is believed: what is audited is what was made of it."""
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for bucket, (lo, hi) in enumerate(self._bounds(owner)):
            if lo < hi:
                out = torch.empty(hi - lo, dtype=self._layout.dtype)
                self._reduce(owner, bucket, self._contributions(owner, bucket), out)
                found.update(raw_bytes(out))
        return found.digest()

    def _contributions(self, owner: int, bucket: int) -> dict[Node, Tensor]:
        if owner == self._me:
            return {node: self._round.row(bucket, node) for node in self._plan.nodes}
        place = self._plan.index[owner]
        found = {}
        for node, sender in self._plan.holder.items():
            row = self._evidence.get((place, sender, node), {}).get(bucket)
            if row is None:
                raise ProtocolError(f"replica {sender} did not show {hearing.named(node)} for an audit")
            found[node] = row
        return found

    # What comes of it.

    def conclude(self) -> hearing.Verdict:
        """All findings are in: the same verdict for everybody. The round knows what counts from here on."""
        notes = self._opinion_notes()
        verdict = hearing.Verdict()
        for place, node in enumerate(sorted(self.hearing.witnesses)):
            self._check_findings(place, node)
            self._hear(verdict, place, node, notes)
        for owner in self.hearing.auditors:
            held = {sender: one.held.get(owner, b"") for sender, one in self._findings.items()}
            reduced = {sender: one.reduced.get(owner, b"") for sender, one in self._findings.items()}
            hearing.audit(verdict, owner, self.hearing, held, reduced)
        self._tell_round(verdict)
        return verdict

    def _hear(
        self,
        verdict: hearing.Verdict,
        place: int,
        node: Node,
        notes: dict[tuple[int, Node], NodeNote],
    ) -> None:
        witnesses = self.hearing.witnesses[node]
        found = [self._findings[owner] for owner in self._plan.owners]
        said = [self._round.notes()[node], *(self._note(node, witness, notes) for witness in witnesses)]
        same = [
            (*(one.versions[place][version] for one in found), _told(note))
            for version, note in enumerate(said)
        ]
        shards = [(witness, one) for witness in witnesses for one in _leaves(node)]
        norms = {
            shard: _norm(sum(one.squares[place][index] for one in found), notes[shard])
            for index, shard in enumerate(shards)
        }
        sane = {shard: math.isfinite(norm) and norm <= self._limit for shard, norm in norms.items()}
        hearing.hear(
            verdict,
            node,
            self.hearing,
            self._plan.holder[node],
            [same.index(one) for one in same],
            # What was sent first is doubted for its own norm; that is not asked again.
            [node not in self.hearing.doubted]
            + [all(sane[witness, one] for one in _leaves(node)) for witness in witnesses],
            exact=self._screening.exact,
        )
        if node in verdict.left_out or node in verdict.replaced:
            self._refine(node, witnesses[0], notes)
            for one in _leaves(node):
                self._norms[one] = norms[witnesses[0], one]
            bad = [one for one in _leaves(node) if not sane[witnesses[0], one]]
            if node in verdict.left_out:
                self._bad.update(bad or _leaves(node))

    def _note(self, node: Node, witness: int, notes: dict[tuple[int, Node], NodeNote]) -> NodeNote:
        """What goes with the contribution of a witness: that of its shards, added up."""
        additions = additions_within(node, len(self._plan.view.shards))
        leaves = {one: notes[witness, one] for one in _leaves(node)}
        return self._round.add_notes(leaves, additions)[node]

    def _refine(self, node: Node, witness: int, notes: dict[tuple[int, Node], NodeNote]) -> None:
        shown = self._shown_by(witness, node)
        self._norms.pop(node, None)
        self._round.refine(node, {one: (notes[witness, one], rows) for one, rows in shown.items()})

    def _tell_round(self, verdict: hearing.Verdict) -> None:
        self._round.named_out = frozenset(self._bad)
        if self._screening.keeps_update(self._bad, set(self._norms)):
            verdict.left_out = []
            return
        self._round.left_out = frozenset(self._bad)
        self._accept(self._norms.keys() - self._bad)

    def _check_findings(self, place: int, node: Node) -> None:
        versions = 1 + len(self.hearing.witnesses[node])
        squares = len(self.hearing.witnesses[node]) * node.size
        for sender, one in self._findings.items():
            fits = len(one.versions) > place and len(one.squares) > place
            if not fits or (len(one.versions[place]), len(one.squares[place])) != (versions, squares):
                raise ProtocolError(f"replica {sender} has findings that do not fit the hearing")


def _leaves(node: Node) -> list[Node]:
    return [leaf(shard) for shard in range(*node)]


def _norm(square: float, note: NodeNote) -> float:
    return math.sqrt(square) / (note.weight or 1.0) if math.isfinite(square) else math.inf


def _numbered(versions: Sequence[Sequence[Tensor | None]]) -> tuple[int, ...]:
    """Equal numbers for equal bits: each version has the number of the first one that is the same."""
    return tuple(
        next(
            place
            for place, earlier in enumerate(versions)
            if place == index or all(_same_bits(*pair) for pair in zip(earlier, version, strict=True))
        )
        for index, version in enumerate(versions)
    )


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return True
    as_int = torch.int64 if one.dtype is torch.float64 else torch.int32
    bits, others = one.view(as_int), other.view(as_int)
    if torch.equal(bits, others):
        return True
    # One NaN is as good as another: which of them an addition hands on is up to the compiler.
    differ = bits != others
    return bool((one.isnan() & other.isnan())[differ].all())


def _told(note: NodeNote) -> tuple[object, ...]:
    """What a note says, as something that can be compared: NaN is not equal to itself."""
    loss = struct.pack("<d", note.loss) if note.loss == note.loss else b"NaN"
    return struct.pack("<d", note.weight), loss, note.mask, tuple(sorted(note.integers.items()))
