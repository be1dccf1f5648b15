"""Checkpoints of whole clusters: whatever is killed, and whenever, a run goes on from what was committed."""

import os
import random
import signal
from pathlib import Path

import pytest
from training_run import TrainingRun

from outlast.state.storage.opening import open_storage
from outlast.state.vault.chunks import verify_chunks
from outlast.state.vault.names import checkpoint_of
from outlast.state.vault.vault import Vault

pytestmark = pytest.mark.timeout(300)

SHARDS = 4


def committed(url: str) -> list[int]:
    """The steps on the trunk, newest first; every one of them must be whole."""
    vault = Vault(open_storage(url))
    steps = []
    for name in vault.trunk():
        manifest = vault.read_manifest(name)
        assert verify_chunks(vault.storage, manifest, manifest.chunks) == []
        steps.append(manifest.step)
    return steps


def newest_step(url: str) -> int:
    """The newest step that was committed, as its name says; -1 if there is none."""
    names = Vault(open_storage(url)).manifests()
    return max((found.step for name in names if (found := checkpoint_of(name))), default=-1)


def saving_run(replicas: int, url: str, *options: str, every: str = "5", **more: object) -> TrainingRun:
    return TrainingRun(
        replicas,
        "--checkpoints",
        url,
        "--every",
        every,
        *options,
        shards=SHARDS,
        **more,  # type: ignore[arg-type]
    )


def kill_all(run: TrainingRun) -> None:
    for pid in run.replica_pids().values():
        os.kill(pid, signal.SIGKILL)


def test_when_all_replicas_die_the_job_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "vault")
    with saving_run(3, url, steps=200) as run:
        run.wait_for_all()
        run.wait_until("step 10 is saved", lambda: newest_step(url) >= 10)
        kill_all(run)
        for replica in range(3):
            run.wait_for_life(replica, 2)
        run.finish()
        joined = [int(line.split()[-1]) for line in run.said("stdout").splitlines() if "joined at" in line]
        assert joined[:3] == [0, 0, 0] and max(joined[3:]) >= 10, joined
    assert committed(url)[0] == 200


def test_a_run_that_was_killed_is_resumed_by_another_with_any_number_of_replicas(tmp_path: Path) -> None:
    url, ledgers = str(tmp_path / "vault"), tmp_path / "ledgers"
    rng = random.Random(1)
    reached = 0
    for replicas in (2, 4, 1):
        with saving_run(replicas, url, steps=300, ledgers=ledgers) as run:
            run.wait_for_step(reached + rng.randrange(7, 15))
            os.kill(run.pid, signal.SIGKILL)
            run.wait_until("nothing is left running", lambda: run.processes() == [])
        found = committed(url)
        reached = found[0] if found else reached
    with saving_run(3, url, steps=300, ledgers=ledgers) as run:
        run.finish()
    assert committed(url)[0] == 300
