"""Trying again, and not for ever.

Storages are away for a moment every day: a server restarts, a network stutters, somebody says SlowDown. A
`Patient` storage tries a call again when it failed with `StorageUnavailable`, and only then: what is denied,
full, missing or damaged stays so. It pauses longer and longer, by chance rather than in step with all the
other members who failed in the same instant, and gives up at a deadline, with the last failure as the reason.

Not every client has timeouts that hold. So each attempt runs in another thread, and one that does not
come back is left behind: it will not make anything visible any more (`giving_up.py`). It may still hold the
memory it was given, though, and fill it if it was reading. Hence the one rule for callers: **memory that was
given to a `read_into` that failed with `StorageUnavailable` is not used again.**

A create whose outcome is unknown is asked again; when the answer is that there is such an object, the bytes
decide whether it is our own.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, final

from outlast.errors import ConfigError, ObjectDamaged, ObjectMissing, StorageUnavailable
from outlast.state.storage import giving_up
from outlast.state.storage.seam import Bytes, Storage, Stored

_Result = TypeVar("_Result")

_PAGE = 1000
# How often a waiting call looks whether the process ends.
_LOOK_EVERY_S = 0.1
_IDLE_FOR_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a storage may be away before that is a failure."""

    within_s: float = 120.0
    """The whole of a call, with all attempts and pauses. Longer rides out longer outages, and tells later."""

    attempt_within_s: float = 60.0
    """One attempt; one that hangs is given up then. It must suffice for the largest object on a slow day."""

    attempts: int = 12
    """At most this many, however little time they took."""

    first_pause_s: float = 0.1
    """The longest that the first pause can be; it doubles with each failure."""

    longest_pause_s: float = 10.0
    """No pause is longer than this. Shorter notices sooner that the storage is back, and asks it more
    often."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        if not 0 < self.attempt_within_s <= self.within_s:
            raise ConfigError(
                f"attempt_within_s is {self.attempt_within_s} and within_s {self.within_s}, but one attempt "
                "must have some time, and not more than all of them"
            )
        if self.attempts < 1:
            raise ConfigError(
                f"attempts is {self.attempts}, but something must be tried; use 1 to never try again"
            )
        if not 0 < self.first_pause_s <= self.longest_pause_s:
            raise ConfigError(
                f"first_pause_s is {self.first_pause_s} and longest_pause_s {self.longest_pause_s}, but "
                "pauses begin above 0 and become longer"
            )


@final
class Patient:
    def __init__(
        self,
        storage: Storage,
        patience: Patience | None = None,
        *,
        stopped: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Once `stopped` is set, calls fail rather than wait. `clock`, `pause` and `chance` are for tests."""
        self.url = storage.url
        self._storage = storage
        self._patience = patience or Patience()
        self._stopped = stopped or threading.Event()
        self._clock = clock
        self._pause = pause or self._stopped.wait
        self._chance = chance

    def put(self, key: str, data: Bytes) -> None:
        self._persist(lambda: self._storage.put(key, data))

    def create(self, key: str, data: Bytes) -> bool:
        unknown = False

        def create() -> bool:
            nonlocal unknown
            try:
                created = self._storage.create(key, data)
            except StorageUnavailable:
                unknown = True
                raise
            return created or (unknown and self._is_there(key, data))

        def given_up() -> None:
            nonlocal unknown
            unknown = True

        return self._persist(create, given_up)

    def get(self, key: str, most_bytes: int) -> bytes:
        return self._persist(lambda: self._storage.get(key, most_bytes))

    def read_into(self, key: str, out: memoryview) -> None:
        self._persist(lambda: self._storage.read_into(key, out))

    def list(self, prefix: str) -> Iterator[Stored]:
        # A wrong prefix is told at once, not when the first object is asked for.
        return self._listed(prefix, self._storage.list(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        # An iterator would be empty the second time.
        every = list(keys)
        self._persist(lambda: self._storage.delete(every))

    def _is_there(self, key: str, data: Bytes) -> bool:
        try:
            return self._storage.get(key, memoryview(data).nbytes) == memoryview(data).cast("B")
        except (ObjectMissing, ObjectDamaged):
            return False

    def _listed(self, prefix: str, listing: Iterator[Stored]) -> Iterator[Stored]:
        last = ""
        broken = False

        def page() -> list[Stored]:
            nonlocal listing, broken
            if broken:
                listing = self._storage.list(prefix)
            # Whatever happens now, this iterator is not to be used again unless it came to its page's end.
            broken = True
            found = list(islice((stored for stored in listing if stored.key > last), _PAGE))
            broken = False
            return found

        while found := self._persist(page):
            yield from found
            last = found[-1].key

    def _persist(self, call: Callable[[], _Result], given_up: Callable[[], None] = lambda: None) -> _Result:
        deadline = self._clock() + self._patience.within_s
        attempt = 0
        while True:
            attempt += 1
            within_s = min(self._patience.attempt_within_s, deadline - self._clock())
            try:
                return self._attempt(call, within_s, given_up)
            except StorageUnavailable as error:
                longest = min(
                    self._patience.longest_pause_s, self._patience.first_pause_s * 2 ** (attempt - 1)
                )
                pause_s = longest * self._chance()
                why_not = self._why_not_again(attempt, deadline, pause_s)
                if why_not:
                    raise StorageUnavailable(f"{error} {why_not}") from error
            self._pause(pause_s)

    def _why_not_again(self, attempt: int, deadline: float, pause_s: float) -> str:
        if self._stopped.is_set():
            return "It was not tried again, since this process ends."
        if attempt >= self._patience.attempts:
            return f"It was tried {attempt} times."
        if self._clock() + pause_s >= deadline:
            return f"It was tried {attempt} times in {self._patience.within_s:g} s."
        return ""

    def _attempt(self, call: Callable[[], _Result], within_s: float, given_up: Callable[[], None]) -> _Result:
        if self._stopped.is_set():
            raise StorageUnavailable(f"{self.url} was not asked.")
        attempt = _Attempt(call)
        _begin(attempt)
        ends = time.monotonic() + within_s
        while not attempt.done.wait(max(0.0, min(_LOOK_EVERY_S, ends - time.monotonic()))):
            if time.monotonic() >= ends or self._stopped.is_set():
                attempt.given_up.set()
                given_up()
                raise StorageUnavailable(f"{self.url} did not answer within {within_s:.1f} s.")
        if attempt.error is not None:
            raise attempt.error
        return attempt.result  # type: ignore[no-any-return]


class _Attempt:
    """One call, which nobody has to wait for: it runs in another thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.done = threading.Event()
        self.given_up = threading.Event()
        self.error: BaseException | None = None
        self.result: Any = None
        self._call = call

    def run(self) -> None:
        giving_up.watch(self.given_up)
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.done.set()


class _Runner:
    """A thread that runs attempts, one at a time. To start one takes longer than to read a small object, so
    it is kept for the next attempt; and it ends when none comes for a while."""

    def __init__(self) -> None:
        self._given: SimpleQueue[_Attempt] = SimpleQueue()
        # A daemon, so that a call that hangs does not keep the process from ending.
        threading.Thread(target=self._serve, name="outlast-storage", daemon=True).start()

    def run(self, attempt: _Attempt) -> None:
        self._given.put(attempt)

    def _serve(self) -> None:
        while True:
            try:
                attempt = self._given.get(timeout=_IDLE_FOR_S)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    # It has just been taken from there: there is something to come.
                    continue
                return
            attempt.run()
            del attempt
            _idle.append(self)


_idle: list[_Runner] = []
# Threads do not come along when a process is forked.
os.register_at_fork(after_in_child=_idle.clear)


def _begin(attempt: _Attempt) -> None:
    try:
        runner = _idle.pop()
    except IndexError:
        runner = _Runner()
    runner.run(attempt)
