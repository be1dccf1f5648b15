"""Servers die with those who test, even by kill -9."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.kinship import alive
from patience import PATIENCE_S
from servers.children import Child, ServerFailed, free_ports

START = """
import sys
from pathlib import Path
from servers.children import Child
code = "import time; print('up', flush=True); time.sleep(600)"
child = Child([sys.executable, "-c", code], Path(sys.argv[1]))
child.wait_until(lambda: "up" in child.log.read_text())
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_does_not_outlive_a_killed_test(tmp_path: Path) -> None:
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})"
    tester = subprocess.Popen(
        [sys.executable, "-c", path + START, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tester.stdin is not None and tester.stdout is not None
    with tester, tester.stdin, tester.stdout as output:
        server = int(output.readline())
        assert alive(server)
        tester.kill()
    deadline = time.monotonic() + PATIENCE_S
    while alive(server):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_fails_says_why(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "import sys; sys.exit('no such option')"], tmp_path / "log")
    with pytest.raises(ServerFailed, match="no such option"):
        child.wait_until(lambda: False)


def test_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
