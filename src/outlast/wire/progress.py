"""The progress page: how a replica tells its agent where it is, for the price of a few stores to memory.

A training loop must not send heartbeats: a long kernel, a stopped thread or a starved CPU would look like
death. So the agent beats for it. What the agent needs for that is one page of memory that both have mapped:
the replica writes its step and what it is doing, the agent reads it whenever it likes, and neither ever waits
for the other. In the other direction goes one word: please leave.

Layout, in 8-byte words of the machine's own order, since the page never leaves the machine:

    0  magic and version     4  view                     8  alive: grows with every call
    1  sequence              5  step                     9  leave requested (written by the agent)
    2  pid of the writer     6  phase
    3  incarnation           7  changed_ns: when view, step or phase last changed (CLOCK_MONOTONIC)
   10  the shard that is being computed, plus 1; 0 if none
   11  1 once the process has joined     12  the newest step whose result it has helped to compute
   13  how many steps the run has in all; 0 if that is not known yet
   14  the loss of the newest step, a float64; 0 if there is none (a loss of zero is written as -0.0)
   15  how many samples a step has; 0 if the script makes its own batches
   16  the newest step that is known to be saved, plus 1; 0 if there is none
   17  when it was saved (CLOCK_MONOTONIC, in ns); 0 if that was before this process
   18  how many bytes the place of the checkpoints takes, which begins at byte 1024; 0 if nothing is saved
   19  1 while it is at the end of its loop of steps
   20  1 if the job is done once the script of this process has ended well: it is the chief

Every word is aligned and stored at once, so none is ever seen half written. That several belong together is
told by the sequence (a *sequence lock*): it is odd while the writer is at work. The reader tries again a few
times, and then takes what is there: the writer may have been stopped or killed in the middle, and a reading
of step *k* with the phase of *k+1* is better than none. There is one writer thread, the one that trains;
`tick`, `live` and `saved` alone may be called from others. The shard belongs to nothing: it is one word by
itself, written in the innermost loop and read when the process is dead. So do the words from 13 on, which are
for people: what a run shows of itself comes from them.

A process that has joined ends in order only if the page says `Phase.DONE`, whatever its exit status is. So
that phase is for good: what a script still does after the job, an evaluation say, does not take it back.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import ProtocolError
from outlast.protocol.messages import Phase
from outlast.wire.private import write_file

VERSION = 4
PAGE_BYTES = 4096

_MAGIC = int.from_bytes(b"OUTLAST\0", "little") | VERSION << 56
_HEAD, _SEQUENCE, _PID, _INCARNATION, _VIEW, _STEP, _PHASE, _CHANGED_NS, _ALIVE, _LEAVE, _SHARD = range(11)
_JOINED, _CONTRIBUTED, _TOTAL, _LOSS, _SAMPLES, _SAVED, _SAVED_NS, _PLACE_BYTES = range(11, 19)
_ENDED, _CLOSES = 19, 20
_PLACE_AT = 1024
PLACE_MOST_BYTES = PAGE_BYTES - _PLACE_AT
_READ_ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """What the page said at one moment; `consistent` is False if the writer was caught in the middle."""

    pid: int
    incarnation: int
    view: int
    step: int
    phase: Phase
    changed_ns: int
    alive: int
    consistent: bool = True
    shard: int = -1
    """The shard that is being computed; -1 if none."""
    joined: bool = False
    """Whether it has asked to take part, in this life of the process or an earlier one."""
    contributed: int = 0
    """The newest step whose result it has helped to compute, rather than been given."""
    ended: bool = False
    """Whether it is at the end of its loop of steps; there may be another loop after it."""
    closes: bool = False
    """Whether the end of its script is the end of the job."""
    total: int = 0
    """How many steps the run has in all; 0 if that is not known."""
    loss: float | None = None
    samples: int = 0
    """How many samples a step has; 0 if that is not known."""
    saved: int = -1
    """The newest step that is known to be saved; -1 if none is."""
    saved_ns: int = 0
    """When it was saved; 0 if that is not known."""
    place: str = ""
    """Where checkpoints are; empty if the script saves none."""

    def unchanged_s(self, now_ns: int) -> float:
        """For how long neither view, step nor phase has changed, given `time.monotonic_ns()`."""
        return (now_ns - self.changed_ns) / 1e9


class Progress:
    """The replica's side of the page."""

    def __init__(self, path: Path) -> None:
        self._map, self._words = _map(path)
        self._floats = self._words.cast("B").cast("d")
        self._words[_PID] = os.getpid()
        self.enter(Phase.STARTING)

    @classmethod
    def create(cls, path: Path) -> Progress:
        create_page(path)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Progress:
        return cls(path)

    def enter(self, phase: Phase, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        words = self._words
        if words[_PHASE] == Phase.DONE:
            return
        words[_SEQUENCE] += 1
        words[_PHASE] = phase
        words[_CHANGED_NS] = clock_ns()
        words[_ALIVE] += 1
        words[_SEQUENCE] += 1

    def advance(self, step: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        words = self._words
        words[_SEQUENCE] += 1
        words[_STEP] = step
        words[_CHANGED_NS] = clock_ns()
        words[_ALIVE] += 1
        words[_SEQUENCE] += 1

    def adopt(self, view: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """The training thread works in this view from now on."""
        words = self._words
        words[_SEQUENCE] += 1
        words[_VIEW] = view
        words[_CHANGED_NS] = clock_ns()
        words[_ALIVE] += 1
        words[_SEQUENCE] += 1

    def computing(self, shard: int | None) -> None:
        """This shard is being computed from now on, or none; should it kill us, the page will say so."""
        self._words[_SHARD] = 0 if shard is None else shard + 1

    def join(self) -> None:
        """This process takes part: from now on only what it says itself is an end."""
        self._words[_JOINED] = 1

    def contribute(self, step: int) -> None:
        """A result that was not there before: the job has come this far with the help of this process."""
        self._words[_CONTRIBUTED] = max(step, self._words[_CONTRIBUTED])

    def end(self, *, ended: bool = True) -> None:
        """The loop of steps is over; or it is not, since another one begins."""
        self._words[_ENDED] = ended

    def close_job(self) -> None:
        """All that is left to do in this job is in the script of this process."""
        self._words[_CLOSES] = 1

    def expect(self, total: int, samples: int) -> None:
        """The run has so many steps in all, of so many samples each (0: nobody knows)."""
        self._words[_TOTAL] = total
        self._words[_SAMPLES] = samples

    def tell_loss(self, loss: float) -> None:
        """The loss of the newest step."""
        self._floats[_LOSS] = loss or -0.0

    def saves_to(self, place: str) -> None:
        """Where checkpoints are."""
        encoded = place.encode(errors="replace")[:PLACE_MOST_BYTES]
        self._map[_PLACE_AT : _PLACE_AT + len(encoded)] = encoded
        self._words[_PLACE_BYTES] = len(encoded)

    def saved(self, step: int, at_ns: int) -> None:
        """The state after this step is saved, since that moment (0: since before this process)."""
        self._words[_SAVED_NS] = at_ns
        self._words[_SAVED] = step + 1

    def live(self, incarnation: int) -> None:
        """Which life this is; a single word, told by the thread that registers."""
        self._words[_INCARNATION] = incarnation

    def tick(self) -> None:
        """Still here, although neither step nor phase changed."""
        self._words[_ALIVE] += 1

    @property
    def leave_requested(self) -> bool:
        return self._words[_LEAVE] != 0

    def close(self) -> None:
        self._floats.release()
        self._words.release()
        self._map.close()


class ProgressReader:
    """The agent's side of the page; it creates the page before the replica starts."""

    def __init__(self, path: Path) -> None:
        self._map, self._words = _map(path)
        self._floats = self._words.cast("B").cast("d")

    @classmethod
    def create(cls, path: Path) -> ProgressReader:
        create_page(path)
        return cls(path)

    def read(self) -> Reading:
        words = self._words
        consistent = False
        for _ in range(_READ_ATTEMPTS):
            before = words[_SEQUENCE]
            fields = words[_PID : _ALIVE + 1].tolist()
            consistent = before == words[_SEQUENCE] and before % 2 == 0
            if consistent:
                break
        pid, incarnation, view, step, phase, changed_ns, alive = fields
        if phase > max(Phase):
            raise ProtocolError(f"the progress page of process {pid} names an unknown phase {phase}")
        return Reading(
            pid,
            incarnation,
            view,
            step,
            Phase(phase),
            changed_ns,
            alive,
            consistent,
            shard=words[_SHARD] - 1,
            joined=words[_JOINED] != 0,
            contributed=words[_CONTRIBUTED],
            ended=words[_ENDED] != 0,
            closes=words[_CLOSES] != 0,
            total=words[_TOTAL],
            # Adding makes a plain zero of the one that stands for it.
            loss=self._floats[_LOSS] + 0.0 if words[_LOSS] else None,
            samples=words[_SAMPLES],
            saved=words[_SAVED] - 1,
            saved_ns=words[_SAVED_NS],
            place=self._place(),
        )

    def _place(self) -> str:
        size = min(self._words[_PLACE_BYTES], PLACE_MOST_BYTES)
        return self._map[_PLACE_AT : _PLACE_AT + size].decode(errors="replace") if size else ""

    def born(self, pid: int) -> None:
        """Whose page it is; a program that never joins does not say so itself."""
        self._words[_PID] = pid

    def request_leave(self) -> None:
        self._words[_LEAVE] = 1

    def close(self) -> None:
        self._floats.release()
        self._words.release()
        self._map.close()


def create_page(path: Path) -> None:
    """Put a fresh page at `path`, whole from the first moment; an older one stays with who has it mapped."""
    words = memoryview(bytearray(PAGE_BYTES)).cast("Q")
    words[_HEAD] = _MAGIC
    words[_CHANGED_NS] = time.monotonic_ns()
    write_file(path, words.cast("B"))


def _map(path: Path) -> tuple[mmap.mmap, memoryview[int]]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size, owner = os.fstat(fd).st_size, os.fstat(fd).st_uid
        if owner not in (os.geteuid(), 0):
            raise ProtocolError(
                f"{path} is no progress page of ours: it belongs to another user (id {owner})"
            )
        if size != PAGE_BYTES:
            raise ProtocolError(f"{path} is no progress page: it has {size} bytes, not {PAGE_BYTES}")
        mapped = mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)
    words = memoryview(mapped).cast("Q")
    if words[_HEAD] != _MAGIC:
        head = words[_HEAD]
        words.release()
        mapped.close()
        raise ProtocolError(
            f"{path} is no progress page of version {VERSION} (it starts with {head:#018x}): "
            "agent and training script must use the same version of Outlast"
        )
    return mapped, words
