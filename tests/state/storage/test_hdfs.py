"""HDFS when its NameNode dies, stops or refuses."""

import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import ConfigError, StorageDenied, StorageFull, StorageUnavailable, UsageError
from outlast.state.storage import hdfs as hdfs_storage
from outlast.state.storage.opening import open_bare
from outlast.state.storage.patience import Patience, Patient
from patience import PATIENCE_S
from servers.hdfs import Hdfs

# It takes a NameNode some seconds to be back, more on a busy machine.
UNTIL_IT_IS_BACK = Patience(within_s=PATIENCE_S, attempt_within_s=5.0, attempts=1000, longest_pause_s=0.5)


@pytest.fixture
def living(hdfs: Hdfs) -> Iterator[Hdfs]:
    """The server, which is alive again afterwards, whatever the test did to it."""
    yield hdfs
    if hdfs.name_node_pid is None:
        hdfs.start_name_node()
    hdfs.wait()


def test_the_name_node_is_killed_and_comes_back(living: Hdfs) -> None:
    storage = Patient(open_bare(f"{living.url}/{secrets.token_hex(4)}"), UNTIL_IT_IS_BACK)
    storage.put("chunks/before", b"before")
    assert storage.create("claims/1", b"mine")
    living.kill_name_node()
    failures: list[BaseException] = []
    waiting = threading.Event()

    def work() -> None:
        try:
            waiting.set()
            storage.put("chunks/after", b"after")
            assert storage.get("chunks/before", 10) == b"before"
            assert not storage.create("claims/1", b"yours")
            assert storage.create("claims/2", b"mine")
            assert [stored.key for stored in storage.list("chunks/")] == ["chunks/after", "chunks/before"]
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert waiting.wait(PATIENCE_S)
    living.start_name_node()
    worker.join(2 * PATIENCE_S)
    assert not worker.is_alive()
    assert failures == []


def test_a_name_node_that_stops_does_not_hang_us(living: Hdfs) -> None:
    bare = open_bare(f"{living.url}/{secrets.token_hex(4)}")
    bare.put("a", b"1")
    impatient = Patient(bare, Patience(within_s=0.5, attempt_within_s=0.5))
    assert living.name_node_pid is not None
    os.kill(living.name_node_pid, signal.SIGSTOP)
    try:
        with pytest.raises(StorageUnavailable, match="did not answer"):
            impatient.get("a", 1)
        with pytest.raises(StorageUnavailable, match="did not answer"):
            impatient.put("b", b"1")
    finally:
        os.kill(living.name_node_pid, signal.SIGCONT)
    assert Patient(bare, UNTIL_IT_IS_BACK).get("a", 1) == b"1"


def test_a_writer_that_died_leaves_only_a_draft(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    from hdfs_native import Client

    root = f"/{secrets.token_hex(4)}"
    client = Client(hdfs.url)
    client.mkdirs(f"{root}/.writing", create_parent=True)
    # Never closed, as if its writer had been killed.
    half = client.create(f"{root}/.writing/half")
    half.write(b"half")
    storage = open_bare(hdfs.url + root)
    assert list(storage.list("")) == []
    storage.delete(["nothing"])
    assert [status.path for status in client.list_status(f"{root}/.writing")] == [f"{root}/.writing/half"]
    monkeypatch.setattr(hdfs_storage, "_STALE_AFTER_S", -1e9)
    storage.delete(["nothing"])
    assert list(client.list_status(f"{root}/.writing")) == []


def test_drafts_do_not_pile_up(hdfs: Hdfs) -> None:
    from hdfs_native import Client

    root = f"/{secrets.token_hex(4)}"
    storage = open_bare(hdfs.url + root)
    storage.put("a/b", b"1")
    storage.put("a/b", b"2")
    assert storage.create("c", b"1")
    # One in the way makes the move fail after the draft is written.
    with pytest.raises(StorageDenied, match="move it away"):
        storage.put("a", b"1")
    with pytest.raises(StorageDenied, match="move it away"):
        storage.create("a", b"1")
    assert list(Client(hdfs.url).list_status(f"{root}/.writing")) == []


def test_an_object_is_one_block(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    from hdfs_native import Client

    root = f"/{secrets.token_hex(4)}"
    storage = open_bare(hdfs.url + root)
    monkeypatch.setattr(hdfs_storage, "_BLOCK_BYTES", 1 << 20)
    storage.put("large", bytes(6 << 20))
    status = Client(hdfs.url).get_file_info(f"{root}/large")
    assert status.blocksize is not None and status.blocksize >= status.length == 6 << 20
    monkeypatch.setattr(hdfs_storage, "_LARGEST_BYTES", 10)
    with pytest.raises(UsageError, match="too large"):
        storage.put("larger", bytes(11))


NO_ROOM = "File /a could only be replicated to 0 nodes instead of 1.  There are {} running and {}."


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota")',
            StorageFull,
        ),
        (NO_ROOM.format("3 datanode(s)", "no node(s) are excluded in this operation"), StorageFull),
        (NO_ROOM.format("0 datanode(s)", "no node(s) are excluded in this operation"), StorageUnavailable),
        (NO_ROOM.format("1 datanode(s)", "1 node(s) are excluded in this operation"), StorageUnavailable),
        ('RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied")', StorageDenied),
        (
            'RPCError("o.a.h.SafeModeException", "safe mode\\n\\tat AccessControlException")',
            StorageUnavailable,
        ),
    ],
)
def test_what_java_says_gets_its_name(
    said: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, *_: object) -> None:
            pass

        def mkdirs(self, *_: object, **__: object) -> None:
            raise RuntimeError(said)

    monkeypatch.setattr("hdfs_native.Client", Refusing)
    with pytest.raises(error, match=r"hdfs://127.0.0.1:1/a/b"):
        open_bare("hdfs://127.0.0.1:1/a").put("b", b"1")


def test_nobody_listens(tmp_path: Path) -> None:
    storage = open_bare("hdfs://127.0.0.1:1/somewhere")
    with pytest.raises(StorageUnavailable, match=r"hdfs://127.0.0.1:1/somewhere/a.*refused.*NameNode"):
        storage.get("a", 1)


def test_the_client_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError, match=r"pip install 'outlast\[hdfs\]'"):
        open_bare("hdfs://127.0.0.1:1/somewhere")
