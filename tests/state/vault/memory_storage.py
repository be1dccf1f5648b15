"""A storage in memory, with hooks for what real ones do: fail at any call, lose an
answer, damage an object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from outlast.errors import ObjectDamaged, ObjectMissing, StorageUnavailable
from outlast.state.storage.seam import Bytes, Stored


class MemoryStorage:
    def __init__(self) -> None:
        self.url = "memory://test"
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda call, key: None
        """Called before every call takes effect; what it raises is what the call raises."""
        self.after: Callable[[str, str], None] = lambda call, key: None
        """The same after it took effect: an answer that is lost."""
        self._lock = threading.RLock()

    def put(self, key: str, data: Bytes) -> None:
        self._enter("put", key)
        with self._lock:
            self.objects[key] = bytes(data)
        self.after("put", key)

    def create(self, key: str, data: Bytes) -> bool:
        self._enter("create", key)
        with self._lock:
            if key in self.objects:
                return False
            self.objects[key] = bytes(data)
        self.after("create", key)
        return True

    def get(self, key: str, most_bytes: int) -> bytes:
        self._enter("get", key)
        data = self._object(key)
        if len(data) > most_bytes:
            raise ObjectDamaged(f"{key} in {self.url} has {len(data)} bytes, more than {most_bytes}.")
        return data

    def read_into(self, key: str, out: memoryview) -> None:
        self._enter("read_into", key)
        data = self._object(key)
        if len(data) != len(out):
            raise ObjectDamaged(f"{key} in {self.url} has {len(data)} bytes instead of {len(out)}.")
        out[:] = data

    def list(self, prefix: str) -> Iterator[Stored]:
        assert prefix.endswith("/")
        self._enter("list", prefix)
        with self._lock:
            found = sorted((key, len(data)) for key, data in self.objects.items() if key.startswith(prefix))
        return (Stored(*item) for item in found)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._enter("delete", key)
            with self._lock:
                self.objects.pop(key, None)

    def flip_bit(self, key: str, place: int = -1) -> None:
        data = bytearray(self.objects[key])
        data[place] ^= 1
        self.objects[key] = bytes(data)

    def cut_short(self, key: str) -> None:
        self.objects[key] = self.objects[key][:-1]

    def _enter(self, call: str, key: str) -> None:
        with self._lock:
            self.calls.append((call, key))
        self.before(call, key)

    def _object(self, key: str) -> bytes:
        with self._lock:
            if key not in self.objects:
                raise ObjectMissing(f"{key} is not in {self.url}.")
            return self.objects[key]


class Failing:
    """Makes the call number `at` fail, before or after it takes effect; every later one as well if `dead`."""

    def __init__(
        self, storage: MemoryStorage, at: int, *, dead: bool = False, lost_answer: bool = False
    ) -> None:
        self.failed = 0
        self._at, self._dead, self._count = at, dead, 0
        if lost_answer:
            storage.after = self._call
        else:
            storage.before = self._call

    def _call(self, call: str, key: str) -> None:
        number, self._count = self._count, self._count + 1
        if number == self._at or (self._dead and number > self._at):
            self.failed += 1
            raise StorageUnavailable(f"{call} of {key}: no answer")
