import secrets
from pathlib import Path

import pytest
from storage_places import KINDS, Place

from outlast.state.storage.seam import Storage
from servers.hdfs import Hdfs
from servers.seaweedfs import BUCKET, SeaweedFS


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    """A fresh place of each kind."""
    found = request.getfixturevalue(f"{request.param}_place")
    assert isinstance(found, Place)
    return found


@pytest.fixture
def files_place(tmp_path: Path) -> Place:
    return Place("files", str(tmp_path / "not" / "there" / "yet"))


@pytest.fixture
def s3_place(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Place:
    environment = seaweedfs.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Place("s3", f"s3://{BUCKET}/{secrets.token_hex(4)}/checkpoints", environment)


@pytest.fixture
def hdfs_place(hdfs: Hdfs) -> Place:
    return Place("hdfs", f"{hdfs.url}/{secrets.token_hex(4)}/checkpoints")


@pytest.fixture
def storage(place: Place) -> Storage:
    return place.open()
