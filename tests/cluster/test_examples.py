"""The examples do what they say."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_demo_outlasts_its_accidents() -> None:
    demo = [sys.executable, str(EXAMPLES / "demo.py")]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the job outlasted all of it" in done.stdout
    for cause in ("replica 2 was killed by SIGKILL", "replica 1 is stopped", "replica 2 has caught up"):
        assert cause in done.stderr
