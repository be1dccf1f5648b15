"""Whether the holder of a claim is still there: two jobs that write to one URL are told so.

Claims alone make two writers harmless: the later one wins, and the earlier one can commit nothing more. But
a job that was started twice by mistake should end with an error, and not take the place of the one that
trains. So the holder of a claim rewrites a small object beside it every few seconds, and says there when it
ends.

A newcomer that finds no word of an end looks whether the holder lives. On the same machine it asks the
kernel: the holder is a process with a number and a start time. Elsewhere it watches the object for a few
beats. No clock of one machine is ever compared with that of another: all that counts is whether the object
changes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

import msgspec

from outlast import kinship
from outlast.errors import ObjectMissing, StorageError
from outlast.state.storage.seam import Storage
from outlast.state.vault.manifest import Claim
from outlast.state.vault.names import beat_name

BEAT_EVERY_S = 2.0
WATCHED_BEATS = 5
"""A holder whose object stands still for so many beats is gone."""

MAX_BEAT_BYTES = 4096
_END_WITHIN_S = 5.0


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process on one machine, since it was last started; its number alone would come again."""

    host: str
    pid: int
    started: int
    pid_space: str
    """Containers on one machine number their processes by themselves."""
    boot_id: str

    @classmethod
    def own(cls) -> Process:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Process:
        """A process of this machine, such as the launcher of a run, that stands for all of it."""
        found = kinship.stat(pid)
        return cls(socket.gethostname(), pid, found.started_ticks if found else 0, _pid_space(), _boot_id())

    @classmethod
    def of_claim(cls, claim: Claim) -> Process:
        return cls(claim.host, claim.process, claim.process_started, claim.pid_space, claim.boot_id)

    def look(self) -> Literal["alive", "dead", "unknown"]:
        """Unknown if it is one of another machine, or one that we may not see."""
        if not self.boot_id or (self.boot_id, self.pid_space) != (_boot_id(), _pid_space()):
            return "unknown"
        found = kinship.stat(self.pid)
        if found is not None:
            return "alive" if found.started_ticks == self.started and not found.zombie else "dead"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "dead"
        except (OSError, OverflowError):
            return "unknown"
        return "unknown"


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the holder of a claim says again and again."""

    counter: int
    ended: bool
    run: str
    every_s: Annotated[float, msgspec.Meta(gt=0, le=60)]
    process: Process


@dataclass(frozen=True)
class Watch:
    """How long a newcomer looks at a holder that it cannot ask the kernel about."""

    beats: int = WATCHED_BEATS
    wait: Callable[[float], object] = field(default=time.sleep)


class Holder(msgspec.Struct, frozen=True):
    """Who lives and holds the newest claim."""

    run: str
    process: Process

    def __str__(self) -> str:
        return f"the run {self.run!r} on {self.process.host} (process {self.process.pid})"


def find_holder(storage: Storage, number: int, claim: Claim | None, watch: Watch) -> Holder | None:
    """Who holds the claim of this number and lives, if anybody. A damaged claim is given as None."""
    raw, beat = _read_beat(storage, number)
    if beat is not None and beat.ended:
        return None
    holder = _holder(beat, claim)
    found = holder.process.look() if holder else "unknown"
    if found != "unknown":
        return holder if found == "alive" else None
    every_s = beat.every_s if beat else BEAT_EVERY_S
    # Twice per beat, so that the last look comes a whole beat after the last change that may have been
    # missed.
    for _ in range(2 * watch.beats):
        watch.wait(every_s / 2)
        now, beat = _read_beat(storage, number)
        if beat is not None and beat.ended:
            return None
        if now != raw:
            return _holder(beat, claim) or Holder("unknown", Process("an unknown host", 0, 0, "", ""))
    return None


class Beating:
    """Says for the holder of a claim that it lives, from a thread of its own, until `end`.

    Whatever the storage answers: not being able to beat is no reason to stop training.
    """

    def __init__(
        self, storage: Storage, claim: Claim, process: Process | None = None, every_s: float = BEAT_EVERY_S
    ) -> None:
        self._storage = storage
        self._claim = claim
        self._process = process or Process.of_claim(claim)
        self._every_s = every_s
        self._counter = 0
        self._over = threading.Event()
        self._clean = True
        self._thread = threading.Thread(target=self._beat, name="outlast-claim", daemon=True)
        self._thread.start()

    def end(self, *, clean: bool = True) -> None:
        """Stop beating; `clean` says that the next job may begin at once."""
        self._clean = clean
        self._over.set()
        # Bounded, since a storage that does not answer should not keep anybody from ending.
        self._thread.join(_END_WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _beat(self) -> None:
        self._say(ended=False)
        while not self._over.wait(self._every_s):
            self._say(ended=False)
        if self._clean:
            self._say(ended=True)

    def _say(self, *, ended: bool) -> None:
        self._counter += 1
        beat = Beat(self._counter, ended, self._claim.run, self._every_s, self._process)
        with contextlib.suppress(StorageError):
            self._storage.put(beat_name(self._claim.number), msgspec.json.encode(beat) + b"\n")


def note_end(storage: Storage, claim: Claim) -> None:
    """Say that a claim's holder has ended, where nobody beat for it: of commands that take an instant."""
    beat = Beat(0, True, claim.run, BEAT_EVERY_S, Process.of_claim(claim))
    storage.put(beat_name(claim.number), msgspec.json.encode(beat) + b"\n")


def _read_beat(storage: Storage, number: int) -> tuple[bytes | None, Beat | None]:
    """As it is, for comparing, and what it says, if that can be understood."""
    try:
        raw = storage.get(beat_name(number), MAX_BEAT_BYTES)
    except ObjectMissing:
        return None, None
    try:
        return raw, msgspec.json.decode(raw, type=Beat)
    except Exception:
        # A damaged beat still is one when it changes.
        return raw, None


def _holder(beat: Beat | None, claim: Claim | None) -> Holder | None:
    # The beat comes first: another process of the same run may have taken over.
    if beat is not None:
        return Holder(beat.run, beat.process)
    return Holder(claim.run, Process.of_claim(claim)) if claim else None


def _boot_id() -> str:
    return _line("/proc/sys/kernel/random/boot_id")


def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _line(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
