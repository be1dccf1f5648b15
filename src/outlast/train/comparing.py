"""Copies of the whole training state: compared with those of other replicas, and kept to go back to.

    training thread   notes what there is to copy between two steps, and goes on (`copying.py`)
    a thread          copies beside the next step, and hashes the copy when it is complete
    under the lock    the core is told the digest (`protocol/verifying.py`), and says what it means

There are two copies at most: the newest verified one, and the one that is being compared. So it takes twice
the state in host memory. What is compared is the image of the state, the same bytes that a snapshot has:
parameters, buffers, optimizer state, and everything that the script has registered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from blake3 import blake3
from torch import Tensor

from outlast.errors import CheckpointError, OutlastError
from outlast.protocol.driver import Driver
from outlast.protocol.seams import Digested
from outlast.protocol.step_words import BLANK, NO_FORK, Differ, Digest, Dropped, Fork, GoBack, Verified
from outlast.state.contents import Image, encode_image, pieces
from outlast.state.entries import Entries, entries_of
from outlast.state.image import fresh_memory, tensors_in
from outlast.state.training import TrainingState
from outlast.train.copying import ShareCopy
from outlast.train.differing import Report
from outlast.train.rhythm import Rhythm

PIECE_BYTES = 4 << 20
"""What the training thread copies at a time when it helps."""

DIGEST_BYTES = 32
CHECKSUM_MASK = (1 << 63) - 1


def checksum(flat: Tensor) -> int:
    """The sum of a vector's bits, seen as whole numbers: exact, in any order, and as fast as memory is."""
    raw = flat.view(torch.uint8)
    words = raw.numel() // 8 * 8
    total = int(raw[:words].view(torch.int64).sum()) + int(raw[words:].sum())
    return total & CHECKSUM_MASK


StepFacts = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""A step, the view in which it was completed, the replica that computed each shard, and those left out."""


class Circumstances(Protocol):
    """A part of the state that says how it came about. Steps that are done again, in another view, give the
    same state, so this is left out of what is compared."""

    last: StepFacts
    given: StepFacts | None


def _tensor_digests(share: ShareCopy, image: Image) -> list[bytes]:
    """Of each tensor of the image, from the pieces of its space in their order."""
    digests = [blake3() for _ in image.entries]
    first = 0
    for piece, part in share.parts():
        while first < len(digests) and image.entries[first].end <= piece.start:
            first += 1
        for index in range(first, len(digests)):
            entry = image.entries[index]
            if entry.offset >= piece.stop:
                break
            lo, hi = max(entry.offset, piece.start), min(entry.end, piece.stop)
            digests[index].update(part[lo - piece.start : hi - piece.start])
    return [digest.digest(DIGEST_BYTES) for digest in digests]


class Space:
    """Memory for a whole state, used again by the next copy if it is large enough."""

    def __init__(self) -> None:
        self.flat = torch.empty(0, dtype=torch.uint8)

    def parts(self, sizes: Sequence[int]) -> list[Tensor]:
        """A part for each size, one right after the other."""
        total = sum(sizes)
        if self.flat.numel() < total:
            self.flat = torch.empty(0, dtype=torch.uint8)
            self.flat = torch.frombuffer(fresh_memory(max(1, total)), dtype=torch.uint8)
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        return [self.flat[start : start + size] for start, size in zip(starts, sizes, strict=False)]


class Copy:
    """The state after one step."""

    def __init__(self, step: int, space: Space) -> None:
        self.step = step
        self.space = space
        self.life: object = None
        self.fork = NO_FORK
        """In which life, and since which fork."""
        self.last: StepFacts = (0, 0, (), ())
        self.share: ShareCopy | None = None
        self.image: Image | None = None
        self.entries: Entries | None = None
        """What is in it, once it is hashed."""
        self.held_s = 0.0
        self.busy = True
        """Whether somebody may still write to its space, or read from it."""


class Comparing:
    """One replica's copies. What is called under the engine's lock says so."""

    def __init__(
        self,
        state: TrainingState,
        circumstances: Circumstances,
        every: str | int,
        changed: threading.Condition,
    ) -> None:
        self._state = state
        self._circumstances = circumstances
        self._changed = changed
        self._rhythm = Rhythm(every, time.monotonic())
        self._driver: Driver
        self._due = BLANK
        self._copies: dict[int, Copy] = {}
        self._spaces: list[Space] = []
        self.chosen = BLANK
        """The newest step whose state is compared, or was."""
        self.verified = BLANK
        """The newest step whose state is known to be the same everywhere."""

    def driven_by(self, driver: Driver) -> None:
        """Who is told what the copies are."""
        self._driver = driver

    # Under the lock.

    def do(self, action: Digest | Verified | Dropped | GoBack) -> None:
        match action:
            case Digest():
                self._due = self.chosen = action.step
                self._rhythm.chosen(action.step, time.monotonic())
            case Verified():
                self.verified = max(self.verified, action.step)
            case GoBack():
                self._due = BLANK
                self.chosen = self.verified = action.fork.step
            case Dropped():
                pass

    def wish(self, step: int, *, chief: bool) -> bool:
        """Whether the state after this step should be compared."""
        return self._rhythm.wants(step, time.monotonic(), chief=chief)

    def due(self, applied: int) -> int | None:
        """The step whose state is to be copied now, while the model holds it, or cannot be any more."""
        if self._due == BLANK or self._due > applied:
            return None
        step, self._due = self._due, BLANK
        return step

    def report(self, differ: Differ) -> Report:
        """What there is to say about states that differ, from the copies that are here."""
        copy, verified = self._copies.get(differ.step), self._copies.get(differ.back_to)
        return Report(
            self._state,
            differ,
            keys=copy.entries.keys if copy is not None and copy.entries is not None else {},
            verified=verified.entries.digests
            if verified is not None and verified.entries is not None
            else b"",
        )

    def begin_anew(self) -> None:
        """What this life knew of its state is void."""
        self._due = self.chosen = self.verified = BLANK
        for copy in self._copies.values():
            self._let_go(copy)
        self._copies.clear()

    # In the training thread, without the lock.

    def copy(self, step: int, overrides: Mapping[int, Tensor], life: object, fork: Fork) -> None:
        """Begin to copy the state as it is now, in this life and since that fork."""
        begun = time.perf_counter()
        with self._changed:
            copy = Copy(step, self._space_for())
            copy.life, copy.fork = life, fork
            self._copies[step] = copy
        try:
            image, tensors = self._capture(copy, overrides)
            lasting = self._state.lasting(overrides)
            copy.image = image
            copy.share = ShareCopy(
                image,
                tensors,
                pieces(image.total_bytes, PIECE_BYTES),
                copy.space,
                lasting=lambda tensor: id(tensor) in lasting,
            )
        except (MemoryError, RuntimeError, OSError, OutlastError) as error:
            self._failed(copy, f"the training state could not be copied: {error}")
            return
        copy.share.start()
        threading.Thread(target=self._hash, args=(copy,), name="outlast-digest", daemon=True).start()
        copy.held_s += time.perf_counter() - begun

    def _capture(self, copy: Copy, overrides: Mapping[int, Tensor]) -> tuple[Image, list[Tensor]]:
        copy.last, self._circumstances.last = self._circumstances.last, (copy.step, 0, (), ())
        try:
            return self._state.capture(overrides)
        finally:
            self._circumstances.last = copy.last

    def settle(self) -> None:
        """The state is about to change: let the copy be complete."""
        for copy in list(self._copies.values()):
            if copy.share is not None:
                begun = time.perf_counter()
                copy.share.settle()
                copy.held_s += time.perf_counter() - begun

    def load(self, step: int) -> None:
        """Become the state after this step again."""
        copy = self._copies[step]
        assert copy.image is not None
        self._state.load(copy.image, tensors_in(copy.space.flat, copy.image))
        self._circumstances.last, self._circumstances.given = copy.last, None

    # A thread of its own.

    def _hash(self, copy: Copy) -> None:
        assert copy.share is not None and copy.image is not None
        begun_s = time.thread_time()
        try:
            # Each tensor by itself, so that it is known what differs if something does.
            tensors = _tensor_digests(copy.share, copy.image)
            digest = blake3(encode_image(copy.image))
            for one in tensors:
                digest.update(one)
            copy.entries = entries_of(copy.image, tensors)
        except CheckpointError as error:
            self._failed(copy, str(error))
            return
        worked_s = time.thread_time() - begun_s
        with self._changed:
            copy.busy = False
            self._rhythm.cost(copy.held_s + copy.share.worked_s + worked_s)
            if self._copies.get(copy.step) is copy:
                self._tell(copy, digest.digest(DIGEST_BYTES), copy.entries.digests)

    def _failed(self, copy: Copy, reason: str) -> None:
        with self._changed:
            copy.busy = False
            if self._copies.get(copy.step) is copy:
                del self._copies[copy.step]
                said = f"the state after step {copy.step} is not compared: {reason}"
                self._driver.outlet.note(logging.WARNING, said)
                self._tell(copy, b"")

    def _tell(self, copy: Copy, digest: bytes, entries: bytes = b"") -> None:
        self._driver.done(Digested(copy.life, copy.fork, copy.step, digest, entries), time.monotonic())

    def _space_for(self) -> Space:
        """Under the lock: room for another copy. Only the newest verified one is still of use."""
        verifying = self._driver.steps.verifying
        kept = verifying.verified if verifying is not None else BLANK
        for step in [step for step in self._copies if step != kept]:
            self._let_go(self._copies.pop(step))
        return self._spaces.pop() if self._spaces else Space()

    def _let_go(self, copy: Copy) -> None:
        if copy.share is not None:
            copy.share.give_up("it is not needed any more")
        if not copy.busy:
            # Else it has its space for itself, and both go together.
            self._spaces.append(copy.space)
