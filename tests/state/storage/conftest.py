from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_places import KINDS, Place

from outlast.state.storage.seam import Storage


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A fresh place of each kind."""
    match request.param:
        case "files":
            yield Place("files", str(tmp_path / "not" / "there" / "yet"))
        case _:
            raise AssertionError(request.param)


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.open()
