"""Two jobs with one URL: the second is told so, unless the first has ended, by whatever sign."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from checkpoints import claimed, dead_process
from memory_storage import MemoryStorage

from outlast.errors import StorageUnavailable, VaultTaken
from outlast.state.vault.manifest import Claim
from outlast.state.vault.names import beat_name, claim_name
from outlast.state.vault.occupancy import Beat, Beating, Process, Watch, note_end
from outlast.state.vault.vault import Vault
from patience import PATIENCE_S

ELSEWHERE = Process("elsewhere", 42, 1, "pid:[7]", "another boot")


def never(seconds: float) -> None:
    raise AssertionError("this can be decided without waiting")


AT_ONCE = Watch(wait=never)


@contextlib.contextmanager
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def begin(vault: Vault, process: Process, run: str = "first") -> Claim:
    return vault.make_claim(run=run, lineage=1, base=None, process=process, watch=AT_ONCE)


def next_one(vault: Vault, watch: Watch = AT_ONCE, run: str = "second") -> Claim:
    return vault.make_claim(run=run, lineage=1, base=None, watch=watch)


def beats(storage: MemoryStorage, counter: int, process: Process = ELSEWHERE, *, ended: bool = False) -> None:
    beat = Beat(counter, ended, "first", 2.0, process)
    storage.objects[beat_name(1)] = msgspec.json.encode(beat)


def test_a_living_job_on_this_machine_is_named() -> None:
    vault = Vault(MemoryStorage())
    with child() as pid:
        begin(vault, Process.of(pid))
        with pytest.raises(VaultTaken, match=rf"'first' on .*process {pid}.*a URL of its own"):
            next_one(vault)
    assert next_one(vault).number == 2, "it is dead now"


def test_a_dead_job_is_taken_over_from_at_once() -> None:
    vault = Vault(MemoryStorage())
    claimed(vault, run="first")
    assert next_one(vault).number == 2


def test_a_number_that_came_again_is_another_process() -> None:
    own = Process.own()
    assert own.look() == "alive" and dead_process().look() == "dead"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    process = Process.of(gone.pid)
    gone.wait()
    assert process.look() == "dead"


def test_processes_of_other_machines_and_containers_are_unknown() -> None:
    own = Process.own()
    assert msgspec.structs.replace(own, boot_id="other").look() == "unknown"
    assert msgspec.structs.replace(own, pid_space="pid:[1]").look() == "unknown"
    assert msgspec.structs.replace(own, boot_id="").look() == "unknown"


def test_the_same_run_may_always_go_on() -> None:
    vault = Vault(MemoryStorage())
    begin(vault, Process.own())
    assert next_one(vault, run="first").number == 2


def test_a_clean_end_lets_the_next_one_in_at_once() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    note_end(storage, begin(vault, ELSEWHERE))
    assert next_one(vault).number == 2


def watching(storage: MemoryStorage, happens: Callable[[int], None]) -> tuple[Watch, list[float]]:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        happens(len(waits))

    return Watch(beats=3, wait=wait), waits


def test_a_beat_that_moves_is_a_living_job() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    begin(vault, ELSEWHERE)
    beats(storage, 5)
    watch, waits = watching(storage, lambda count: beats(storage, 6) if count == 4 else None)
    with pytest.raises(VaultTaken, match=r"'first' on elsewhere \(process 42\)"):
        next_one(vault, watch)
    assert len(waits) == 4


def test_a_beat_that_stands_still_is_a_dead_one() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    begin(vault, ELSEWHERE)
    beats(storage, 5)
    watch, waits = watching(storage, lambda count: None)
    assert next_one(vault, watch).number == 2
    assert sum(waits) == 3 * 2.0


def test_a_job_that_has_not_beaten_yet_is_given_time() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    begin(vault, ELSEWHERE)
    watch, _ = watching(storage, lambda count: beats(storage, 1) if count == 2 else None)
    with pytest.raises(VaultTaken):
        next_one(vault, watch)


def test_a_job_may_end_while_it_is_watched() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    begin(vault, ELSEWHERE)
    beats(storage, 5)
    watch, waits = watching(storage, lambda count: beats(storage, 6, ended=True))
    assert next_one(vault, watch).number == 2 and len(waits) == 1


def test_another_process_of_the_run_may_have_taken_over_the_beat() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    claimed(vault, run="first")
    with child() as pid:
        beats(storage, 9, Process.of(pid))
        with pytest.raises(VaultTaken, match=f"process {pid}"):
            next_one(vault)


def test_a_damaged_beat_counts_as_one_if_it_changes() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    begin(vault, ELSEWHERE)
    storage.objects[beat_name(1)] = b"?"
    watch, _ = watching(storage, lambda count: None)
    moving, _ = watching(storage, lambda count: storage.objects.update({beat_name(1): b"%d" % count}))
    with pytest.raises(VaultTaken):
        next_one(vault, moving)
    assert next_one(vault, watch).number == 2


def test_a_damaged_claim_is_still_watched() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    begin(vault, ELSEWHERE)
    storage.objects[claim_name(1)] = b""
    watch, _ = watching(storage, lambda count: beats(storage, count))
    with pytest.raises(VaultTaken):
        next_one(vault, watch)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_the_holder_beats_and_says_when_it_ends() -> None:
    storage = MemoryStorage()
    vault = Vault(storage)
    claim = begin(vault, Process.own())
    with Beating(storage, claim, every_s=0.01):
        until(lambda: storage.calls.count(("put", beat_name(1))) > 3)
        with pytest.raises(VaultTaken, match=f"process {os.getpid()}"):
            next_one(vault)
    assert msgspec.json.decode(storage.objects[beat_name(1)], type=Beat).ended
    count = len(storage.calls)
    assert next_one(vault).number == 2
    assert ("put", beat_name(1)) not in storage.calls[count:]
    assert not [thread for thread in threading.enumerate() if thread.name == "outlast-claim"]


def test_an_end_that_is_not_clean_says_nothing() -> None:
    storage = MemoryStorage()
    claim = begin(Vault(storage), Process.own())
    beating = Beating(storage, claim, every_s=0.01)
    until(lambda: beat_name(1) in storage.objects)
    beating.end(clean=False)
    assert not msgspec.json.decode(storage.objects[beat_name(1)], type=Beat).ended


def test_a_storage_that_fails_does_not_stop_the_beat() -> None:
    storage = MemoryStorage()
    claim = begin(Vault(storage), Process.own())
    broken = threading.Event()
    broken.set()
    tried: list[str] = []

    def fail(call: str, key: str) -> None:
        tried.append(key)
        if broken.is_set():
            raise StorageUnavailable("gone")

    storage.before = fail
    with Beating(storage, claim, every_s=0.005):
        until(lambda: len(tried) > 3)
        assert beat_name(1) not in storage.objects
        broken.clear()
        until(lambda: beat_name(1) in storage.objects)
