"""A rule at work in a step: every shard has one voice, and the rule decides what comes of them.

The plain mean is a sum that can be made anywhere, in pieces, while backward still runs. A rule needs to see
every contribution by itself, so with one each shard is sent apart (see `mesh/round.py`), and the owner of a
slice takes its rows when all parts are in. It is then that weights are known: a shard may have several
losses, and its buckets leave before the last of them is counted. So what travels is the same as ever, the
gradient times its weight, and the owner divides by the weight that its sender claims. A wrong claim spoils
the sender's own row and no other. Where a rule weighs shards, none counts more than the median shard.

What comes out is the update itself, so the record's weight is 1. Each shard has one voice:

- *Gradients*: a shard that did not use a parameter has a row of zeros there. A parameter that no shard says
  it used has no gradient at all.
- *Float buffers* lie behind the gradients in the same vector, and the *loss* is one more number. A rule that
  looks at each coordinate by itself is applied to them as well. One that compares whole contributions is
  not: buffers must not drown what gradients say, and whoever sends a fair gradient may still send foul
  buffers. There they are the median.
- *Integer buffers* are the lower median, per element, of the shards that changed them: one of their values.

Shards without samples have the weight 0, and no voice. Where more contributions are not finite than the rule
withstands, neither is the update.

Rules that compare whole contributions need a *survey* of all slices first, a matrix of V by V numbers, which
is added up over slices. Slices change with the members, and sums of floats with their brackets: so gradients
are cut into *cells* that never change, slices are made of whole cells, and surveys are made for each cell
and added in the order of cells. A rule that starts from its last result finds it in `centre.py`.

So the bits are the same on every member and for every assignment: coordinates by themselves depend on the
rows' values there and on nothing else, and all else is worked out cell by cell.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import torch
from torch import Tensor

from outlast.errors import ConfigError, ProtocolError
from outlast.mesh.round import Plan as RoundPlan
from outlast.mesh.round import Round, cells_of
from outlast.protocol.kinds import NodeNote, PartNote
from outlast.protocol.tree import Node
from outlast.rules import Mean, Median, Plan, Rule, Stage, eager
from outlast.train.centre import Centre
from outlast.train.layout import IntegerBuffer, Layout
from outlast.train.sampling import SampleOrder
from outlast.train.sums import from_bytes, raw_bytes

log = logging.getLogger(__name__)

PIECE = 1 << 18
"""Coordinates that are divided and ruled on at a time, so that no second copy of all rows is needed."""

WEIGHT_MOST = 1e300


def checked_rule(rule: object, shard_count: int, order: SampleOrder | None) -> Rule | None:
    """The rule that a run of so many shards can follow; None for the plain mean, which needs none."""
    if rule is None or rule == Mean():
        return None
    if isinstance(rule, Stage):
        raise ConfigError(
            f"rule = {rule}: a pre-aggregation needs a rule after it, as in `{rule} | rules.Median()`."
        )
    if isinstance(rule, type):
        raise ConfigError(f"rule = {rule.__name__} is a class: make one of it, as in rules.TrimmedMean(f=1).")
    if not isinstance(rule, Rule):
        raise ConfigError(
            f"rule = {rule!r} is a {type(rule).__name__}: use one of outlast.rules, as in rules.Median()."
        )
    try:
        rule.tolerates(shard_count)
        if rule.needs.anything:
            # What lies beside the gradients is a median of all shards.
            Median().tolerates(shard_count)
    except ConfigError as error:
        raise ConfigError(
            f"rule = {rule} and {shard_count} shards do not go together: {error}. Each shard of a step is "
            "one contribution, whoever computes it; or cut the step into more with shards=."
        ) from None
    if order is not None:
        samples = order.span(order.steps_per_pass).size
        try:
            rule.tolerates(min(samples, shard_count))
        except ConfigError as error:
            raise ConfigError(
                f"rule = {rule}: the last batch of a pass has {samples} samples, which leaves shards empty, "
                f"and {error}. Leave that batch out (drop_last=True), or choose another global_batch."
            ) from None
    return rule


def check_part(plan: RoundPlan, sender: int, part: PartNote) -> None:
    """What others claim must be of a form that can be weighed. Raises ProtocolError."""
    claimed = [Node(note.lo, note.hi) for note in part.nodes]
    if claimed != list(plan.cover.get(sender, ())) and not part.closing:
        raise ProtocolError(f"replica {sender} speaks of other shards than its own")
    for note in part.nodes:
        if not 0 <= note.weight <= WEIGHT_MOST:
            raise ProtocolError(f"replica {sender} says that shard {note.lo} has the weight {note.weight}")


@dataclass(frozen=True)
class _Verdict:
    """What becomes of the rows, and of what lies beside the gradients."""

    plan: Plan | None
    beside: Plan | None
    otherwise: float = 0.0
    """What the result is where there is no plan."""


class Ruling:
    """What a replica does where others add up."""

    def __init__(self, rule: Rule, layout: Layout) -> None:
        self.rule = rule
        self.centre = Centre(layout) if rule.needs.centre else None
        """What the rule starts from, if it does not start anew in each step."""
        self.surveys = rule.needs.anything
        """Whether the rule compares whole contributions."""
        self._beside = Median() if self.surveys else rule
        self._layout = layout

    # What the rule has to know of all slices.

    def survey(self, round_: Round) -> None:
        """All parts are in: survey the cells of the own slice."""
        weights = [note.weight for note in _in_order(round_)]
        found = []
        for bucket, lo, hi in self._cells(round_, round_.plan.replica):
            base, _ = round_.plan.slice_of(round_.plan.replica, bucket)
            rows = _divided(round_.rows(bucket), weights, slice(lo - base, hi - base))
            matrix = self.rule.survey(rows, self._start(lo, hi))
            assert matrix is not None
            found.append(matrix)
        round_.surveys[round_.plan.replica] = raw_bytes(torch.stack(found)) if found else b""

    def take_survey(self, round_: Round, sender: int, survey: bytes) -> None:
        size = self._side(round_) ** 2 * torch.float64.itemsize
        if len(survey) != size * sum(1 for _ in self._cells(round_, sender)):
            raise ProtocolError(f"replica {sender} sends a survey of {len(survey)} bytes, which does not fit")
        round_.surveys[sender] = survey

    def _side(self, round_: Round) -> int:
        landmarks = int(self.rule.needs.origin) + int(self.rule.needs.centre)
        return len(round_.plan.view.shards) + landmarks

    def _start(self, lo: int, hi: int) -> Tensor | None:
        """The centre's coordinates. A member contributes to a step only when it has applied the one before,
        and rules on a step only when all have contributed to it: so all start from the same point."""
        return None if self.centre is None else self.centre.part(lo, hi)

    def _cells(self, round_: Round, owner: int) -> Iterator[tuple[int, int, int]]:
        """The cells of gradients that a member owns: (bucket, from, to). Buffers are no part of a survey."""
        for bucket in range(self._layout.parameter_buckets):
            start, stop = round_.plan.slice_of(owner, bucket)
            for lo, hi in pairwise(cells_of(*self._layout.buckets[bucket])):
                if start <= lo < hi <= stop:
                    yield bucket, lo, hi

    def _added_up(self, round_: Round) -> Tensor:
        """The survey of everything, added in the order of cells, whoever owns them."""
        side = self._side(round_)
        by_place: dict[int, Tensor] = {}
        for owner in round_.plan.owners:
            matrices = from_bytes(round_.surveys[owner], torch.float64).view(-1, side, side)
            cells = self._cells(round_, owner)
            by_place.update({lo: matrix for (_, lo, _), matrix in zip(cells, matrices, strict=True)})
        total = torch.zeros(side, side, dtype=torch.float64)
        for _, matrix in sorted(by_place.items()):
            total += matrix
        return total

    # What comes of it.

    def settle(self, round_: Round) -> None:
        """All parts and surveys are in: rule on the own slice and send it to all."""
        notes = _in_order(round_)
        weights = [note.weight for note in notes]
        verdict = self._verdict(round_, weights)
        if verdict.beside is None:
            # Nothing counts, so nothing changes.
            self._tell(round_, sum(1 for weight in weights if weight))
            notes = [msgspec.structs.replace(note, weight=0.0) for note in notes]
        round_.whole = NodeNote(
            lo=0,
            hi=len(notes),
            weight=1.0 if verdict.beside is not None else 0.0,
            loss=_loss(verdict.beside, notes) if verdict.beside is not None else 0.0,
            mask=self._mask(notes),
            integers=self._integers(notes),
        )
        for bucket in range(len(round_.plan.bounds)):
            lo, hi = round_.plan.slice_of(round_.plan.replica, bucket)
            if lo == hi:
                continue
            rows = round_.rows(bucket)
            self._apply(round_, verdict, round_.plan.replica, bucket, rows, weights, round_.record[lo:hi])
            round_.publish(bucket)

    def _tell(self, round_: Round, present: int) -> None:
        if present and not round_.left_out and round_.plan.view.chief == round_.plan.replica:
            log.warning(
                "step %d changes nothing: only %d of its %d shards have a weight, and %s needs more",
                round_.step,
                present,
                len(round_.plan.view.shards),
                self.rule,
            )

    def rule_on(
        self, round_: Round, owner: int, bucket: int, contributions: dict[Node, Tensor], out: Tensor
    ) -> None:
        """What the owner of this slice should have come to."""
        weights = [note.weight for note in _in_order(round_)]
        rows = [row for _, row in sorted(contributions.items())]
        self._apply(round_, self._verdict(round_, weights), owner, bucket, rows, weights, out)

    def _apply(
        self,
        round_: Round,
        verdict: _Verdict,
        owner: int,
        bucket: int,
        rows: list[Tensor],
        weights: list[float],
        out: Tensor,
    ) -> None:
        plan = verdict.plan if bucket < self._layout.parameter_buckets else verdict.beside
        if plan is None:
            out.fill_(verdict.otherwise)
            return
        base, _ = round_.plan.slice_of(owner, bucket)
        for part in self._pieces(round_, owner, bucket):
            start = self._start(base + part.start, base + part.stop) if plan is verdict.plan else None
            # Nothing is compiled here, where everybody waits.
            with eager():
                plan.apply(_divided(rows, weights, part), start, out=out[part])

    def _verdict(self, round_: Round, weights: list[float]) -> _Verdict:
        count, present = len(weights), sum(1 for weight in weights if weight)
        # What was left out has no weight any more, and is among the faults that the rule withstands.
        found = len(round_.left_out)
        if not present or found > _withstands(self.rule, self._beside, present + found):
            return _Verdict(None, None)
        beside = self._beside.plan(count, None, weights, faults_found=found, step=round_.step)
        if not self.surveys:
            return _Verdict(beside, beside)
        survey = self._added_up(round_)
        finite = survey.diagonal().isfinite().tolist()
        lost = sum(1 for weight, good in zip(weights, finite, strict=False) if weight and not good)
        if lost + found > self.rule.tolerates(present + found):
            return _Verdict(None, beside, otherwise=math.nan)
        voices = _voices(weights)
        return _Verdict(self.rule.plan(count, survey, voices, faults_found=found, step=round_.step), beside)

    def _pieces(self, round_: Round, owner: int, bucket: int) -> Iterator[slice]:
        """A slice of a bucket, piece by piece. Matrix products depend on where they begin and end, so where
        there are cells it is cut like them."""
        start, stop = round_.plan.slice_of(owner, bucket)
        if self.surveys:
            cells = pairwise(cells_of(*self._layout.buckets[bucket]))
            yield from (slice(lo - start, hi - start) for lo, hi in cells if start <= lo < hi <= stop)
        else:
            yield from (slice(at, min(at + PIECE, stop - start)) for at in range(0, stop - start, PIECE))

    def _mask(self, notes: list[NodeNote]) -> bytes:
        """What any shard used or changed."""
        mask = 0
        for note in notes:
            if note.weight:
                mask |= int.from_bytes(note.mask, "little")
        size = (len(self._layout.entries) + 7) // 8
        return (mask & ((1 << len(self._layout.entries)) - 1)).to_bytes(size, "little")

    def _integers(self, notes: list[NodeNote]) -> dict[int, bytes]:
        integers: dict[int, bytes] = {}
        for index, buffer in enumerate(self._layout.integers):
            claims = [note.integers[index] for note in notes if note.weight and index in note.integers]
            fitting = [claim for claim in claims if len(claim) == _size_bytes(buffer)]
            if fitting:
                integers[index] = _lower_median(fitting, buffer.dtype)
        return integers


def _in_order(round_: Round) -> list[NodeNote]:
    """What goes with each shard's contribution; what is left out weighs nothing."""
    return [
        msgspec.structs.replace(note, weight=0.0) if node in round_.left_out else note
        for node, note in sorted(round_.notes().items())
    ]


def _withstands(rule: Rule, beside: Rule, voters: int) -> int:
    """How many of so many may be wrong; less than none if there are too few."""
    try:
        return min(rule.tolerates(voters), beside.tolerates(voters))
    except ConfigError:
        return -1


def _voices(weights: list[float]) -> list[float]:
    """What each shard counts: its weight, but no more than the (lower) median of all. Weights are claims, and
    nobody shall have the say by claiming to have seen more samples than everybody else."""
    positive = sorted(weight for weight in weights if weight)
    return [min(weight, positive[(len(positive) - 1) // 2]) for weight in weights]


def _divided(rows: list[Tensor], weights: list[float], part: slice) -> list[Tensor]:
    """The shards' own gradients. A row without weight has no voice, so nobody looks at it."""
    return [row[part] / weight if weight else row[part] for row, weight in zip(rows, weights, strict=True)]


def _loss(plan: Plan, notes: list[NodeNote]) -> float:
    losses = [note.loss / note.weight if note.weight else 0.0 for note in notes]
    return plan.apply([torch.tensor([loss], dtype=torch.float64) for loss in losses]).item()


def _size_bytes(buffer: IntegerBuffer) -> int:
    return buffer.shape.numel() * buffer.dtype.itemsize


def _lower_median(claims: list[bytes], dtype: torch.dtype) -> bytes:
    values = torch.stack([from_bytes(claim, dtype) for claim in claims])
    return raw_bytes(values.sort(0).values[(len(claims) - 1) // 2])
