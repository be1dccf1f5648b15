"""The log on a disk that is full, that fails, or that loses power: what was acknowledged stays."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_faults import FaultyDisk, PowerCut, PowerCutDisk

from outlast.coordinator.store.keyspace import Keyspace
from outlast.coordinator.store.log import Log, Recovered
from outlast.coordinator.store.records import Change, State, Transaction
from outlast.errors import OutcomeUnknown, StoreError, StoreFull
from patience import PATIENCE_S


def change(revision: int) -> tuple[Change, ...]:
    return (Change(f"key{revision}", b"value%d" % revision),)


def expected(count: int) -> list[Transaction]:
    return [Transaction(change(revision)) for revision in range(1, count + 1)]


def found(directory: Path) -> Recovered:
    log, recovered = Log.open(directory, PowerCutDisk(directory))
    log.close()
    return recovered


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.get)
def test_a_full_disk_undoes_the_record_at_any_byte_and_goes_on_later(tmp_path: Path, number: int) -> None:
    disk = FaultyDisk()
    disk.full_errno = number
    log, _ = Log.open(tmp_path / "store", disk)
    log.append(1, change(1))
    size_bytes = log.size_bytes
    log.append(2, change(2))
    record_bytes = log.size_bytes - size_bytes
    revision = 3
    for space_bytes in range(record_bytes):
        disk.space_bytes = space_bytes
        with pytest.raises(StoreFull, match=r"no space left for .*log.*Free some space"):
            log.append(revision, change(revision))
        assert (tmp_path / "store" / "log").stat().st_size == log.size_bytes
        disk.space_bytes = None
        log.append(revision, change(revision))
        revision += 1
    log.close()
    assert found(tmp_path / "store") == Recovered(0, State(), expected(revision - 1), 0)


def test_a_disk_that_reports_full_only_at_the_sync_undoes_the_record_too(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log, _ = Log.open(tmp_path / "store", disk)
    disk.failures["sync_data"] = [errno.ENOSPC]
    with pytest.raises(StoreFull):
        log.append(1, change(1))
    log.close()
    assert found(tmp_path / "store").transactions == []


def test_a_failed_write_is_undone_and_known_not_to_have_happened(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log, _ = Log.open(tmp_path / "store", disk)
    disk.failures["write"] = [errno.EIO]
    with pytest.raises(StoreError) as caught:
        log.append(1, change(1))
    assert not isinstance(caught.value, StoreFull | OutcomeUnknown)
    log.append(1, change(1))
    log.close()
    assert found(tmp_path / "store").transactions == expected(1)


@pytest.mark.parametrize(
    "failures",
    [
        {"sync_data": [errno.EIO]},
        {"write": [errno.ENOSPC], "truncate": [errno.EIO]},
        {"write": [errno.ENOSPC], "sync_all": [errno.EIO]},
    ],
    ids=["a failed sync", "a failed cut", "a failed sync of a cut"],
)
def test_after_a_failed_sync_nobody_is_told_anything_until_a_reopen(
    tmp_path: Path, failures: dict[str, list[int]]
) -> None:
    disk = FaultyDisk()
    log, _ = Log.open(tmp_path / "store", disk)
    log.append(1, change(1))
    disk.failures.update(failures)
    with pytest.raises(OutcomeUnknown, match="may or may not"):
        log.append(2, change(2))
    for _ in range(2):
        with pytest.raises(StoreError, match="Open the store again"):
            log.append(2, change(2))
    with pytest.raises(StoreError, match="Open the store again"):
        log.compact(1, ())
    log.close()
    assert found(tmp_path / "store").transactions in (expected(1), expected(2))


def test_a_record_found_after_a_failed_sync_is_made_durable_before_it_is_believed(tmp_path: Path) -> None:
    """The kernel forgets what a failed sync should have written, yet the page cache still shows it."""
    directory = tmp_path / "store"
    disk = PowerCutDisk(directory)
    log, _ = Log.open(directory, disk)
    log.append(1, change(1))
    disk.failing_syncs = 1
    with pytest.raises(OutcomeUnknown):
        log.append(2, change(2))
    log.close()
    log, recovered = Log.open(directory, disk)
    log.close()
    assert recovered.transactions == expected(2)
    for survivor in disk.survivors(tmp_path / "after"):
        assert found(survivor).transactions == expected(2)


def scenario(directory: Path, disk: PowerCutDisk, acknowledged: list[int]) -> None:
    """Two sessions with appends before, between and after compactions; notes each revision that is safe."""
    keyspace = Keyspace(0, State(), history_events=100, history_bytes=1 << 20)
    for session in range(2):
        log, _ = Log.open(directory, disk)
        try:
            for step in range(6):
                if step == 3:
                    log.compact(keyspace.revision, keyspace.kept())
                revision = session * 6 + step + 1
                changes = (Change(f"key{step}", b"%d" % revision), Change("last", b"%d" % revision))
                log.append(revision, changes)
                keyspace.apply(changes)
                acknowledged.append(revision)
        finally:
            log.close()


def test_a_power_cut_at_any_call_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    whole = PowerCutDisk(tmp_path / "whole")
    scenario(tmp_path / "whole", whole, [])
    assert whole.calls > 40
    for cut_at_call in range(1, whole.calls + 1):
        directory = tmp_path / f"cut-{cut_at_call}"
        disk = PowerCutDisk(directory, cut_at_call)
        acknowledged = [0]
        with pytest.raises(PowerCut):
            scenario(directory, disk, acknowledged)
        for survivor in disk.survivors(tmp_path / f"after-{cut_at_call}"):
            recovered = found(survivor)
            newest = recovered.revision + len(recovered.transactions)
            assert newest in (acknowledged[-1], acknowledged[-1] + 1), (cut_at_call, survivor)
            keyspace = Keyspace(recovered.revision, recovered.state, history_events=1, history_bytes=1)
            for transaction in recovered.transactions:
                keyspace.apply(transaction.changes)
            values = {key: int(entry.value) for key, entry in keyspace.select("").entries.items()}
            assert values == newest_values(newest), (cut_at_call, survivor)


def newest_values(newest: int) -> dict[str, int]:
    values = {f"key{(revision - 1) % 6}": revision for revision in range(1, newest + 1)}
    return values | ({"last": newest} if newest else {})


def test_a_compaction_without_space_leaves_the_log_in_use(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    disk = FaultyDisk()
    log, _ = Log.open(directory, disk)
    log.append(1, change(1))
    disk.space_bytes = 10
    with pytest.raises(StoreFull):
        log.compact(1, ())
    assert not (directory / "log.new").exists()
    disk.space_bytes = None
    log.append(2, change(2))
    log.close()
    assert found(directory).transactions == expected(2)


@pytest.mark.parametrize("call", ["rename", "sync_all"])
def test_a_compaction_that_may_not_have_its_name_ends_the_log(tmp_path: Path, call: str) -> None:
    directory = tmp_path / "store"
    disk = FaultyDisk()
    log, _ = Log.open(directory, disk)
    log.append(1, change(1))
    if call == "sync_all":
        # The first sync is that of the new file; the second, that of the directory, is the one to fail.
        original = disk.rename

        def rename(old: Path, new: Path) -> None:
            original(old, new)
            disk.failures["sync_all"] = [errno.EIO]

        disk.rename = rename  # type: ignore[method-assign]
    else:
        disk.failures["rename"] = [errno.EIO]
    with pytest.raises(OutcomeUnknown):
        log.compact(1, ())
    with pytest.raises(StoreError, match="Open the store again"):
        log.append(2, change(2))
    log.close()
    assert found(directory).revision + len(found(directory).transactions) == 1


@pytest.mark.parametrize(
    ("call", "number", "kind", "says"),
    [
        ("open", errno.EROFS, StoreError, "may not be written"),
        ("open", errno.EACCES, StoreError, "may not be written"),
        ("write", errno.ENOSPC, StoreFull, "no space left"),
        ("sync_all", errno.EIO, StoreError, "Check the disk"),
    ],
)
def test_trouble_at_opening_is_a_clear_error_and_gives_the_lock_back(
    tmp_path: Path, call: str, number: int, kind: type[StoreError], says: str
) -> None:
    (tmp_path / "store").mkdir()
    for _ in range(2):
        disk = FaultyDisk()
        disk.failures[call] = [number]
        with pytest.raises(kind, match=says):
            Log.open(tmp_path / "store", disk)
        log, _ = Log.open(tmp_path / "store")
        log.append(log._revision + 1, change(1))
        log.close()


REALLY_FULL = """
import resource, sys
from pathlib import Path
from outlast.coordinator.store.log import Log
from outlast.coordinator.store.records import Change
from outlast.errors import StoreFull

log, _ = Log.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
revision = 0
try:
    while True:
        log.append(revision + 1, (Change("key", bytes(1000)),))
        revision += 1
except StoreFull as error:
    assert "File too large" in str(error), error
print("full", revision)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for _ in range(10):
    log.append(revision + 1, (Change("key", bytes(1000)),))
    revision += 1
print("done", revision)
"""


def test_a_file_that_the_kernel_lets_grow_no_further_goes_on_once_it_may(tmp_path: Path) -> None:
    """No stand-in here: the process's own limit makes the kernel refuse in the middle of a record."""
    run = subprocess.run(
        [sys.executable, "-c", REALLY_FULL, os.fspath(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["full", "19", "done", "29"]
    recovered = found(tmp_path / "store")
    assert len(recovered.transactions) == 29
    assert recovered.dropped_bytes == 0
