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

Every word is aligned and stored at once, so none is ever seen half written. That several belong together is
told by the sequence (a *sequence lock*): it is odd while the writer is at work. The reader tries again a few
times, and then takes what is there: the writer may have been stopped or killed in the middle, and a reading
of step *k* with the phase of *k+1* is better than none. There is one writer thread, the one that trains;
`tick` and `live` alone may be called from others. The shard belongs to nothing: it is one word by itself,
written in the innermost loop and read when the process is dead.
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

VERSION = 2
PAGE_BYTES = 4096

_MAGIC = int.from_bytes(b"OUTLAST\0", "little") | VERSION << 56
_HEAD, _SEQUENCE, _PID, _INCARNATION, _VIEW, _STEP, _PHASE, _CHANGED_NS, _ALIVE, _LEAVE, _SHARD = range(11)
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

    def unchanged_s(self, now_ns: int) -> float:
        """For how long neither view, step nor phase has changed, given `time.monotonic_ns()`."""
        return (now_ns - self.changed_ns) / 1e9


class Progress:
    """The replica's side of the page."""

    def __init__(self, path: Path) -> None:
        self._map, self._words = _map(path)
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
        self._words.release()
        self._map.close()


class ProgressReader:
    """The agent's side of the page; it creates the page before the replica starts."""

    def __init__(self, path: Path) -> None:
        self._map, self._words = _map(path)

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
        shard = words[_SHARD] - 1
        return Reading(pid, incarnation, view, step, Phase(phase), changed_ns, alive, consistent, shard)

    def request_leave(self) -> None:
        self._words[_LEAVE] = 1

    def close(self) -> None:
        self._words.release()
        self._map.close()


def create_page(path: Path) -> None:
    """Put a fresh page at `path`, whole from the first moment; an older one stays with who has it mapped."""
    words = memoryview(bytearray(PAGE_BYTES)).cast("Q")
    words[_HEAD] = _MAGIC
    words[_CHANGED_NS] = time.monotonic_ns()
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_bytes(words)
    fresh.replace(path)


def _map(path: Path) -> tuple[mmap.mmap, memoryview[int]]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
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
