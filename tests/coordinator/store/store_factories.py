"""The stores that the conformance suite runs on; `conftest.py` has them all."""

from pathlib import Path
from typing import Protocol

from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.store.seam import Store
from servers.etcd import Etcd


class StoreFactory(Protocol):
    """Opens one and the same storage again and again: close the store and open it to see what it kept."""

    shortest_ttl_s: float
    """The shortest lease that the store can time well; tests of expiry wait about that long."""

    async def open(self) -> Store: ...


class EmbeddedFactory:
    shortest_ttl_s = 0.05

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self) -> Store:
        return await EmbeddedStore.open(self._directory)


class EtcdFactory:
    shortest_ttl_s = 1.0

    def __init__(self, server: Etcd) -> None:
        self._address = server.address("tests/store")

    async def open(self) -> Store:
        return await EtcdStore.open(self._address)
