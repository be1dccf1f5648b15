from collections.abc import Iterator
from pathlib import Path

import pytest
from store_factories import EmbeddedFactory, EtcdFactory, StoreFactory

from servers.etcd import Etcd
from servers.fixtures import EtcdNetwork


@pytest.fixture(params=["embedded", "etcd", "etcd_cluster", "etcd_network"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """One storage of each kind, fresh for each test."""
    if request.param == "embedded":
        yield EmbeddedFactory(tmp_path / "store")
    elif request.param == "etcd_network":
        yield from _without_a_minority(request.getfixturevalue(request.param))
    else:
        yield from _fresh(request.getfixturevalue(request.param))


def _without_a_minority(there: EtcdNetwork) -> Iterator[StoreFactory]:
    """One of three members is cut off while the test runs. It comes last among those to ask: that one is
    found dead costs a second, which `test_store_etcd_network.py` takes."""
    there.network.cut_off(there.etcd.machines[-1])
    try:
        there.wait_for_leader(among=(0, 1))
        with there.client.inside():
            yield from _fresh(there.etcd)
    finally:
        there.network.heal()


def _fresh(server: Etcd) -> Iterator[StoreFactory]:
    server.forget()
    yield EtcdFactory(server)
    server.forget()
