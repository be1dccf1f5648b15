"""The examples do what they say: the same weights alone and as several replicas, whatever happens to them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from patience import PATIENCE_S

EXAMPLES = Path(__file__).parents[1] / "examples"
SVG = "{http://www.w3.org/2000/svg}"


def run(*command: str, home: Path) -> str:
    """What an example prints, replicas' numbers left out."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OUTLAST_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"^\[\d\] ", "", done.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["digits", "convnet", "chargpt"])
def test_an_example_learns_the_same_alone_and_as_two(name: str, tmp_path: Path) -> None:
    script = [str(EXAMPLES / f"{name}.py"), "--steps", "20"]
    alone = run(*script, home=tmp_path)
    assert re.search(r"optimizer: [0-9a-f]{16}$", alone, flags=re.MULTILINE)
    assert run("-m", "outlast", "run", "-n", "2", *script, home=tmp_path) == alone


def test_a_replica_that_turns_bad_spoils_the_mean_and_not_a_rule(tmp_path: Path) -> None:
    picture = tmp_path / "poisoned.svg"
    script = [str(EXAMPLES / "poisoned.py"), "--steps", "100", "--good-for", "50", "--picture", str(picture)]
    told = run(*script, home=tmp_path)
    rows = [line.replace("%", "").split() for line in told.splitlines() if line.endswith("%")]
    mean, trimmed_mean = ({int(row[0]): float(row[column]) for row in rows} for column in (1, 2))
    assert min(mean[50], trimmed_mean[50]) > 70
    assert mean[100] < 30
    assert trimmed_mean[100] > 70
    assert len(ElementTree.fromstring(picture.read_text()).findall(f"{SVG}polyline")) == 3  # noqa: S314


def test_the_demo_ends_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    told = run(str(EXAMPLES / "demo.py"), "--seed", "7", home=tmp_path)
    assert told.count("demo: kill -9") == 3
    assert told.count("is back after") == 3
    assert "each sample exactly once per pass" in told
    assert "bit for bit" in told
