"""Patience by itself, with a storage, a clock and a chance of the test's own."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from outlast.errors import ConfigError, ObjectMissing, StorageDenied, StorageUnavailable
from outlast.state.storage import giving_up
from outlast.state.storage.files import Files
from outlast.state.storage.patience import Patience, Patient
from outlast.state.storage.seam import Bytes, Stored
from patience import PATIENCE_S


class Moody:
    """Files that fail as they are told, before or after they did what was asked."""

    def __init__(self, root: Path) -> None:
        self._files = Files(root)
        self.url = self._files.url
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.calls = 0

    @contextlib.contextmanager
    def _mood(self) -> Iterator[None]:
        self.calls += 1
        if self.before:
            raise self.before.pop(0)
        yield
        if self.after:
            raise self.after.pop(0)

    def put(self, key: str, data: Bytes) -> None:
        with self._mood():
            self._files.put(key, data)

    def create(self, key: str, data: Bytes) -> bool:
        with self._mood():
            return self._files.create(key, data)
        raise AssertionError

    def get(self, key: str, most_bytes: int) -> bytes:
        with self._mood():
            return self._files.get(key, most_bytes)
        raise AssertionError

    def read_into(self, key: str, out: memoryview) -> None:
        with self._mood():
            self._files.read_into(key, out)

    def list(self, prefix: str) -> Iterator[Stored]:
        for stored in self._files.list(prefix):
            with self._mood():
                pass
            yield stored

    def delete(self, keys: Iterable[str]) -> None:
        with self._mood():
            self._files.delete(keys)


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def moody(tmp_path: Path) -> Moody:
    return Moody(tmp_path)


@pytest.fixture
def clock() -> Time:
    return Time()


def away(times: int) -> list[Exception]:
    return [StorageUnavailable("away") for _ in range(times)]


def patient(
    moody: Moody, clock: Time, chance: Callable[[], float] = lambda: 1.0, **settings: float
) -> Patient:
    return Patient(moody, Patience(**settings), clock=clock, pause=clock.pause, chance=chance)  # type: ignore[arg-type]


def test_pauses_grow_up_to_a_longest(moody: Moody, clock: Time) -> None:
    moody.before = away(7)
    patient(moody, clock, first_pause_s=0.5, longest_pause_s=4.0).put("a", b"1")
    assert clock.pauses == [0.5, 1, 2, 4, 4, 4, 4]
    assert moody.calls == 8


def test_pauses_are_by_chance(moody: Moody, clock: Time) -> None:
    chances = iter([0.0, 0.5, 0.25])
    moody.before = away(3)
    patient(moody, clock, lambda: next(chances), first_pause_s=1.0).put("a", b"1")
    assert clock.pauses == [0.0, 1.0, 1.0]


def test_the_deadline_ends_it(moody: Moody, clock: Time) -> None:
    moody.before = away(100)
    with pytest.raises(StorageUnavailable, match=r"away.*tried 5 times in 20 s"):
        patient(moody, clock, within_s=20, attempt_within_s=20, first_pause_s=1.0).put("a", b"1")
    assert clock.pauses == [1, 2, 4, 8]


def test_the_number_of_attempts_ends_it(moody: Moody, clock: Time) -> None:
    moody.before = away(100)
    with pytest.raises(StorageUnavailable, match=r"away.*tried 2 times") as caught:
        patient(moody, clock, attempts=2).put("a", b"1")
    assert isinstance(caught.value.__cause__, StorageUnavailable)
    assert moody.calls == 2


@pytest.mark.parametrize("error", [StorageDenied("no"), ObjectMissing("gone"), ZeroDivisionError()])
def test_only_what_may_pass_is_tried_again(moody: Moody, clock: Time, error: Exception) -> None:
    moody.before = [error]
    with pytest.raises(type(error)):
        patient(moody, clock).get("a", 1)
    assert moody.calls == 1


def test_who_is_stopped_waits_no_longer(moody: Moody) -> None:
    stopped = threading.Event()
    storage = Patient(
        moody,
        Patience(within_s=9999.0, first_pause_s=1000.0, longest_pause_s=1000.0),
        stopped=stopped,
        chance=lambda: 1.0,
    )
    moody.before = away(100)
    failed = threading.Event()

    def put() -> None:
        with contextlib.suppress(StorageUnavailable):
            storage.put("a", b"1")
        failed.set()

    thread = threading.Thread(target=put)
    thread.start()
    while not moody.calls:
        assert not failed.wait(0.01)
    stopped.set()
    thread.join(PATIENCE_S)
    assert failed.is_set()
    calls = moody.calls
    with pytest.raises(StorageUnavailable, match="this process ends"):
        storage.get("a", 1)
    assert moody.calls == calls


def test_create_after_an_unknown_outcome_looks_whose_it_is(moody: Moody, clock: Time) -> None:
    storage = patient(moody, clock)
    moody.after = away(1)
    assert storage.create("mine", b"mine")
    moody.after = away(3)
    assert storage.create("mine-too", b"mine")
    moody.put("theirs", b"theirs")
    moody.before = away(2)
    assert not storage.create("theirs", b"mine")
    moody.before = away(2)
    assert not storage.create("theirs", b"mine, and longer than theirs")
    moody.before = away(2)
    assert not storage.create("theirs", b"")
    # Without a failure before it, equal bytes prove nothing.
    assert not storage.create("theirs", b"theirs")


def test_a_listing_goes_on_where_it_broke_off(moody: Moody, clock: Time) -> None:
    for key in ("a", "b", "c", "d"):
        moody.put(key, b"1")
    moody.calls = 0
    moody.before = away(2)
    storage = patient(moody, clock)
    assert [stored.key for stored in storage.list("")] == ["a", "b", "c", "d"]
    assert moody.calls == 6


def test_a_listing_of_several_pages_repeats_nothing(
    moody: Moody, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.state.storage.patience._PAGE", 2)
    keys = ["a", "b", "c", "d", "e"]
    for key in keys:
        moody.put(key, b"1")
    listing = patient(moody, clock).list("")
    assert next(listing).key == "a"
    moody.before = away(3)
    assert [stored.key for stored in listing] == keys[1:]


def test_an_iterator_of_keys_is_deleted_whole_at_the_second_attempt(moody: Moody, clock: Time) -> None:
    moody.put("a", b"1")
    moody.put("b", b"1")
    moody.after = away(1)
    patient(moody, clock).delete(iter(["a", "b"]))
    assert list(moody.list("")) == []


def test_what_hangs_is_left_behind_and_stays_invisible(tmp_path: Path) -> None:
    files = Files(tmp_path)
    reached, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Hanging(Moody):
        def put(self, key: str, data: Bytes) -> None:
            if self.calls == 0:
                self.calls += 1
                reached.set()
                assert go_on.wait(PATIENCE_S)
                with pytest.raises(StorageUnavailable, match="given up"):
                    files.put(key, data)
                ended.set()
            else:
                files.put(key, data)

    storage = Patient(
        Hanging(tmp_path), Patience(attempt_within_s=0.2, within_s=PATIENCE_S, first_pause_s=0.001)
    )
    memory = bytearray(b"old")
    storage.put("a", memory)
    assert reached.is_set()
    # The memory is used for something else, and the call that was given up comes back to life.
    memory[:] = b"new"
    go_on.set()
    assert ended.wait(PATIENCE_S)
    assert files.get("a", 3) == b"old"


def test_nobody_has_given_up_in_an_ordinary_thread() -> None:
    giving_up.check()


@pytest.mark.parametrize(
    "settings",
    [
        {"within_s": 0.0},
        {"attempt_within_s": 0.0},
        {"within_s": 1.0, "attempt_within_s": 2.0},
        {"attempts": 0},
        {"first_pause_s": 0.0},
        {"first_pause_s": 20.0},
    ],
)
def test_settings_that_cannot_work(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Patience(**settings)  # type: ignore[arg-type]
