"""S3 through a proxy that misbehaves: what each failure is called, and what patience makes of it."""

import contextlib
import secrets
import threading
from collections.abc import Iterator

import pytest

from outlast.errors import ConfigError, ObjectMissing, StorageDenied, StorageFull, StorageUnavailable
from outlast.state.storage.opening import open_bare
from outlast.state.storage.patience import Patience, Patient
from outlast.state.storage.seam import Storage
from patience import PATIENCE_S
from servers.faulty_proxy import Fault, FaultyProxy
from servers.seaweedfs import BUCKET, SECRET, SeaweedFS

MIB = 1 << 20
SOON = Patience(within_s=PATIENCE_S, attempt_within_s=10.0, first_pause_s=0.001, longest_pause_s=0.01)

# After the last of these the outcome is unknown.
PASSING = [Fault.ERROR, Fault.SLOW_DOWN, Fault.DROP_REQUEST, Fault.DELAY, Fault.DROP_ANSWER]


@pytest.fixture
def proxy(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(seaweedfs.port) as proxy:
        for name, value in seaweedfs.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def bare(proxy: FaultyProxy) -> Storage:
    return open_bare(f"s3://{BUCKET}/{secrets.token_hex(4)}")


@pytest.fixture
def patient(bare: Storage) -> Storage:
    return Patient(bare, SOON)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.ERROR, StorageUnavailable),
        (Fault.SLOW_DOWN, StorageUnavailable),
        (Fault.DROP_REQUEST, StorageUnavailable),
        (Fault.DROP_ANSWER, StorageUnavailable),
        (Fault.DENY, StorageDenied),
        (Fault.NO_BUCKET, StorageDenied),
        (Fault.FULL, StorageFull),
    ],
)
def test_each_failure_has_its_name(
    proxy: FaultyProxy, bare: Storage, fault: Fault, error: type[Exception]
) -> None:
    calls = [
        lambda: bare.put("chunks/ab", b"1"),
        lambda: bare.create("claims/1", b"1"),
        lambda: bare.get("chunks/ab", 1),
        lambda: bare.read_into("chunks/ab", memoryview(bytearray(1))),
        lambda: list(bare.list("chunks/")),
        lambda: bare.delete(["chunks/ab"]),
    ]
    for call in calls:
        proxy.misbehave(fault)
        with pytest.raises(error, match=f"s3://{BUCKET}/") as caught:
            call()
        # Nothing of what was signed, nor of how, and no traceback that shows it.
        assert SECRET not in str(caught.value) and "Signature" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("fault", PASSING)
def test_patience_outlasts_what_passes(proxy: FaultyProxy, patient: Storage, fault: Fault) -> None:
    proxy.misbehave(fault, times=3)
    patient.put("chunks/ab", b"12345")
    proxy.misbehave(fault, times=3)
    assert patient.get("chunks/ab", 5) == b"12345"
    out = bytearray(5)
    proxy.misbehave(fault, times=3)
    patient.read_into("chunks/ab", memoryview(out))
    assert out == b"12345"
    proxy.misbehave(fault, times=3)
    assert [stored.key for stored in patient.list("")] == ["chunks/ab"]
    proxy.misbehave(fault, times=3)
    patient.delete(["chunks/ab"])
    assert list(patient.list("")) == []


def test_a_body_that_breaks_off_is_read_again(proxy: FaultyProxy, patient: Storage) -> None:
    data = secrets.token_bytes(6 * MIB)
    patient.put("large", data)
    proxy.misbehave(Fault.DROP_IN_BODY, times=2, method="GET")
    out = bytearray(len(data))
    patient.read_into("large", memoryview(out))
    assert out == data
    proxy.misbehave(Fault.DROP_IN_BODY, times=2, method="GET")
    assert patient.get("large", len(data)) == data


def test_a_large_put_in_parts_outlasts_what_passes(proxy: FaultyProxy, patient: Storage) -> None:
    data = secrets.token_bytes(40 * MIB)
    proxy.misbehave(Fault.SLOW_DOWN, method="PUT")
    proxy.misbehave(Fault.DROP_REQUEST, method="PUT")
    patient.put("large", data)
    assert patient.get("large", len(data)) == data


@pytest.mark.parametrize("fault", PASSING)
def test_who_finds_its_own_bytes_has_created(proxy: FaultyProxy, patient: Storage, fault: Fault) -> None:
    proxy.misbehave(fault, times=2)
    assert patient.create("claims/1", b"mine")
    proxy.misbehave(fault, times=2)
    assert not patient.create("claims/1", b"yours")
    assert patient.get("claims/1", 10) == b"mine"


def test_what_does_not_pass_is_not_tried_again(proxy: FaultyProxy, patient: Storage) -> None:
    proxy.misbehave(Fault.DENY)
    with pytest.raises(StorageDenied):
        patient.put("chunks/ab", b"1")
    with pytest.raises(ObjectMissing):
        patient.get("chunks/ab", 1)
    assert len(proxy.requests) == 2


def test_attempts_are_counted(proxy: FaultyProxy, bare: Storage) -> None:
    proxy.misbehave(Fault.ERROR, times=5)
    patient = Patient(bare, Patience(attempts=3, first_pause_s=0.001, longest_pause_s=0.001))
    with pytest.raises(StorageUnavailable, match=r"HTTP 500 InternalError.*3 times"):
        patient.put("chunks/ab", b"1")
    assert len(proxy.requests) == 3


def test_a_server_that_hangs_does_not_hang_us(proxy: FaultyProxy, bare: Storage) -> None:
    patient = Patient(bare, Patience(within_s=PATIENCE_S, attempt_within_s=0.5, first_pause_s=0.001))
    proxy.misbehave(Fault.HANG, times=2)
    patient.put("chunks/ab", b"12345")
    assert patient.get("chunks/ab", 5) == b"12345"


def test_a_server_that_hangs_does_not_keep_a_process_from_ending(proxy: FaultyProxy, bare: Storage) -> None:
    stopped = threading.Event()
    patient = Patient(bare, stopped=stopped)
    proxy.misbehave(Fault.HANG)
    ended = threading.Event()

    def put() -> None:
        with contextlib.suppress(StorageUnavailable):
            patient.put("chunks/ab", b"1")
        ended.set()

    thread = threading.Thread(target=put)
    thread.start()
    while not proxy.requests:
        assert not ended.wait(0.01)
    stopped.set()
    thread.join(PATIENCE_S)
    assert ended.is_set()


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, seaweedfs: SeaweedFS) -> None:
    with FaultyProxy(seaweedfs.port) as proxy:
        port = proxy.port
    for name, value in seaweedfs.environment(port).items():
        monkeypatch.setenv(name, value)
    storage = open_bare(f"s3://{BUCKET}")
    with pytest.raises(StorageUnavailable, match="no connection"):
        storage.get("a", 1)


def test_a_wrong_key_is_denied(monkeypatch: pytest.MonkeyPatch, proxy: FaultyProxy) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    storage = open_bare(f"s3://{BUCKET}")
    for call in (lambda: storage.put("a", b"1"), lambda: storage.get("a", 1), lambda: list(storage.list(""))):
        with pytest.raises(StorageDenied, match="403"):
            call()


def test_plain_http_is_for_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://storage.example:9000")
    with pytest.raises(ConfigError, match="AWS_ALLOW_HTTP"):
        open_bare("s3://bucket")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert open_bare("s3://bucket").url == "s3://bucket"
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://[::1]:9000")
    assert open_bare("s3://bucket/a/b/").url == "s3://bucket/a/b"
