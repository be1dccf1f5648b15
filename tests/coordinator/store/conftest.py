from collections.abc import Iterator
from pathlib import Path

import pytest
from store_factories import EmbeddedFactory, EtcdFactory, StoreFactory

from servers.etcd import Etcd


@pytest.fixture(params=["embedded", "etcd", "etcd_cluster"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFactory]:
    """One storage of each kind, fresh for each test."""
    if request.param == "embedded":
        yield EmbeddedFactory(tmp_path / "store")
        return
    server: Etcd = request.getfixturevalue(request.param)
    server.forget()
    yield EtcdFactory(server)
    server.forget()
