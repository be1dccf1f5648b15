"""What a storage can do, and what each answer promises.

A storage holds objects: bytes under a key such as `chunks/ab/ab12…`. `keys.py` says what a key looks like; no
key is the folder of another one, since on disks it cannot be. All calls are blocking and may be made from
several threads at once. What is put is durable when the call returns: a machine that loses its power in the
next instant still has it; and so is what is listed, whoever put it. An object is there as a whole or not at
all, for every reader, at every moment; what a put that failed or was killed leaves behind is never listed and
never read.

Every failure is a `StorageError`, with the URL and the key in its message; only a key that cannot be one is a
`UsageError`. A put whose outcome is unknown (the connection broke before the answer) raises
`StorageUnavailable`, and the object may or may not be there: put again, or look.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

Bytes = bytes | bytearray | memoryview


class Stored(NamedTuple):
    key: str
    size_bytes: int


class Storage(Protocol):
    url: str
    """As a person would write it, without secrets: for messages."""

    def put(self, key: str, data: Bytes) -> None:
        """Write an object; one that is there already is replaced."""
        ...

    def create(self, key: str, data: Bytes) -> bool:
        """Write an object unless there is one under this key already: False then. Of several who try at the
        same time exactly one gets True. After an unknown outcome, who finds its own bytes there has won."""
        ...

    def get(self, key: str, most_bytes: int) -> bytes:
        """The whole object. ObjectMissing if there is none, ObjectDamaged if it is larger than that."""
        ...

    def read_into(self, key: str, out: memoryview) -> None:
        """Fill `out` with the object, which must have exactly that length, or it is ObjectDamaged."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """All objects whose keys begin with `prefix`, which ends with `/` or is empty, in the order of
        their keys. What is put or deleted meanwhile may or may not be among them."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""
        ...
