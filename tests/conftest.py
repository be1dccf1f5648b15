import pytest

from servers.fixtures import hdfs, seaweedfs

__all__ = ["hdfs", "seaweedfs"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long version of every test that has one")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a process that came to them last would keep the other waiting."""
    items.sort(key=lambda item: item.path.parent.name != "sim")


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    """True in `make soak`: more seeds, more schedules, more repetitions."""
    return bool(request.config.getoption("--soak"))
