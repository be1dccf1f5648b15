import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

from cpu_limit import pytest_runtest_call
from servers.fixtures import (
    etcd,
    etcd_cluster,
    etcd_network,
    hdfs,
    network,
    own_etcd_cluster,
    own_etcd_network,
    seaweedfs,
)

__all__ = [
    "etcd",
    "etcd_cluster",
    "etcd_network",
    "hdfs",
    "network",
    "own_etcd_cluster",
    "own_etcd_network",
    "pytest_runtest_call",
    "seaweedfs",
]

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


os.environ["OUTLAST_CHECK_LOCKS"] = "1"
"""Here, and in all processes that tests start."""

_kill = os.kill


def kill_one(pid: int, number: int) -> None:
    """A test that has lost track of whom to kill must not kill its own process group, or everybody."""
    assert pid > 0, f"no process to send signal {number} to"
    _kill(pid, number)


os.kill = kill_one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long version of every test that has one")
    parser.addoption("--first-seed", type=int, default=0, help="where sweeps of the simulator begin (0)")
    parser.addoption("--seeds", type=int, help="how many seeds a sweep of the simulator has")
    torture = parser.getgroup("torture", "which schedules tests/torture runs, instead of a few fixed ones")
    torture.addoption("--torture-seed", type=int, help="this one, or the first of several")
    torture.addoption("--torture-count", type=int, default=1, help="how many from there on (1)")
    torture.addoption("--torture-only", default="", metavar="KINDS", help="only these faults: kill,cut,…")
    torture.addoption("--torture-cuts", action="store_true", help="runs of nothing but cut connections")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a process that came to them last would keep the other waiting."""
    items.sort(key=lambda item: item.path.parent.name != "sim")


@pytest.fixture
def swept(request: pytest.FixtureRequest) -> Callable[[int], range]:
    """`swept(700)`: the seeds of a sweep, 700 of them unless the command line says otherwise."""
    first, count = request.config.getoption("--first-seed"), request.config.getoption("--seeds")
    return lambda usual: range(first, first + (count or usual))


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    """True in `make soak`: more seeds, more schedules, more repetitions."""
    return bool(request.config.getoption("--soak"))
