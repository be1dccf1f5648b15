"""The etcd store on a network that fails: members on machines of their own, and whoever asks on a fourth.

Packets are dropped here and nobody is told, which is what a process on the same machine can never see.
"""

import asyncio
from collections.abc import Callable

import pytest
from store_in_trouble import Counters, Follower, insist, run, wait_until

from outlast.coordinator.store import gateway
from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.store.gateway import Endpoint, Gateway
from outlast.coordinator.store.seam import Absent, ModifiedAt, Put
from outlast.errors import StoreError
from servers.fixtures import EtcdNetwork
from servers.machines import Machine, Network

Fault = Callable[[Network, Machine, list[Machine], Machine], None]
"""What happens to a network, to the leader of etcd, to its followers, to the one that asks them."""


def cut_leader_from_members(net: Network, leader: Machine, followers: list[Machine], _: Machine) -> None:
    for each in followers:
        net.cut(leader, each)


def cut_a_follower_from_members(net: Network, leader: Machine, followers: list[Machine], _: Machine) -> None:
    for each in (leader, followers[1]):
        net.cut(followers[0], each)


def leader_is_not_heard(net: Network, leader: Machine, followers: list[Machine], _: Machine) -> None:
    for each in followers:
        net.cut_one_way(leader, each)


def leader_hears_nobody(net: Network, leader: Machine, followers: list[Machine], client: Machine) -> None:
    for each in (*followers, client):
        net.cut_one_way(each, leader)


FAULTS: dict[str, Fault] = {
    "a follower is cut off": lambda net, leader, followers, client: net.cut_off(followers[0]),
    "the leader is cut off": lambda net, leader, followers, client: net.cut_off(leader),
    "the leader is cut off, but not from us": cut_leader_from_members,
    "a follower is cut off, but not from us": cut_a_follower_from_members,
    "we are cut off from the leader": lambda net, leader, followers, client: net.cut(client, leader),
    "we are not heard by the leader": lambda net, leader, followers, client: net.cut_one_way(client, leader),
    "we do not hear the leader": lambda net, leader, followers, client: net.cut_one_way(leader, client),
    "the leader is not heard by the others": leader_is_not_heard,
    "the leader hears nobody": leader_hears_nobody,
    "two members are cut from each other": lambda net, leader, followers, client: net.cut(
        leader, followers[0]
    ),
    "packets get lost": lambda net, leader, followers, client: net.lose(0.05),
    "the leader's machine loses its power": lambda net, leader, followers, client: leader.kill(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_and_nothing_is_done_twice_on_a_network(
    own_etcd_network: EtcdNetwork, fault: str
) -> None:
    there = own_etcd_network

    async def test(store: EtcdStore) -> None:
        async with Counters(store) as counters:
            await counters.go_on(10)
            leader = there.wait_for_leader()
            others = [
                machine for machine in there.etcd.machines if machine is not there.etcd.machines[leader]
            ]
            FAULTS[fault](there.network, there.etcd.machines[leader], others, there.client)
            await counters.go_on(50)
            there.network.heal()
            await counters.go_on(50)

    with there.client.inside():
        run(there.etcd, test)


def test_members_are_reached_over_ipv6(etcd_network: EtcdNetwork) -> None:
    async def main() -> None:
        store = await EtcdStore.open(etcd_network.etcd.address("job", v6=True))
        done = await store.commit([], [Put("key", b"1")])
        follower = Follower(store, "key", done.revision)
        await insist(store, "key", b"end")
        await follower.end()
        assert "[fd77::1]:2379" in str(store._gateway)
        await store.close()

    with etcd_network.client.inside():
        asyncio.run(main())


@pytest.mark.parametrize("side", ["from everybody", "from the other members", "and only it is not heard"])
def test_a_watch_at_a_member_that_is_cut_off_breaks_and_goes_on_elsewhere(
    own_etcd_network: EtcdNetwork, side: str
) -> None:
    there = own_etcd_network

    async def test(store: EtcdStore) -> None:
        watched = there.etcd.machines[there.etcd.hosts.index(store._gateway._endpoints[0].host)]
        follower = Follower(store, "key", (await store.read("")).revision)
        await store.commit([], [Put("key", b"before")])
        await follower.saw(b"before")
        if side == "from everybody":
            there.network.cut_off(watched)
        elif side == "from the other members":
            for each in there.etcd.machines:
                if each is not watched:
                    there.network.cut(watched, each)
        else:
            there.network.cut_one_way(watched, there.client)
        # Nothing is written, so nothing but the silence tells.
        await follower.broke()
        await insist(store, "key", b"behind")
        await follower.saw(b"behind")
        there.network.heal()
        await insist(store, "key", b"end")
        await follower.end()
        assert follower.seen == [b"before", b"behind", b"end"]

    with there.client.inside():
        run(there.etcd, test)


def test_on_the_side_of_a_minority_nothing_is_decided(
    own_etcd_network: EtcdNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when the old leader is there. Its lease ends meanwhile, and others may have what it kept."""
    monkeypatch.setattr(gateway, "PATIENCE_S", 1.0)
    there = own_etcd_network

    async def test(store: EtcdStore) -> None:
        lease = await store.grant(1.0)
        kept = (await store.commit([Absent("office")], [Put("office", b"ours", lease)])).revision
        leader = there.wait_for_leader()
        rest = [member for member in range(3) if member != leader]
        there.network.cut_off(there.etcd.machines[leader], there.client)
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.commit([ModifiedAt("office", kept)], [Put("decided", b"alone")])
            with pytest.raises(StoreError):
                await store.read("")

        there.wait_for_leader(rest)
        with there.etcd.machines[rest[0]].inside():
            other = EtcdStore(Gateway([Endpoint(there.etcd.hosts[member], 2379) for member in rest]), "job/")

            async def taken() -> bool:
                return (await other.commit([Absent("office")], [Put("office", b"theirs")])).succeeded

            await wait_until(taken)
            await other.close()
        there.network.heal()

        async def gone() -> bool:
            return not await store.renew(lease)

        await wait_until(gone)
        entries = (await store.read("")).entries
        assert {key: entry.value for key, entry in entries.items()} == {"office": b"theirs"}

    with there.client.inside():
        run(there.etcd, test)
