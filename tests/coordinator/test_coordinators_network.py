"""Coordinators over an etcd on a network that fails: at no time do two of them lead."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

import pytest

from outlast.coordinator.service import CoordinatorService
from outlast.coordinator.store.etcd import EtcdStore
from outlast.protocol.election import Office
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec
from patience import PATIENCE_S
from servers.etcd import Etcd
from servers.fixtures import EtcdNetwork
from servers.machines import Machine, Network


class Coordinator:
    """One in a thread that is on its machine."""

    def __init__(self, machine: Machine, etcd: Etcd) -> None:
        self.address = f"{machine.address}:7777"
        self._machine = machine
        self._etcd = etcd
        self._service: CoordinatorService | None = None
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run)

    @property
    def leads(self) -> bool:
        """As it sees it itself. It looks at its lease before all that it does, so that counts, too."""
        if self._serving.done():
            self._serving.result()
        if self._service is None:
            return False
        core = self._service._core
        return core.leading and time.monotonic() < core.election._lease_until

    def follows(self, leader: "Coordinator") -> bool:
        if self._service is None:
            return False
        election = self._service._core.election
        return election.office is Office.FOLLOWING and election.leader == leader.address

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        with self._machine.inside():
            self._loop.run_until_complete(asyncio.wait([self._serving]))

    async def _serve(self) -> None:
        store = await EtcdStore.open(self._etcd.address("job"))
        self._service = CoordinatorService(
            spec=JobSpec(name="job", replicas=1, shards=1),
            timing=Timing(),
            token=bytes(32),
            store=store,
            address=self.address,
        )
        try:
            await self._service.run(socket.create_server(("127.0.0.1", 0)))
        finally:
            await store.close()


def is_not_heard(net: Network, machine: Machine) -> None:
    for each in net.machines:
        if each is not machine:
            net.cut_one_way(machine, each)


def hears_nobody(net: Network, machine: Machine) -> None:
    for each in net.machines:
        if each is not machine:
            net.cut_one_way(each, machine)


FAULTS: dict[str, Callable[[Network, Machine], None]] = {
    "is cut off": lambda net, machine: net.cut_off(machine),
    "is not heard": is_not_heard,
    "hears nobody": hears_nobody,
}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_leader_that_is_alone_with_the_leader_of_etcd_gives_up_before_another_leads(
    own_etcd_network: EtcdNetwork, fault: str
) -> None:
    there = own_etcd_network
    alone = there.wait_for_leader()
    machine, elsewhere = there.etcd.machines[alone], there.etcd.machines[alone - 1]
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Coordinator(machine, there.etcd))
        wait_until(lambda: old.leads)
        new = stack.enter_context(Coordinator(elsewhere, there.etcd))

        def never_both(holds: bool) -> bool:
            # In this order: when the new one leads, the old one has to know that it does not.
            assert not (new.leads and old.leads)
            return holds

        wait_until(lambda: never_both(new.follows(old)))
        FAULTS[fault](there.network, machine)
        wait_until(lambda: never_both(new.leads))
        there.network.heal()
        wait_until(lambda: never_both(old.follows(new)))
        assert there.etcd.values("job/leader") == [new.address.encode()]
