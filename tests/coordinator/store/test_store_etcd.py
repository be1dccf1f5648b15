"""The etcd store where its cluster is in trouble, and where what it is given is wrong."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from store_in_trouble import Counters, Follower, insist, run, wait_until
from store_watching import DEADLINE_S

from outlast.coordinator.store import gateway
from outlast.coordinator.store.etcd import EtcdStore, judge_version, parse
from outlast.coordinator.store.gateway import Endpoint, Gateway
from outlast.coordinator.store.seam import Put
from outlast.errors import Compacted, ConfigError, OutcomeUnknown, StoreError, StoreFull
from servers import etcd as etcd_server
from servers.etcd import Etcd
from servers.fixtures import need


@pytest.mark.parametrize("fault", ["the leader is killed", "the leader is stopped", "a follower is stopped"])
def test_nothing_is_lost_and_nothing_is_done_twice(own_etcd_cluster: Etcd, fault: str) -> None:
    async def test(store: EtcdStore) -> None:
        async with Counters(store) as counters:
            await counters.go_on(10)
            leader = own_etcd_cluster.leader()
            assert leader >= 0
            if fault == "the leader is killed":
                own_etcd_cluster.kill(leader)
            else:
                own_etcd_cluster.pause(leader if "leader" in fault else (leader + 1) % 3)
            await counters.go_on(50)

    run(own_etcd_cluster, test)


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_watch_whose_member_is_gone_breaks_and_goes_on_elsewhere(
    own_etcd_cluster: Etcd, fault: str
) -> None:
    async def test(store: EtcdStore) -> None:
        watched = store._gateway._endpoints[0].port
        follower = Follower(store, "key", (await store.read("")).revision)
        await store.commit([], [Put("key", b"before")])
        await follower.saw(b"before")
        member = own_etcd_cluster.ports.index(watched)
        if fault == "killed":
            own_etcd_cluster.kill(member)
        else:
            own_etcd_cluster.pause(member)
        await insist(store, "key", b"behind")
        await insist(store, "key", b"end")
        await follower.end()
        assert follower.seen == [b"before", b"behind", b"end"]
        assert follower.breaks >= 1

    run(own_etcd_cluster, test)


def ask_first(store: EtcdStore, server: Etcd, member: int) -> None:
    store._gateway._endpoints.sort(key=lambda endpoint: endpoint.port != server.ports[member])


def test_a_commit_that_a_leader_took_along_is_not_waited_for(
    own_etcd_cluster: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that has not noticed yet hands it to the old leader. etcd gives it up after seconds."""
    monkeypatch.setattr(gateway, "COMMIT_WITHIN_S", DEADLINE_S)

    async def lost(store: EtcdStore) -> bool:
        leader = own_etcd_cluster.leader()
        if leader < 0:
            return False
        ask_first(store, own_etcd_cluster, (leader + 1) % 3)
        await store.read("")
        own_etcd_cluster.pause(leader)
        try:
            await store.commit([], [Put("a", b"")])
        except OutcomeUnknown as unknown:
            return "another member leads since" in str(unknown)
        finally:
            own_etcd_cluster.resume(leader)
        # The new leader was there before the follower was asked, on a busy machine.
        return False

    async def test(store: EtcdStore) -> None:
        await wait_until(lambda: lost(store))

    run(own_etcd_cluster, test)


def test_a_commit_at_a_member_that_is_stopped_is_not_waited_for(
    own_etcd_cluster: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "COMMIT_WITHIN_S", DEADLINE_S)

    async def test(store: EtcdStore) -> None:
        ask_first(store, own_etcd_cluster, 1)
        await store.read("")
        own_etcd_cluster.pause(1)
        with pytest.raises(OutcomeUnknown, match="not there any more"):
            await store.commit([], [Put("a", b"")])
        await insist(store, "a", b"done")

    run(own_etcd_cluster, test)


def test_a_commit_without_a_leader_is_not_waited_for(
    own_etcd_cluster: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "COMMIT_WITHIN_S", DEADLINE_S)

    async def test(store: EtcdStore) -> None:
        ask_first(store, own_etcd_cluster, 1)
        await store.read("")
        own_etcd_cluster.kill(0)
        own_etcd_cluster.kill(2)
        with pytest.raises(OutcomeUnknown, match="knows of no leader"):
            await store.commit([], [Put("a", b"")])

    run(own_etcd_cluster, test)


def test_history_that_was_compacted_cannot_be_watched(etcd: Etcd) -> None:
    async def test(store: EtcdStore) -> None:
        revisions = [(await store.commit([], [Put("a", b"%d" % i)])).revision for i in range(4)]
        await store._gateway.call("/v3/kv/compaction", {"revision": str(revisions[-1])})
        with pytest.raises(Compacted):
            async with aclosing(store.watch("a", revisions[0])) as events:
                await anext(events)

    run(etcd, test)


def test_without_a_majority_nothing_is_done_and_it_says_so(
    own_etcd_cluster: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "PATIENCE_S", 1.0)

    async def test(store: EtcdStore) -> None:
        own_etcd_cluster.kill(0)
        own_etcd_cluster.kill(1)
        with pytest.raises(StoreError, match=r"etcd at 127\.0\.0\.1"):
            await store.read("")
        with pytest.raises(StoreError):
            await store.commit([], [Put("a", b"")])
        own_etcd_cluster.start(0)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await store.commit([], [Put("a", b"1")])
                    break
                except StoreError:
                    await asyncio.sleep(0.1)
        assert (await store.read("a")).entries["a"].value == b"1"

    run(own_etcd_cluster, test)


def test_a_cluster_without_space_says_what_to_do(tmp_path: Path) -> None:
    need(etcd_server.missing())
    server = Etcd(tmp_path / "etcd", 1, **{"quota-backend-bytes": str(2 << 20)})

    async def test(store: EtcdStore) -> None:
        async def fill() -> None:
            for i in range(64):
                await store.commit([], [Put(f"{i}", bytes(256 << 10))])

        with pytest.raises(StoreFull, match="outlast etcd prune"):
            await fill()
        assert (await store.read("")).entries, "what is there can be read"

    try:
        server.wait()
        run(server, test)
    finally:
        server.stop()


def test_members_of_two_clusters_are_refused(etcd: Etcd, etcd_cluster: Etcd) -> None:
    async def main() -> None:
        store = EtcdStore(
            Gateway([Endpoint("127.0.0.1", etcd.ports[0]), Endpoint("127.0.0.1", etcd_cluster.ports[0])]),
            "job/",
        )

        async def ask_both() -> None:
            # One that takes too long, on a busy machine, is passed over.
            while True:
                await store.read("")
                store._gateway._endpoints.reverse()

        try:
            with pytest.raises(StoreError, match="another etcd cluster"):
                await asyncio.wait_for(ask_both(), DEADLINE_S)
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("speaks", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", "does not answer like etcd"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not answer: .*no HTTP server"),
        (b"", "does not answer: .*closed"),
    ],
    ids=["another web server", "no web server", "nothing"],
)
def test_what_is_no_etcd_is_named(monkeypatch: pytest.MonkeyPatch, speaks: bytes, said: str) -> None:
    monkeypatch.setattr(gateway, "PATIENCE_S", 0.1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(speaks)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(StoreError, match=said):
                await EtcdStore.open(f"etcd://127.0.0.1:{port}/job")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://host:1/job", "none that Outlast knows"),
        ("etcd://host/job", "'host' in the store"),
        ("etcd://host:1,/job", "'' in the store"),
        ("etcd://host:99999/job", "no host and port"),
        ("etcd://host:1,host:1/job", "twice"),
        ("etcd://host:1", "no prefix"),
        ("etcd://host:1//", "no prefix"),
    ],
)
def test_an_address_that_is_none_is_refused_by_name(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(address)


def test_addresses() -> None:
    endpoints, prefix = parse("etcd://a:2379,10.0.0.2:1,[::1]:2379/outlast/job")
    assert [str(endpoint) for endpoint in endpoints] == ["a:2379", "10.0.0.2:1", "[::1]:2379"]
    assert prefix == "outlast/job/"


@pytest.mark.parametrize("version", ["3.4.42", "3.5.28", "3.6.9", "3.7.0", "4.0.1"])
def test_versions_that_are_good(version: str) -> None:
    assert judge_version(version) == ""


@pytest.mark.parametrize("version", ["3.4.23", "3.5.27", "3.6.8"])
def test_versions_that_answer_reads_with_the_past_are_warned_of(version: str) -> None:
    assert "20418" in judge_version(version)


@pytest.mark.parametrize(("version", "why"), [("3.5.0", "13766"), ("3.5.2", "13766"), ("3.3.25", "older")])
def test_versions_that_cannot_be_trusted_are_refused(version: str, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        judge_version(version)
