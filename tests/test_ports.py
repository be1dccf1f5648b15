"""The ported scripts: little differs from their plain originals, and no kill shows in what they learn."""

import difflib
import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import outlast
from outlast.testing.cluster import LocalCluster
from patience import PATIENCE_S

PORTS = Path(__file__).parents[1] / "examples" / "ports"
IMAGES, GPT = str(PORTS / "image_trainer_outlast.py"), str(PORTS / "gpt_trainer_outlast.py")


def run(script: str, *options: str) -> str:
    """What a script prints that is started by hand."""
    done = subprocess.run(
        [sys.executable, script, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def saved(url: Path, which: str | None = None) -> Any:
    """The whole training state of a checkpoint, as something that can be compared bit for bit."""
    found = outlast.load(url, which)
    return found.step, bits(found.model), bits(found.optimizer), bits(found.state)


def bits(value: Any) -> Any:
    match value:
        case torch.Tensor():
            # By its hash: where two differ, pytest would compare all bytes for minutes.
            return value.dtype, value.shape, hashlib.sha256(value.numpy().tobytes()).hexdigest()
        case dict():
            return {key: bits(each) for key, each in value.items()}
        case list() | tuple():
            return [bits(each) for each in value]
    return value


def reach(cluster: LocalCluster, step: int) -> None:
    cluster.wait_until(f"step {step}", lambda: max(cluster.steps().values(), default=0) >= step, PATIENCE_S)


def added_lines(name: str) -> int:
    """How many lines the port has that its original has not, as `diff` counts them."""
    original, port = ((PORTS / f"{name}{end}.py").read_text().splitlines() for end in ("", "_outlast"))
    blocks = difflib.SequenceMatcher(None, original, port, autojunk=False).get_matching_blocks()
    return len(port) - sum(block.size for block in blocks)


def test_the_image_trainer_is_ported_with_twenty_lines() -> None:
    assert 0 < added_lines("image_trainer") <= 20


def test_the_plain_image_trainer_runs(tmp_path: Path) -> None:
    told = run(str(PORTS / "image_trainer.py"), "--epochs", "2", "--out", str(tmp_path / "best.pt"))
    assert re.search(r"epoch 1: .*\nthe best model reads \d", told), told


def test_the_plain_gpt_trainer_runs_and_goes_on(tmp_path: Path) -> None:
    script = (str(PORTS / "gpt_trainer.py"), "--out", str(tmp_path / "gpt.pt"), "--steps")
    assert "step 20: loss" in run(*script, "20")
    told = run(*script, "40")
    assert "going on after step 20\nstep 40: loss" in told, told


def test_no_kill_shows_in_what_the_image_trainer_learns(tmp_path: Path) -> None:
    """The one that prints is killed. Both stop early, after the same epoch as one that does it all."""
    options = ("--epochs", "20", "--patience", "0", "--out")
    with LocalCluster(1, [IMAGES, *options, str(tmp_path / "quiet")], options=("--shards", "2")) as quiet:
        assert quiet.wait() == 0, quiet.said()
        result = quiet.said("stdout").splitlines()[-1].removeprefix("[0] ")
    with LocalCluster(2, [IMAGES, *options, str(tmp_path / "killed")]) as cluster:
        reach(cluster, 30)
        cluster.kill(0)
        assert cluster.wait() == 0, cluster.said()
        assert "replica 0 killed at step" in cluster.said()
        assert cluster.said("stdout").splitlines()[-1].endswith(result)
    assert saved(tmp_path / "killed") == saved(tmp_path / "quiet")
    assert saved(tmp_path / "killed", "best") == saved(tmp_path / "quiet", "best")
    assert saved(tmp_path / "killed", "best")[0] < saved(tmp_path / "killed")[0] < 20 * 19


@pytest.mark.parametrize("ending", ["Ctrl-C", pytest.param("a kill of everything", marks=pytest.mark.soak)])
def test_neither_a_kill_nor_a_new_start_shows_in_what_the_gpt_trainer_learns(
    tmp_path: Path, ending: str
) -> None:
    script, url = [GPT, "--steps", "80", "--out"], tmp_path / "killed"
    result = run(*script, str(tmp_path / "quiet")).splitlines()[-1]
    with LocalCluster(2, [*script, str(url)]) as cluster:
        reach(cluster, 8)
        cluster.kill(1)
        reach(cluster, 25)
        cluster.wait_until("a checkpoint", lambda: any(url.glob("manifests/*.json")))
        cluster.signal_launcher(signal.SIGINT if ending == "Ctrl-C" else signal.SIGKILL)
        assert cluster.wait() == (130 if ending == "Ctrl-C" else -signal.SIGKILL), cluster.said()
        cluster.wait_until("all is gone", lambda: not cluster.processes())
    with LocalCluster(2, [*script, str(url)]) as cluster:
        assert cluster.wait() == 0, cluster.said()
        assert re.search(r"resumed from step [1-7]\d of", cluster.said()), cluster.said()
        assert cluster.said("stdout").splitlines()[-1].endswith(result)
    assert saved(url) == saved(tmp_path / "quiet")
