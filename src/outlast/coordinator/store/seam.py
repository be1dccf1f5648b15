"""The seam between the coordinator and whatever keeps its state.

The coordinator's state machine decides; a store remembers. Everything that the coordinator must never forget
goes through the few calls below, and nothing else does. The shape is that of etcd's data model, because it is
small, well understood, and because etcd itself is one of the stores:

- The store maps keys to values. Every transaction that changes something gets the next **revision**, one
  number for the whole store, and an entry remembers at which revisions it was created and last modified.
- A **commit** is one atomic transaction: a list of compares that must all hold, and the writes that then
  happen together. Compare-and-swap, leadership and fencing are all made from it.
- A **lease** is a promise to show up again: whoever bound keys to a lease and stops renewing it loses them,
  in an ordinary revision that every watcher sees.
- A **watch** replays every change since a revision and then follows the new ones. It is read from the
  history, so a watcher that breaks and resumes, or that is slow, misses nothing and costs no memory.

A store promises that nothing is visible, neither to reads nor to watches, before it is durable, and that what
was once visible stays.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from msgspec import Struct

from outlast.errors import UsageError

MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 1 << 20
MAX_OPERATIONS = 128
"""How many compares, and how many writes, one transaction may have; etcd's own default."""


class Entry(Struct, frozen=True):
    """A key's value, the revisions that created and last modified it, and its lease (0: none)."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: int = 0


class Snapshot(Struct, frozen=True):
    """What a read saw: all entries under a prefix, ordered by key, as they were at one revision."""

    revision: int
    entries: dict[str, Entry]


class Absent(Struct, frozen=True):
    """Holds when the key does not exist."""

    key: str


class ModifiedAt(Struct, frozen=True):
    """Holds when the key exists and this very revision was the last to write it."""

    key: str
    revision: int


class CreatedAt(Struct, frozen=True):
    """Holds when the key exists and has existed without a break since this very revision."""

    key: str
    revision: int


class Put(Struct, frozen=True):
    """Sets a key. The lease replaces the one that the key had, and 0 frees the key from any."""

    key: str
    value: bytes
    lease: int = 0


class Delete(Struct, frozen=True):
    """Removes a key; removing one that does not exist is no change."""

    key: str


Compare = Absent | ModifiedAt | CreatedAt
Write = Put | Delete


class Commit(Struct, frozen=True):
    """What became of a transaction, and the store's revision right after it."""

    succeeded: bool
    revision: int


class Event(Struct, frozen=True):
    """One change of one key; `value` is None when the key was deleted."""

    revision: int
    key: str
    value: bytes | None


class Store(Protocol):
    """Where the coordinator's state lives. All calls but `close` raise `StoreError` once it is closed."""

    reads_newest: bool
    """Whether a read sees all that was committed before. Where it may see the past, as some versions of etcd
    do after a pause, only a commit proves that it did not."""

    comes_back: bool
    """Whether one that cannot be read now may be read later, with nothing done about it here. One that does
    not has to be opened anew."""

    async def read(self, prefix: str) -> Snapshot:
        """All entries whose key begins with the prefix, as they were at one revision, with that revision."""

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        """One atomic transaction: if every compare holds, all writes happen; otherwise none does.

        The revision grows by one if anything changed: a put always does, a delete only of a key that exists.
        Raises `StoreFull` when there is no space (nothing happened), `OutcomeUnknown` when it may or may not
        have happened, and `StoreError` when the compares hold but a put names a lease that is gone.
        """

    async def grant(self, ttl_s: float) -> int:
        """A new lease that ends unless it is renewed every `ttl_s`; a store may round the time up."""

    async def renew(self, lease: int) -> bool:
        """Starts the lease's time anew; False when it is gone, and then it stays gone."""

    async def revoke(self, lease: int) -> None:
        """Ends a lease now, deleting its keys in one revision; revoking one that is gone does nothing."""

    def watch(self, prefix: str, after: int) -> AsyncGenerator[Event, None]:
        """Every change under the prefix with a revision greater than `after`: in order, exactly once.

        It begins with what has already happened and never ends by itself. It breaks (raises) only between
        revisions, never inside one, so a reader that was handed everything so far resumes with the last
        revision that it saw. Raises `Compacted` when the history since `after` is no longer there: then read
        the state anew and watch from the read's revision.
        """

    async def close(self) -> None:
        """Lets commits under way finish and gives everything back; closing twice is fine."""


def check_transaction(compares: Sequence[Compare], writes: Sequence[Write]) -> None:
    """Raises `UsageError` for a transaction that not every store could take."""
    for what, operations in (("compares", compares), ("writes", writes)):
        if len(operations) > MAX_OPERATIONS:
            raise UsageError(
                f"A transaction has {len(operations)} {what}; at most {MAX_OPERATIONS} are possible. "
                "Split it into several transactions."
            )
    for compare in compares:
        _check_key(compare.key)
        if not isinstance(compare, Absent) and compare.revision < 1:
            raise UsageError(
                f"Key {compare.key!r} is compared with revision {compare.revision}, but revisions begin at "
                "1. To ask for a key that does not exist, compare with Absent."
            )
    written = set()
    for write in writes:
        _check_key(write.key)
        if write.key in written:
            raise UsageError(
                f"A transaction writes key {write.key!r} twice. Write it once, with the final value."
            )
        written.add(write.key)
        if isinstance(write, Put):
            _check_value(write.key, write.value)


def check_ttl(ttl_s: float) -> None:
    """Raises `UsageError` for a time to live that cannot work."""
    if not (math.isfinite(ttl_s) and ttl_s > 0):
        raise UsageError(f"A lease cannot live for {ttl_s} s. Choose a time greater than zero.")


def _check_key(key: str) -> None:
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(f"Key {key!r} is not valid Unicode text.") from None
    if not 0 < size_bytes <= MAX_KEY_BYTES:
        raise UsageError(f"Key {key[:80]!r} has {size_bytes} bytes; it must have 1 to {MAX_KEY_BYTES}.")


def _check_value(key: str, value: object) -> None:
    # The type is checked too: a log that holds anything else could not be read again.
    if not isinstance(value, bytes):
        raise UsageError(f"The value of key {key!r} is of type {type(value).__name__}; it must be bytes.")
    if len(value) > MAX_VALUE_BYTES:
        raise UsageError(
            f"The value of key {key!r} has {len(value)} bytes; at most {MAX_VALUE_BYTES} are possible. "
            "Keep large data in files and store their names."
        )
