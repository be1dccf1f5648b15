"""What a member's last words mean, what it counts, and whose data lies in a folder."""

import os
from pathlib import Path

import msgspec
import pytest

from outlast.coordinator.store.gateway import Endpoint
from outlast.errors import (
    AddressInUse,
    ConfigError,
    OutlastError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
)
from outlast.etcd.command import Launch, check_election, clean_environment
from outlast.etcd.folder import Folder, Page, belongs
from outlast.etcd.metrics import parse_metrics
from outlast.etcd.places import parse_members, parse_place
from outlast.etcd.verdicts import hindrance, verdict

FOLDER = Path("/somewhere/b")


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (
            '{"level":"fatal","msg":"discovery failed","error":"member 82 has already been bootstrapped"}',
            ConfigError,
            r"know member b from before.* --join a:2379 --replace",
        ),
        (
            '{"level":"warn","msg":"x","error":"the member has been permanently removed from the cluster"}',
            ConfigError,
            "was removed from its cluster",
        ),
        ("listen tcp 127.0.0.1:1: bind: address already in use", AddressInUse, "somebody listens"),
        (
            '{"msg":"x","error":"write wal: no space left on device"}',
            StoreFull,
            "no space is left for member b",
        ),
        ("panic: walpb: crc mismatch", StoreDamaged, "--replace"),
        (
            '{"msg":"error validating peerURLs","error":"member count is unequal"}',
            ConfigError,
            "same --members",
        ),
        ("something\nelse", StoreError, "exited with status 1. Its last words, .*\n  something\n  else"),
        ("", StoreError, "it did not say why"),
    ],
)
def test_last_words(words: str, kind: type[OutlastError], said: str) -> None:
    error = verdict(
        words, name="b", folder=FOLDER, contacts=[Endpoint("a", 2379)], status="exited with status 1"
    )
    assert type(error) is kind
    with pytest.raises(kind, match=said):
        raise error


def test_lists_that_differ_are_found_out() -> None:
    assert "--members" in hindrance('{"msg":"request cluster ID mismatch"}')
    assert hindrance("all is well") == ""


def test_etcd_is_told_what_it_has_to_know_and_nothing_else() -> None:
    launch = Launch(
        name="b",
        place=parse_place("node-b"),
        ip="203.0.113.9",
        data=Path("/d"),
        election_ms=300,
        cluster={"a": "http://a:2380", "b": "http://node-b:2380"},
    )
    command = launch.command(Path("/bin/etcd"))
    assert command[:2] == ["/bin/etcd", "--pre-vote"]
    assert {
        "--listen-client-urls=http://203.0.113.9:2379",
        "--advertise-client-urls=http://node-b:2379",
        "--initial-cluster=a=http://a:2380,b=http://node-b:2380",
        "--heartbeat-interval=30",
        "--election-timeout=300",
    } <= set(command)
    assert clean_environment({"ETCD_NAME": "x", "PATH": "y"}) == {"PATH": "y"}
    with pytest.raises(ConfigError, match="--election-ms is 10;"):
        check_election(10)


METRICS = """
# TYPE etcd_disk_wal_fsync_duration_seconds histogram
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 90
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.002"} 98
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.004"} 100
etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"} 100
etcd_disk_wal_fsync_duration_seconds_sum 0.05
etcd_disk_wal_fsync_duration_seconds_count 100
etcd_network_active_peers{Local="b1",Remote="a0"} 1
etcd_network_active_peers{Local="b1",Remote="c2"} 0
etcd_server_quota_backend_bytes 4.294967296e+09
"""


def test_what_a_member_counts() -> None:
    metrics = parse_metrics(METRICS)
    assert (metrics.fsync_p99_s, metrics.fsync_mean_s, metrics.fsyncs) == (0.004, 0.0005, 100)
    assert metrics.quota_bytes == 4 << 30
    assert metrics.active_peers == {"a0"}
    assert parse_metrics("<html>").fsync_p99_s is None


def test_data_of_somebody_else_is_refused() -> None:
    page = Page(name="a", at="x:2379:2380", members="a=x:2379:2380,b=y:2379:2380")
    place = parse_place("x")
    belongs(page, name="a", place=place, members=parse_members(page.members), folder=FOLDER)
    belongs(page, name="a", place=None, members={}, folder=FOLDER)
    moved = msgspec.structs.replace(page, peers={"a": "http://x:2380", "b": "http://z:2380"})
    belongs(moved, name="a", place=place, members=parse_members("b=z,a=x"), folder=FOLDER)
    joined = msgspec.structs.replace(page, members="")
    belongs(joined, name="a", place=place, members=parse_members("b=z,a=x"), folder=FOLDER)
    for name, at, members, said in (
        ("b", place, "b=x", "--name a"),
        ("a", parse_place("z"), "a=z", "same --at as before"),
        ("a", place, "a=x,c=z", "begin another cluster"),
    ):
        with pytest.raises(ConfigError, match=said):
            belongs(page, name=name, place=at, members=parse_members(members), folder=FOLDER)
    with pytest.raises(ConfigError, match="nothing that says whose"):
        belongs(None, name="a", place=place, members={}, folder=FOLDER)


def test_a_folder_is_its_owners_alone_and_one_members_at_a_time(tmp_path: Path) -> None:
    with Folder(tmp_path / "etcd" / "a") as folder:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert folder.data.stat().st_mode & 0o777 == 0o700
        assert folder.page() is None and not folder.has_data()
        page = Page(name="a", at="x:1:2", peers={"a": "http://x:2"})
        folder.write(page)
        assert folder.page() == page
        with pytest.raises(StoreLocked, match=r"a member runs in .* already"), Folder(folder.path):
            pass
    with Folder(folder.path):
        assert folder.page() == page


def test_a_log_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.etcd.folder.LOG_MOST_BYTES", 100)
    with Folder(tmp_path / "a") as folder:
        log = folder.open_log()
        try:
            os.write(log, b"x" * 101)
            folder.trim_log()
            os.write(log, b"more")
        finally:
            os.close(log)
        assert folder.log.read_bytes() == b"more"
        assert folder.words_since(0) == "more"
        assert (folder.path / "etcd.log.old").stat().st_size == 101
