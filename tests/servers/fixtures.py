"""The servers as fixtures, started when the first test asks for one and shared by all of them."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from servers import etcd as etcd_server
from servers import hdfs as hdfs_server
from servers import namespaces
from servers import seaweedfs as s3_server
from servers.etcd import Etcd
from servers.hdfs import Hdfs
from servers.machines import Network
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
