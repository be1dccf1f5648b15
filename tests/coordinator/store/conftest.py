from pathlib import Path

import pytest
from store_factories import FACTORIES, StoreFactory


@pytest.fixture(params=sorted(FACTORIES))
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """One storage of each kind, fresh for each test."""
    return FACTORIES[request.param](tmp_path / "store")
