"""A rule at work in a step: every shard has one voice, and the rule decides what comes of them.

The plain mean is a sum that can be made anywhere, in pieces, while backward still runs. A rule needs to see
every contribution by itself, so with one each shard is sent apart (see `mesh/round.py`), and the owner of a
slice takes its rows when all parts are in. It is then that weights are known: a shard may have several
losses, and its buckets leave before the last of them is counted. So what travels is the same as ever, the
gradient times its weight, and the owner divides by the weight that its sender claims. A wrong claim spoils
the sender's own row and no other.

What comes out is the update itself, so the record's weight is 1. Everything in it is decided by the rule:

- *Gradients*: a shard that did not use a parameter has a row of zeros there. A parameter that no shard says
  it used has no gradient at all.
- *Float buffers* lie behind the gradients in the same vector, and are coordinates like all others.
- *Integer buffers* are the lower median, per element, of the shards that changed them: one of their values.
- *The loss* is one more coordinate.

Shards without samples have the weight 0, and no voice.

The bits are the same on every member and for every assignment, because each coordinate of a result depends
on the rows' values there and on nothing else: neither on where a slice begins, nor on how it is worked off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.errors import ConfigError, ProtocolError
from outlast.mesh.kinds import NodeNote, PartNote
from outlast.mesh.round import Round
from outlast.protocol.tree import Node
from outlast.rules import Mean, Plan, Rule, Stage, eager
from outlast.train.layout import IntegerBuffer, Layout
from outlast.train.sampling import SampleOrder
from outlast.train.sums import from_bytes, raw_bytes

CHUNK = 1 << 18
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
    if not isinstance(rule, Rule):
        raise ConfigError(
            f"rule = {rule!r} is a {type(rule).__name__}: use one of outlast.rules, as in rules.Median()."
        )
    if rule.needs.gram:
        raise ConfigError(f"rule = {rule}: in training, rules work that look at each coordinate by itself.")
    try:
        rule.tolerates(shard_count)
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


class Ruling:
    """What a replica does where others add up."""

    def __init__(self, rule: Rule, layout: Layout) -> None:
        self.rule = rule
        self._layout = layout

    def check(self, round_: Round, sender: int, part: PartNote) -> None:
        """What others claim must be of a form that a rule can weigh. Raises ProtocolError."""
        claimed = [Node(note.lo, note.hi) for note in part.nodes]
        if claimed != list(round_.plan.cover.get(sender, ())) and not part.closing:
            raise ProtocolError(f"replica {sender} speaks of other shards than its own")
        for note in part.nodes:
            if not 0 <= note.weight <= WEIGHT_MOST:
                raise ProtocolError(
                    f"replica {sender} says that shard {note.lo} has the weight {note.weight}"
                )

    def settle(self, round_: Round) -> None:
        """All parts are in: rule on the own slice and send it to all."""
        notes = [note for _, note in sorted(round_.notes().items())]
        weights = [note.weight for note in notes]
        if not any(weights):
            round_.whole = NodeNote(0, len(notes), 0.0, 0.0, b"", {})
            self._publish(round_, None, weights)
            return
        plan = self.rule.plan(len(weights), None, weights, step=round_.step)
        round_.whole = NodeNote(
            lo=0,
            hi=len(notes),
            weight=1.0,
            loss=_loss(plan, notes),
            mask=self._mask(notes),
            integers=self._integers(notes),
        )
        self._publish(round_, plan, weights)

    def _publish(self, round_: Round, plan: Plan | None, weights: list[float]) -> None:
        for bucket in range(len(round_.plan.bounds)):
            lo, hi = round_.plan.slice_of(round_.plan.replica, bucket)
            if lo == hi:
                continue
            out = round_.record[lo:hi]
            if plan is None:
                out.zero_()
            else:
                _apply(plan, round_.rows(bucket), weights, out)
            round_.publish(bucket)

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


def _apply(plan: Plan, rows: list[Tensor], weights: list[float], out: Tensor) -> None:
    for begin in range(0, out.numel(), CHUNK):
        part = slice(begin, min(begin + CHUNK, out.numel()))
        # A row without weight has no voice, so it is not looked at.
        divided = [
            row[part] / weight if weight else row[part] for row, weight in zip(rows, weights, strict=True)
        ]
        # Nothing is compiled here, where everybody waits.
        with eager():
            plan.apply(divided, out=out[part])


def _loss(plan: Plan, notes: list[NodeNote]) -> float:
    losses = [note.loss / note.weight if note.weight else 0.0 for note in notes]
    return plan.apply([torch.tensor([loss], dtype=torch.float64) for loss in losses]).item()


def _size_bytes(buffer: IntegerBuffer) -> int:
    return buffer.shape.numel() * buffer.dtype.itemsize


def _lower_median(claims: list[bytes], dtype: torch.dtype) -> bytes:
    values = torch.stack([from_bytes(claim, dtype) for claim in claims])
    return raw_bytes(values.sort(0).values[(len(claims) - 1) // 2])
