"""Shared by the tests of the command line: the command itself, in a home of the test's own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patience import PATIENCE_S

Outlast = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def outlast(tmp_path: Path, home: Path) -> Outlast:
    """`outlast("run", "-n", "2", "train.py")`, to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "outlast", *arguments],
            env={**os.environ, "OUTLAST_HOME": str(home), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return run
