"""What was trained on, written down as it happens, to be audited by anyone.

Each member keeps a ledger of its own: a text file with one line of JSON for each *stable* step, the ones that
no failure can undo. A line says which replica computed each of the step's shards, as the step's record has
it, which of these were left out, and lists the samples of the shards that it computed itself. The ledgers of
all members together hold every sample of the run, and `audit.merge_ledgers` checks them against each other.

Since a ledger is there for the day on which things went wrong:

- A line is one write to a file opened for appending, so a process that is killed leaves at most one torn
  line, at the end. (A machine that loses power may lose more; nothing waits for the disk here.)
- The next life of the member appends to the same file. It ends a torn line before anything else, and writes
  a heading that says what run this is, so each line can be read without anything but its heading.
- Steps that were found to be wrong later are done again (`protocol/verifying.py`). A line says from where on
  what was written so far is void: by the number of a view, so it holds for everybody's lines.
- A member may die after a step became stable and before its line is written. The lines of the others still
  say that its shards counted, and the heading says which samples these are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from outlast.train.sampling import SampleOrder

VERSION = 1


class Heading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of each life: the version of this format, and what decides who uses which sample."""

    ledger: int
    shard_count: int
    length: int
    global_batch: int
    seed: int
    shuffle: bool
    drop_last: bool
    run: str = ""
    """One run after another may go on from the same checkpoints, and in each one views are numbered anew."""

    @classmethod
    def of(cls, order: SampleOrder, shard_count: int, run: str = "") -> Self:
        return cls(
            ledger=VERSION,
            shard_count=shard_count,
            length=order.length,
            global_batch=order.global_batch,
            seed=order.seed,
            shuffle=order.shuffle,
            drop_last=order.drop_last,
            run=run,
        )

    def order(self) -> SampleOrder:
        return SampleOrder(
            length=self.length,
            global_batch=self.global_batch,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stable step, as one member knows it."""

    step: int
    view: int
    pass_: int = msgspec.field(name="pass")
    shards: dict[int, int]
    """The replica that computed each shard of the step, those of others included."""
    samples: dict[int, list[int]]
    """The samples of each shard that this member computed, in the order in which they were used."""
    left_out: list[int] = []
    """Shards that were computed, but did not count, since what came of them was not sane."""


class Void(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members have gone back, since their states differed: later steps of this view, and of all before it, do
    not count, whoever wrote them down."""

    void_after: int
    """The step; -1 for all steps."""
    view: int


class Ledger:
    """The writing end. `shard_count` is the run's, the same for all steps."""

    def __init__(
        self, path: str | os.PathLike[str], order: SampleOrder, shard_count: int, run: str = ""
    ) -> None:
        self.path = os.fspath(path)
        self._order = order
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size_bytes = os.fstat(self._fd).st_size
        self._torn = size_bytes > 0 and os.pread(self._fd, 1, size_bytes - 1) != b"\n"
        self._append(Heading.of(order, shard_count, run))

    def write(
        self,
        *,
        step: int,
        view: int,
        shards: Mapping[int, int],
        samples: Mapping[int, Sequence[int]],
        left_out: Sequence[int] = (),
    ) -> None:
        """Record a stable step: who computed its shards, the samples of those computed here, and which of
        them all did not count."""
        entry = Entry(
            step=step,
            view=view,
            pass_=self._order.span(step).pass_,
            shards=dict(sorted(shards.items())),
            samples={shard: list(indices) for shard, indices in sorted(samples.items())},
            left_out=sorted(left_out),
        )
        self._append(entry)

    def void(self, *, view: int, after: int) -> None:
        """What was written of later steps, in this view and before it, does not count."""
        self._append(Void(void_after=after, view=view))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: Heading | Entry | Void) -> None:
        content = memoryview((b"\n" if self._torn else b"") + msgspec.json.encode(line) + b"\n")
        # Torn until proven whole: a full disk takes a part of a line and refuses the rest.
        self._torn = True
        while content:
            content = content[os.write(self._fd, content) :]
        self._torn = False
