"""`outlast etcd` where what it is given is wrong, and `outlast etcd prune`."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.store.seam import Put
from outlast.coordinator.storekeeper import FORMAT, Document
from outlast.errors import StoreFull
from outlast.protocol.views import JobSpec, Membership, Outcome
from patience import PATIENCE_S
from servers import etcd as etcd_server
from servers.children import free_ports
from servers.etcd import PROGRAM, Etcd
from servers.fixtures import need

Outlast = Any


def place() -> str:
    client, peer = free_ports(2)
    return f"127.0.0.1:{client}:{peer}"


def program(folder: Path, says: str) -> str:
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def refused(outlast: Outlast, *arguments: str, code: int = 2, **environment: str) -> str:
    if PROGRAM.exists():
        environment.setdefault("OUTLAST_ETCD", str(PROGRAM))
    done = outlast("etcd", *arguments, **environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    said: str = done.stderr
    return said


def test_without_a_program_it_says_where_to_get_one(outlast: Outlast, tmp_path: Path) -> None:
    start = ("start", "--name", "a", "--at", place())
    said = refused(outlast, *start, OUTLAST_ETCD=str(tmp_path / "nowhere"))
    assert "no such program" in said and "apt install etcd-server" in said
    bad = program(tmp_path, "etcd Version: 3.5.1")
    assert "13766" in refused(outlast, *start, code=8, OUTLAST_ETCD=bad)
    assert "is no etcd" in refused(outlast, *start, OUTLAST_ETCD=program(tmp_path, "hello"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start", "--name", "a"), "Say --at HOST"),
        (("start", "--name", "a b", "--at", "127.0.0.1"), "cannot be called"),
        (("start", "--name", "a", "--at", "127.0.0.1:x"), "where a member is"),
        (("start", "--name", "d", "--members", "a=127.0.0.1"), "--members does not name d"),
        (("start", "--name", "a", "--at", "127.0.0.2", "--members", "a=127.0.0.1"), "leave --at out"),
        (("start", "--name", "a", "--at", "127.0.0.1", "--replace"), "--replace needs --join"),
        (("start", "--name", "a", "--at", "127.0.0.1", "--join", "host"), "'host' in the store"),
        (("start", "--name", "a", "--at", "127.0.0.1", "--election-ms", "1"), "--election-ms is 1;"),
        (("check", "10.0.0.1:2379"), "none that Outlast knows"),
        (("prune", "etcd://127.0.0.1:1"), "no prefix"),
    ],
)
def test_what_cannot_be_meant_is_refused(outlast: Outlast, arguments: tuple[str, ...], said: str) -> None:
    need(etcd_server.missing())
    assert said in refused(outlast, *arguments)


def test_addresses_beyond_loopback_need_a_word(outlast: Outlast) -> None:
    need(etcd_server.missing())
    assert "--insecure" in refused(outlast, "start", "--name", "a", "--at", "203.0.113.1")


def test_a_port_in_use_and_an_endpoint_where_nobody_is(outlast: Outlast) -> None:
    need(etcd_server.missing())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(outlast, "start", "--name", "a", "--at", f"127.0.0.1:{port}", code=5)
        assert f"127.0.0.1:{port} already" in said
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    said = refused(outlast, "start", "--name", "a", "--at", place(), "--join", nobody, code=8)
    assert nobody in said and "cannot be reached" in said
    done = outlast("etcd", "check", f"etcd://{nobody}")
    assert done.returncode == 8
    assert "no member answers" in done.stdout and "it cannot be used" in done.stdout
    refused(outlast, "prune", f"etcd://{nobody}/tests", code=8)


def test_data_without_a_page_is_left_alone(outlast: Outlast, tmp_path: Path) -> None:
    need(etcd_server.missing())
    (tmp_path / "data" / "data" / "member" / "wal").mkdir(parents=True)
    said = refused(outlast, "start", "--name", "a", "--at", place(), "--data", str(tmp_path / "data"))
    assert "nothing that says whose" in said


def job(outcome: Outcome | None) -> bytes:
    spec = JobSpec(name="job", replicas=1, shards=1)
    return msgspec.json.encode(Document(FORMAT, Membership(spec=spec, outcome=outcome)))


def fill(etcd: Etcd, prefix: str, keys: dict[str, bytes], *, leased: str = "") -> None:
    async def put() -> None:
        store = await EtcdStore.open(etcd.address(prefix))
        try:
            lease = await store.grant(600.0) if leased else 0
            for key, value in keys.items():
                await store.commit([], [Put(key, value, lease=lease if key == leased else 0)])
        finally:
            await store.close()

    asyncio.run(put())


def keys(etcd: Etcd, prefix: str) -> set[str]:
    async def read() -> set[str]:
        store = await EtcdStore.open(etcd.address(prefix))
        try:
            return set((await store.read("")).entries)
        finally:
            await store.close()

    return asyncio.run(read())


def test_prune_removes_what_has_ended_and_leaves_what_runs(outlast: Outlast, etcd: Etcd) -> None:
    finished = Outcome(finished=True, reason="all replicas finished")
    fill(etcd, "pruned/over-1", {"membership": job(finished), "boots": b"3"})
    fill(etcd, "pruned/over-2", {"membership": job(Outcome(finished=False, reason="replica 0 kept failing"))})
    fill(etcd, "pruned/late", {"membership": job(finished), "leader": b"x"}, leased="leader")
    fill(etcd, "pruned/runs", {"membership": job(None), "leader": b"x"}, leased="leader")
    fill(etcd, "pruned/lost", {"membership": job(None)})
    fill(etcd, "pruned/strange", {"membership": b"{}"})
    fill(etcd, "pruned2/over", {"membership": job(finished)})
    everything = keys(etcd, "pruned")

    prune = ("etcd", "prune", etcd.address("pruned"))
    told = outlast(*prune, "--dry-run").stdout
    assert "would remove pruned/over-1 (finished)" in told
    assert told.endswith("2 jobs would be removed, 4 kept\n")
    assert keys(etcd, "pruned") == everything

    told = outlast(*prune, "--defrag").stdout
    assert "removed pruned/over-2 (ended: replica 0 kept failing)" in told
    assert "kept pruned/late (it has ended, and its coordinators have not gone yet)" in told
    assert "kept pruned/runs (it is running)" in told
    assert "kept pruned/lost (no coordinator leads it, and it has not ended; --abandoned removes it)" in told
    assert "kept pruned/strange" in told
    assert "m0 is defragmented" in told
    left = {"late/membership", "late/leader", "runs/membership", "runs/leader", "strange/membership"}
    assert keys(etcd, "pruned") == left | {"lost/membership"}
    assert keys(etcd, "pruned2") == {"over/membership"}

    assert "removed pruned/lost" in outlast(*prune, "--abandoned").stdout
    assert keys(etcd, "pruned") == left
    # The job's own address, as its run directory has it.
    assert "removed pruned2/over (finished)" in outlast("etcd", "prune", etcd.address("pruned2/over")).stdout
    assert outlast("etcd", "prune", etcd.address("pruned2")).stdout == "0 jobs removed, 0 kept\n"


def test_a_run_that_has_ended_is_pruned(outlast: Outlast, etcd: Etcd) -> None:
    run = ("run", "--name", "short", "--store", etcd.address("real"), "-m", "outlast.testing.standin")
    assert outlast(*run, "--steps", "3").returncode == 0
    deadline = time.monotonic() + PATIENCE_S
    while "1 kept" in (told := outlast("etcd", "prune", etcd.address("real")).stdout):
        assert "(it has ended, and its coordinators have not gone yet)" in told
        assert time.monotonic() < deadline
    assert "removed real/short-" in told and "(finished)" in told
    assert keys(etcd, "real") == set()


def test_a_cluster_without_space_is_said_and_mended(outlast: Outlast, tmp_path: Path) -> None:
    need(etcd_server.missing())
    server = Etcd(tmp_path / "etcd", 1, **{"quota-backend-bytes": str(2 << 20)})
    try:
        server.wait()
        fill(server, "jobs/over", {"membership": job(Outcome(finished=True, reason="done"))})
        with pytest.raises(StoreFull):
            fill(server, "jobs/over", {f"{number}": bytes(256 << 10) for number in range(64)})
        check = ("etcd", "check", server.address("jobs"))
        done = outlast(*check)
        assert done.returncode == 8
        assert "m0 has no space left" in done.stdout and "prune etcd://" in done.stdout
        done = outlast("etcd", "prune", server.address("jobs"), "--defrag")
        assert done.returncode == 0, done.stderr
        assert "the alarm about space is ended" in done.stdout
        assert outlast(*check).returncode == 0
    finally:
        server.stop()
