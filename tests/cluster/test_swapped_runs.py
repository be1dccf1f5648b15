"""Another user of the machine tries to have the owner of a job run a program of theirs."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from outlast.testing.cluster import LocalCluster
from outlast.wire.rundir import RunFile

SOMEBODY = 65534
FOR_EVER = ["-m", "outlast.testing.standin", "--step-s", "0.02", "--steps", "1000000"]

# The token need not be read for this: a link to where it is now will do.
SWAP = """
cd "$1/runs" && mv job aside && mkdir -m 755 job && cd job &&
cp "$2" run.json && ln -s ../aside/token token && mkdir -m 777 agents logs
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that others can see, but not write to."""
    with tempfile.TemporaryDirectory(prefix="outlast-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def forged(cluster: LocalCluster, home: Path) -> tuple[Path, Path]:
    """A run.json with another program, and what that program leaves when it has run."""
    proof, script, file = home / "it-has-run", home / "theirs.py", home / "forged.json"
    script.write_text(f"import pathlib; pathlib.Path({str(proof)!r}).touch()")
    run = msgspec.json.decode((cluster.directory.path / "run.json").read_bytes(), type=RunFile)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(run, argv=(str(script),))))
    for path in (script, file):
        path.chmod(0o644)
    return file, proof


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_a_run_cannot_be_swapped_by_others_although_the_umask_lets_them(home: Path) -> None:
    before = os.umask(0)
    try:
        cluster = LocalCluster(1, FOR_EVER, home=home)
        cluster.__enter__()
    finally:
        os.umask(before)
    try:
        cluster.wait_for_members({0})
        file, proof = forged(cluster, home)
        swap = subprocess.run(
            ["/bin/sh", "-c", SWAP, "swap", str(home), str(file)],
            user=SOMEBODY,
            group=SOMEBODY,
            extra_groups=[],
            check=False,
            capture_output=True,
        )
        os.kill(cluster.agent_pid(), signal.SIGKILL)
        cluster.wait_until(
            "the next agent has started something",
            lambda: proof.exists() or "a new lineage begins" in cluster.views(),
        )
        assert not proof.exists()
        assert swap.returncode != 0
    finally:
        cluster.__exit__(None, None, None)


@pytest.mark.parametrize("part", ["agent", "coordinator"])
def test_a_run_that_was_swapped_all_the_same_is_not_read(home: Path, part: str) -> None:
    """Whoever did it had the right to: the directory is another one, though all in it looks as it should."""
    with LocalCluster(1, FOR_EVER, home=home, options=["--grace", "0.5"]) as cluster:
        cluster.wait_for_members({0})
        file, proof = forged(cluster, home)
        aside = cluster.directory.path.with_name("aside")
        cluster.directory.path.rename(aside)
        shutil.copytree(aside, cluster.directory.path)
        shutil.copy(file, cluster.directory.path / "run.json")
        os.kill(cluster.agent_pid() if part == "agent" else cluster.coordinator_pid(), signal.SIGKILL)
        assert cluster.wait() == 2
        assert "is not the directory that this run was started with" in cluster.said("stderr")
        assert not proof.exists()


def test_a_home_that_others_may_write_to_is_refused(home: Path) -> None:
    home.chmod(0o777)
    with LocalCluster(1, FOR_EVER, home=home) as cluster:
        assert cluster.wait() == 2
        assert f"run `chmod go-w {home}`" in cluster.said("stderr")
    assert not (home / "runs").exists()
