"""Shared by whole-cluster tests: jobs that last until a test has had enough, scripts given as text, and
places for checkpoints."""

import secrets
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.protocol.messages import Status
from outlast.testing.cluster import LocalCluster
from servers.seaweedfs import BUCKET

UNTIL_ENOUGH = str(Path(__file__).with_name("until_enough.py"))


class Job(LocalCluster):
    """A cluster of stand-ins that work until `finish`; each writes the views it adopts to a trace."""

    def __init__(self, replicas: int, *options: str) -> None:
        super().__init__(replicas, [UNTIL_ENOUGH], options=options)
        self._everybody = set(range(replicas))

    def wait_for_all(self) -> Status:
        """All replicas are members, and they train."""
        status = self.wait_for_members(self._everybody)
        self.wait_for_steps(*self._everybody, more=10)
        return status

    def finish(self) -> int:
        """Let the replicas end as if their work were done; the exit code of the job."""
        (self.directory.path / "enough").touch()
        return self.wait()

    def log(self, replica: int) -> str:
        return self.directory.log(replica).read_text()


@pytest.fixture
def start_job() -> type[Job]:
    """`with start_job(3, "--detect-within", "0.5") as job:`"""
    return Job


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """`script("print('hi')")` writes a script and returns its path."""

    def write(source: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh place for checkpoints: "files", or "s3" or "hdfs" of a real server, as the test's (indirect)
    parameter says."""
    match getattr(request, "param", "files"):
        case "s3":
            server = request.getfixturevalue("seaweedfs")
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            return f"s3://{BUCKET}/{secrets.token_hex(4)}"
        case "hdfs":
            return f"{request.getfixturevalue('hdfs').url}/{secrets.token_hex(4)}"
    return str(tmp_path / "vault")
