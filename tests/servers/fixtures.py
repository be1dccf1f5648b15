"""The servers as fixtures, started when the first test asks for one and shared by all of them."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from patience import PATIENCE_S
from servers import etcd as etcd_server
from servers import hdfs as hdfs_server
from servers import namespaces
from servers import seaweedfs as s3_server
from servers.etcd import Etcd
from servers.hdfs import Hdfs
from servers.machines import Machine, Network
from servers.seaweedfs import SeaweedFS


def need(missing: str | None) -> None:
    """Skip where a server cannot be had. In CI it can, so there its absence is a failure and not a skip."""
    if missing:
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    need(s3_server.missing())
    folder = tmp_path_factory.mktemp("seaweedfs")
    server = SeaweedFS(folder)
    try:
        server.wait()
        yield server
    finally:
        server.stop()
        # It is hundreds of megabytes, which pytest would keep for the next three runs.
        shutil.rmtree(folder / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    need(hdfs_server.missing())
    folder = tmp_path_factory.mktemp("hdfs")
    server = Hdfs(folder)
    try:
        server.wait()
        yield server
    finally:
        server.stop()
        # It is hundreds of megabytes, which pytest would keep for the next three runs.
        shutil.rmtree(folder / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member."""
    yield from _etcd(tmp_path_factory, 1)


@pytest.fixture(scope="session")
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Three members."""
    yield from _etcd(tmp_path_factory, 3)


@pytest.fixture
def own_etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Three members that nobody else needs, and that may be killed."""
    yield from _etcd(tmp_path_factory, 3)


def _etcd(folders: pytest.TempPathFactory, members: int) -> Iterator[Etcd]:
    need(etcd_server.missing())
    server = Etcd(folders.mktemp("etcd"), members)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture
def network() -> Iterator[Callable[[int], Network]]:
    """`network(3)`: three machines that nobody else uses."""
    need(namespaces.missing())
    networks: list[Network] = []

    def new(machines: int) -> Network:
        networks.append(Network(machines))
        return networks[-1]

    yield new
    for each in networks:
        each.close()


@dataclass(frozen=True)
class EtcdNetwork:
    """Three machines with a member of etcd each, and one without."""

    network: Network
    etcd: Etcd
    client: Machine

    def wait_for_leader(self, among: Sequence[int] = (0, 1, 2)) -> int:
        """Which of these members leads, once one does."""
        deadline = time.monotonic() + PATIENCE_S
        while (leader := self.etcd.leader(among)) < 0:
            assert time.monotonic() < deadline, f"none of the members {among} leads"
            time.sleep(0.02)
        return leader


@pytest.fixture(scope="session")
def etcd_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNetwork]:
    """Whoever cuts something heals it, too."""
    yield from _etcd_network(tmp_path_factory)


@pytest.fixture
def own_etcd_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNetwork]:
    """One that nobody else needs."""
    yield from _etcd_network(tmp_path_factory)


def _etcd_network(folders: pytest.TempPathFactory) -> Iterator[EtcdNetwork]:
    need(etcd_server.missing() or namespaces.cannot_enter())
    with contextlib.closing(Network(4)) as network:
        *machines, client = network.machines
        server = Etcd(folders.mktemp("etcd"), len(machines), machines=machines)
        try:
            server.wait()
            yield EtcdNetwork(network, server, client)
        finally:
            server.stop()
