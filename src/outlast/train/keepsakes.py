"""Copies of states that the script wants saved by name, kept until they are committed.

`protocol/naming.py` says why every member keeps the whole state, and which copies may be dropped. Here are
the copies themselves. One is made like others, beside the next step's computation (`copying.py`). In its
memory the state lies in chunks, so that whichever share of it this replica is to write, it is there.

Who asks is the script, and the script can be wrong: a replica that asks alone, under `if job.chief`, would
save nothing that the others could finish. Every part says what its script has asked for, and whoever finds
that two of them differ ends with an error that says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from outlast.errors import LoopError
from outlast.protocol.kinds import PartNote
from outlast.protocol.naming import NamedStates
from outlast.state.training import TrainingState
from outlast.state.vault.chunking import chunk_ranges
from outlast.train.copying import Room, ShareCopy
from outlast.train.stripes import share_of

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Keep:
    """Copy the whole state now, while the model holds the one after this step."""

    step: int


class Share:
    """This replica's part in writing a state that it keeps."""

    def __init__(self, copy: ShareCopy, place: int, count: int) -> None:
        self.image = copy.image
        self._copy = copy
        self._mine = {one.start for one in share_of(chunk_ranges(copy.image), place, count)}

    def parts(self) -> Iterator[tuple[range, memoryview]]:
        return ((piece, memory) for piece, memory in self._copy.parts() if piece.start in self._mine)

    @property
    def void(self) -> str:
        """Why nobody can use the copy; empty if it is good."""
        return self._copy.void

    def settle(self) -> None:
        """The copy is settled by who keeps it."""

    def give_up(self, reason: str) -> None:
        """The copy stays: somebody may have to write all of it."""


class Keepsakes:
    """What this replica keeps. What is called under the engine's lock says so."""

    def __init__(self, state: TrainingState, changed: threading.Condition) -> None:
        self._state = state
        self._changed = changed
        self._wanted = NamedStates()
        self._copies: dict[int, ShareCopy] = {}
        self._due = -1
        self._asked: dict[int, set[str]] = {}
        """By step, what the script has asked for in its body."""
        self._asked_last: set[str] = set()
        """The same after the loop of steps."""
        self._ran = -1
        """The newest step whose body the script has run here."""
        self._failures = 0
        self._retry_at = 0.0
        self.trouble = ""
        """Why the newest attempt to save one of them was not successful."""

    # Under the lock.

    def ask(self, name: str, step: int, *, last: bool, member: bool) -> None:
        """The script wants the state after this step under that name; `last`: it has left the loop of steps.
        Only members keep copies: who learns may be far behind."""
        if last:
            self._asked_last.add(name)
        else:
            # Only what the next part says of it is of interest.
            self._asked = {step: self._asked.get(step, set()) | {name}}
        if member:
            self._wanted.ask(name, step)
            self._due = step if step not in self._copies else self._due

    def ran(self, step: int) -> None:
        """The script has run the body of this step."""
        self._ran = step

    def asked(self, step: int, *, last: bool) -> tuple[str, ...] | None:
        """What the next part says of it; None if the script has not run there."""
        if last:
            return tuple(sorted(self._asked_last))
        return tuple(sorted(self._asked.get(step, ()))) if self._ran == step else None

    def due(self, applied: int) -> Keep | None:
        """What to copy now."""
        step, wanted = self._due, self._due in self._wanted.steps
        if step < 0 or step > applied:
            return None
        self._due = -1
        if step == applied and wanted:
            return Keep(step)
        self._wanted.forget(step)
        return None

    def kept(self, now: float) -> tuple[int, ...]:
        """The states that can be written from here; none for a while after that did not work."""
        if now < self._retry_at:
            return ()
        return tuple(step for step in self._wanted.steps if step in self._copies)

    @property
    def pending(self) -> bool:
        return bool(self._wanted.steps)

    @property
    def newest(self) -> int:
        return max(self._wanted.steps, default=-1)

    def names(self, step: int) -> tuple[str, ...]:
        return self._wanted.names(step)

    def share(self, step: int, place: int, count: int) -> Share | None:
        copy = self._copies.get(step)
        return Share(copy, place, count) if copy is not None else None

    def safe(self, step: int) -> None:
        """Nobody goes back behind this step."""
        self._wanted.safe(step)
        self._let_go()

    def saved(self, step: int, names: Iterable[str]) -> None:
        self._wanted.saved(step, names)
        self._failures, self._retry_at, self.trouble = 0, 0.0, ""
        self._let_go()

    def failed(self, reason: str, now: float, *, again: bool) -> None:
        """An attempt was given up. `again`: because views changed, so the next one may be made at once."""
        self.trouble = reason
        if not again:
            self._retry_at = now + min(FIRST_PAUSE_S * 2.0**self._failures, MOST_PAUSE_S)
            self._failures = min(self._failures + 1, 20)

    def hurry(self) -> None:
        """There is no later any more: try again at once."""
        self._retry_at = 0.0

    def forget(self, step: int) -> None:
        self._wanted.forget(step)
        self._let_go()

    def go_back(self, step: int) -> None:
        """What was done after this step is void."""
        self._wanted.go_back(step)
        self._let_go()

    def clear(self) -> None:
        """This life is over, and what it kept may be, too."""
        self.go_back(-1)

    def _let_go(self) -> None:
        """Somebody may still write one of them; it goes when that is done."""
        self._copies = {step: copy for step, copy in self._copies.items() if step in self._wanted.steps}

    # In the training thread, without the lock.

    def copy(self, step: int, overrides: Mapping[int, Tensor]) -> None:
        """Begin to copy the state as it is now."""
        try:
            image, tensors = self._state.capture(overrides)
            lasting = self._state.lasting(overrides)
            copy = ShareCopy(
                image, tensors, chunk_ranges(image), Room(), lasting=lambda tensor: id(tensor) in lasting
            )
        except (MemoryError, RuntimeError, OSError) as error:
            with self._changed:
                names = ", ".join(self.names(step))
                log.error("the state after step %d is NOT saved as %s here: %s", step, names, error)
                self.forget(step)
            return
        with self._changed:
            if step in self._wanted.steps:
                self._copies[step] = copy
        copy.start()

    def settle(self) -> None:
        """The state is about to change: let the copies be complete."""
        for copy in list(self._copies.values()):
            copy.settle()


def refuse_to_save_alone(parts: Mapping[int, PartNote], step: int) -> None:
    """A LoopError if the scripts of two replicas have asked for different things after this step."""
    for part in parts.values():
        if part.asked:
            break
    else:
        return
    # What is said in the loop and what is said behind it are two things.
    if len({part.closing for part in parts.values()}) > 1:
        return
    asked = {replica: set(part.asked) for replica, part in sorted(parts.items()) if part.asked is not None}
    every = set[str]().union(*asked.values())
    for name in sorted(every):
        callers = [replica for replica, names in asked.items() if name in names]
        others = [replica for replica in asked if replica not in callers]
        if others:
            some, rest = (" and ".join(map(str, whom)) for whom in (callers, others))
            raise LoopError(
                f"job.save({name!r}) was called after step {step} by replica {some}, and not by replica "
                f"{rest}. All replicas call it alike, since any of them may have to write it: take "
                "it out of `if job.chief`, and decide by what is the same everywhere, such as step.loss or a "
                "validation loss that each replica computes"
            )
