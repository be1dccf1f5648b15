"""Shared by whole-cluster tests: jobs that last until a test has had enough, and scripts given as text."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.protocol.messages import Status
from outlast.testing.cluster import LocalCluster

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
