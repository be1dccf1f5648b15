"""Was every sample used exactly once per pass? What the ledgers of all members say, put together.

The check counts. It believes no plan of which samples a step should have had: it takes the samples that the
members listed, once for each shard of each step, and counts how often each occurs in a pass. From the
arithmetic of steps it only takes where passes end and how many samples a shard has.

The same shard of the same step may be listed several times, by the lives of one member or by two members:
after the whole job was killed and went back to a checkpoint, steps are trained again. Such entries must list
the same samples, and count once. Within one view, all must name the same replica for each shard.

A shard that counted according to the others but that its replica did not live to list is filled in from the
order that the heading gives, and reported as such. It is not a problem: no sample is lost by it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from outlast.errors import ConfigError
from outlast.train.ledger import VERSION, Entry, Heading, Void
from outlast.train.sampling import SampleOrder

PROBLEMS_SHOWN = 50
"""One mistake in a long run repeats itself a million times; the first ones tell what it is."""
_USES_COUNTED = 255
_HEADING_START = b'{"ledger"'
_HEADINGS = msgspec.json.Decoder(Heading)
_ENTRIES = msgspec.json.Decoder(Entry)
_VOID_START = b'{"void_after"'
_VOIDS = msgspec.json.Decoder(Void)


@dataclass
class Audit:
    """What the ledgers add up to; all is well if `problems` is empty."""

    problems: list[str] = field(default_factory=list)
    more_problems: int = 0
    """Those beyond the first ones, which are counted only."""
    ledgers: int = 0
    steps: int = 0
    samples: int = 0
    passes: int = 0
    """Complete ones."""
    torn_lines: int = 0
    unlisted_shards: int = 0
    """Shards that counted, but whose replica died before it wrote down their samples."""
    left_out_shards: int = 0
    """Shards whose samples were used up, but did not count: what came of them was not sane."""
    void_steps: int = 0
    """Steps that were done, found to be wrong, and done again."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def describe(self) -> str:
        found = len(self.problems) + self.more_problems
        verdict = f"{found} problems" if found else "each sample exactly once per pass"
        counts = f"{self.steps} steps, {self.samples} samples and {self.passes} complete passes"
        lines = [f"{counts} in {self.ledgers} ledgers: {verdict}"]
        if self.unlisted_shards:
            lines.append(
                f"{self.unlisted_shards} shards are known from other members' ledgers only: "
                "the replica that computed them died before it wrote its line"
            )
        if self.left_out_shards:
            lines.append(
                f"{self.left_out_shards} shards were left out of the model, since what came of them was not "
                "sane; their samples are counted here all the same"
            )
        if self.void_steps:
            lines.append(f"{self.void_steps} steps were found to be wrong, and done again: they do not count")
        if self.torn_lines:
            lines.append(
                f"{self.torn_lines} lines were cut off when their writer was killed, and are ignored"
            )
        lines += [f"- {problem}" for problem in self.problems]
        if self.more_problems:
            lines.append(f"- … and {self.more_problems} more")
        return "\n".join(lines)

    def complain(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(problem)
        else:
            self.more_problems += 1


def merge_ledgers(paths: Iterable[str | os.PathLike[str]]) -> Audit:
    """Read all the ledgers of a run, in any order, and check them against each other."""
    merge = _Merge()
    names = [os.fspath(path) for path in paths]
    for name in names:
        merge.read_voids(name)
    for name in names:
        merge.read(name)
    return merge.finish()


class _Merge:
    def __init__(self) -> None:
        self._audit = Audit()
        self._heading: Heading | None = None
        self._heading_from = ""
        self._order: SampleOrder | None = None
        self._listed: dict[tuple[int, int], tuple[bytes, str]] = {}
        self._run = ""
        self._computed_by: dict[tuple[str, int, int], tuple[dict[int, int], list[int], str]] = {}
        self._left_out: set[tuple[int, int]] = set()
        """A step and a shard."""
        self._counted: dict[int, set[int]] = {}
        self._uses: dict[int, bytearray] = {}
        self._voids: set[tuple[str, int, int]] = set()
        """A run, a view and a step: later steps in that view, or one before it, do not count."""
        self._void_steps: set[tuple[str, int, int]] = set()

    def read_voids(self, path: str) -> None:
        run = ""
        for _, line in _lines(path, Audit()):
            if isinstance(line, Heading):
                run = line.run
            elif isinstance(line, Void):
                self._voids.add((run, line.view, line.void_after))

    def read(self, path: str) -> None:
        self._audit.ledgers += 1
        readable = False
        for where, line in _lines(path, self._audit):
            if isinstance(line, Heading):
                readable = self._take_heading(line, where)
            elif isinstance(line, Entry) and readable and not self._is_void(line):
                self._take_entry(line, where)

    def _is_void(self, entry: Entry) -> bool:
        void = any(
            run == self._run and entry.view <= view and entry.step > step for run, view, step in self._voids
        )
        if void:
            self._void_steps.add((self._run, entry.view, entry.step))
        return void

    def _take_heading(self, heading: Heading, where: str) -> bool:
        """Whether the entries below this heading belong to the same run as those before."""
        if heading.ledger != VERSION:
            self._audit.complain(f"{where}: format {heading.ledger} is unknown; this version reads {VERSION}")
            return False
        try:
            heading.order().validate()
        except ConfigError as error:
            self._audit.complain(f"{where}: this cannot be the heading of a run: {error}")
            return False
        if self._heading is None:
            self._heading, self._heading_from, self._order = heading, where, heading.order()
        self._run = heading.run
        for name in set(heading.__struct_fields__) - {"run"}:
            mine, theirs = getattr(self._heading, name), getattr(heading, name)
            if mine != theirs:
                self._audit.complain(
                    f"{where}: {name} = {theirs}, but {name} = {mine} in {self._heading_from}: another run"
                )
                return False
        return True

    def _take_entry(self, entry: Entry, where: str) -> None:
        assert self._order is not None and self._heading is not None
        shard_count = self._heading.shard_count
        strangers = {
            shard
            for shard in entry.shards.keys() | entry.samples.keys() | set(entry.left_out)
            if not 0 <= shard < shard_count or shard not in entry.shards
        }
        if entry.step < 1 or strangers:
            self._audit.complain(f"{where}: step {entry.step} cannot have shards {sorted(strangers)}")
            return
        if entry.pass_ != self._order.span(entry.step).pass_:
            self._audit.complain(f"{where}: step {entry.step} is not in pass {entry.pass_}")
            return
        attempt = (self._run, entry.step, entry.view)
        known = (entry.shards, entry.left_out, where)
        first, left_out, first_where = self._computed_by.setdefault(attempt, known)
        if first != entry.shards:
            self._audit.complain(
                f"{where}: step {entry.step} in view {entry.view} was computed by {entry.shards}, "
                f"but by {first} in {first_where}"
            )
        if left_out != entry.left_out:
            self._audit.complain(
                f"{where}: step {entry.step} in view {entry.view} was made without shards {entry.left_out}, "
                f"but without {left_out} in {first_where}"
            )
        self._left_out.update((entry.step, shard) for shard in entry.left_out)
        self._counted.setdefault(entry.step, set()).update(entry.shards)
        for shard, indices in entry.samples.items():
            self._take_shard(entry.step, shard, indices, where)

    def _take_shard(self, step: int, shard: int, indices: list[int], where: str) -> None:
        assert self._order is not None and self._heading is not None
        digest = hashlib.blake2b(repr(indices).encode(), digest_size=16).digest()
        known, known_where = self._listed.setdefault((step, shard), (digest, where))
        if known != digest:
            self._audit.complain(
                f"{where}: step {step}, shard {shard} has other samples than in {known_where}"
            )
        if known_where != where:
            return
        size = len(self._order.positions(step, shard, self._heading.shard_count))
        if len(indices) != size:
            self._audit.complain(
                f"{where}: step {step}, shard {shard} has {len(indices)} samples instead of {size}"
            )
        self._count(step, indices, where)

    def _count(self, step: int, indices: Iterable[int], where: str) -> None:
        assert self._order is not None
        pass_ = self._order.span(step).pass_
        if pass_ not in self._uses:
            self._uses[pass_] = bytearray(self._order.length)
        uses = self._uses[pass_]
        for index in indices:
            self._audit.samples += 1
            if not 0 <= index < self._order.length:
                self._audit.complain(f"{where}: step {step} has sample {index} of {self._order.length}")
            elif uses[index] < _USES_COUNTED:
                uses[index] += 1

    def finish(self) -> Audit:
        audit, order = self._audit, self._order
        audit.steps, audit.void_steps = len(self._counted), len(self._void_steps)
        audit.left_out_shards = len(self._left_out)
        if order is None or self._heading is None:
            audit.complain("there is no ledger with a heading among these files")
            return audit
        last_step = max(self._counted, default=0)
        expected = 1
        for step in sorted(self._counted):
            if step > expected:
                audit.complain(f"steps {expected} to {step - 1} are in no ledger, though step {step} is")
            self._check_step(step)
            expected = step + 1
        audit.passes = last_step // order.steps_per_pass
        for pass_, uses in sorted(self._uses.items()):
            again = [index for index, count in enumerate(uses) if count > 1]
            for index in again:
                audit.complain(f"pass {pass_}: sample {index} was used {uses[index]} times")
            used = order.length - uses.count(0)
            if pass_ < audit.passes and used < order.samples_per_pass:
                unused = [index for index, count in enumerate(uses) if not count]
                some = f"{', '.join(map(str, unused[:5]))}{', …' if len(unused) > 5 else ''}"
                missing = order.samples_per_pass - used
                audit.complain(f"pass {pass_}: {missing} samples were never used, among these: {some}")
        return audit

    def _check_step(self, step: int) -> None:
        assert self._order is not None and self._heading is not None
        shard_count = self._heading.shard_count
        for shard, positions in enumerate(self._order.shards_of(step, shard_count)):
            if not positions or (step, shard) in self._listed:
                continue
            if shard in self._counted[step]:
                self._audit.unlisted_shards += 1
                self._count(step, self._order.samples(step, shard, shard_count).indices, "the heading")
            else:
                self._audit.complain(f"step {step}: shard {shard} was not counted by anybody")


def _decoded(raw: bytes, *, new_life: bool) -> Heading | Entry | Void:
    if new_life:
        return _HEADINGS.decode(raw)
    return _VOIDS.decode(raw) if raw.startswith(_VOID_START) else _ENTRIES.decode(raw)


def _lines(path: str, audit: Audit) -> Iterator[tuple[str, Heading | Entry | Void]]:
    """Each line and where it stands. Cut-off lines are passed over where a life ended, and nowhere else."""
    unreadable = ""
    ended = True
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            where = f"{path}:{number}"
            ended = raw.endswith(b"\n")
            # Also the beginning of a beginning: the next life may have been killed over its first line.
            new_life = _HEADING_START.startswith(raw.rstrip(b"\n")[: len(_HEADING_START)])
            if unreadable and new_life:
                audit.torn_lines += 1
            elif unreadable:
                audit.complain(unreadable)
            unreadable = ""
            try:
                line = _decoded(raw, new_life=new_life)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                unreadable = f"{where}: cannot be read ({error})"
                continue
            yield where, line
    if unreadable and ended:
        audit.complain(unreadable)
    elif unreadable:
        audit.torn_lines += 1
