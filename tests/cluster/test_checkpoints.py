"""Checkpoints of whole clusters: whatever is killed, and whenever, a run goes on from what was committed."""

import os
import random
import re
import secrets
import signal
import time
from pathlib import Path

import pytest
from training_run import TrainingRun

from outlast.crashpoints import SAVE_POINTS
from outlast.errors import JobFailed
from outlast.state.storage.opening import open_storage
from outlast.state.vault.chunks import verify_chunks
from outlast.state.vault.names import checkpoint_of
from outlast.state.vault.vault import Vault
from servers.faulty_proxy import Fault, FaultyProxy
from servers.seaweedfs import BUCKET, SeaweedFS

SHARDS = 4
ENDLESS = {"steps": 250, "pace_s": 0.04}
"""More than a test that kills gets to."""


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


def writers_of_newest(url: str) -> list[str]:
    vault = Vault(open_storage(url))
    return [writer for name in vault.trunk()[:1] for writer in vault.read_manifest(name).writers]


def joins(run: TrainingRun) -> dict[int, list[int]]:
    """Replica → after which steps its lives have joined."""
    found: dict[int, list[int]] = {}
    for replica, step in re.findall(r"\[(\d+)\] joined at (\d+)", run.said("stdout")):
        found.setdefault(int(replica), []).append(int(step))
    return found


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
        assert all(first == 0 and second >= 10 for first, second in joins(run).values()), joins(run)
    assert committed(url)[0] == 200


@pytest.mark.parametrize("url", ["files", "s3", "hdfs"], indirect=True)
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_again_and_again_is_resumed_with_any_number_of_replicas(
    url: str, tmp_path: Path, soak: bool
) -> None:
    rng = random.Random(url)
    reached = 0
    for time_ in range(20 if soak else 2):
        with saving_run(rng.choice([1, 2, 3, 4]), url, every="3", **ENDLESS, ledgers=tmp_path) as run:
            run.wait_for_step(reached + 1)
            if time_ == 0:
                run.wait_until("a checkpoint", lambda: bool(committed(url)))
            time.sleep(rng.uniform(0, 2))  # Any moment will do.
            os.kill(run.pid, signal.SIGKILL)
            run.wait_until("nothing is left running", lambda: run.processes() == [])
        found = committed(url)
        assert found[0] >= reached, f"step {reached} was committed, and now there is {found}"
        reached = found[0]
    with saving_run(rng.choice([2, 3]), url, every="3", **ENDLESS, ledgers=tmp_path) as run:
        run.finish()
    assert committed(url)[0] == ENDLESS["steps"]


IN_MAKE_TEST = ("written", "committed")
AT_THE_START = ("claimed", "restoring")


@pytest.mark.parametrize(
    "point", [p if p in IN_MAKE_TEST else pytest.param(p, marks=pytest.mark.soak) for p in SAVE_POINTS]
)
def test_a_power_cut_at_any_point_of_a_save_loses_nothing_that_was_committed(
    tmp_path: Path, point: str
) -> None:
    url, ledgers = str(tmp_path / "vault"), tmp_path / "ledgers"
    step = 10 if point not in AT_THE_START else 0
    with saving_run(2, url, "--power-cut", f"{point}@{step}", steps=100, ledgers=ledgers) as run:
        run.wait_until("nothing is left running", lambda: run.processes() == [])
    found = committed(url)
    assert 100 not in found, "there was no power cut"
    assert any(step >= 10 for step in found) == (point == "committed"), found
    assert not found or point not in AT_THE_START
    with saving_run(3, url, steps=100, pace_s=0, ledgers=ledgers) as run:
        run.finish()
        assert f"joined at {found[0] if found else 0}" in run.said("stdout")


def test_kills_of_writers_and_committers_leave_no_trace(tmp_path: Path) -> None:
    url = str(tmp_path / "vault")
    plan = "copying@any:1 written@any:1.2 intending@any:0 committing@any:0.2 committed@any:0.3"
    with saving_run(3, url, "--crash", plan, steps=250) as run:
        run.wait_for_life(0, 4)
        run.wait_for_life(1, 3)
        run.finish()
    assert committed(url)[0] == 250


@pytest.mark.parametrize("moment", ["intending@10", "claimed@0"])
def test_the_coordinator_is_killed_before_it_hears_what_it_shall_record(tmp_path: Path, moment: str) -> None:
    url = str(tmp_path / "vault")
    with saving_run(2, url, "--strike-coordinator", moment, steps=100) as run:
        run.wait_for_step(30)
        run.finish()
    assert committed(url)[0] == 100


def test_a_shadow_saves_so_that_members_need_not(tmp_path: Path) -> None:
    url = str(tmp_path / "vault")
    with saving_run(2, url, steps=100, options=("--shadow",)) as run:
        # Until the shadow is there, members save by themselves.
        run.wait_until("a checkpoint by the shadow", lambda: writers_of_newest(url) == ["2"])
        kill_all(run)
        run.wait_for_life(0, 2)
        run.wait_for_life(1, 2)
        run.finish()
        assert joins(run)[0] == [0, joins(run)[0][1]] and joins(run)[0][1] >= 5
    assert committed(url)[0] == 100


def test_a_run_that_is_told_to_stop_saves_its_state_before_it_leaves(tmp_path: Path) -> None:
    url = str(tmp_path / "vault")
    with saving_run(2, url, every="1h", steps=100_000) as run:
        run.wait_for_all()
        reached = max(run.steps().values())
        run.signal_launcher(signal.SIGINT)
        assert run.wait() == 130
        assert run.processes() == []
        saved = committed(url)[0]
        last = run.said("stderr").splitlines()[-1]
    assert saved >= reached
    assert re.fullmatch(
        rf"outlast: stopped at step \d+; (step {saved} is saved in|saved to) {re.escape(url)}, the same "
        r"command goes on from there",
        last,
    )


@pytest.mark.parametrize("fault", [Fault.DENY, pytest.param(Fault.SLOW_DOWN, marks=pytest.mark.soak)])
def test_training_goes_on_while_the_storage_is_away(
    fault: Fault, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    with FaultyProxy(seaweedfs.port) as proxy:
        for name, value in seaweedfs.environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        with saving_run(2, url, steps=2000) as run:
            run.wait_until("a checkpoint", lambda: bool(committed(url)))
            proxy.misbehave(fault, times=100_000, method="PUT")
            run.wait_for_steps(0, 1, more=10)
            if fault is Fault.DENY:
                run.wait_for("its trouble is told", lambda status: "the last try failed" in status.saving)
            proxy.behave()
            before = committed(url)[0]
            run.wait_until("a newer checkpoint", lambda: committed(url)[0] > before)
            run.wait_for("no trouble any more", lambda status: "failed" not in status.saving)


def test_a_run_that_has_ended_is_not_saved_again(tmp_path: Path) -> None:
    url, ledgers = str(tmp_path / "vault"), tmp_path / "ledgers"
    for replicas in (1, 3):
        with saving_run(replicas, url, steps=20, pace_s=0, ledgers=ledgers) as run:
            run.finish()
            assert "NOT saved" not in run.said("stderr")
    vault = Vault(open_storage(url))
    assert vault.claims() == [1, 2] and vault.read_manifest(vault.trunk()[0]).claim == 1


def test_a_second_job_with_the_same_url_is_told_so(tmp_path: Path) -> None:
    url = str(tmp_path / "vault")
    with saving_run(1, url, steps=2000) as first:
        first.wait_until("a checkpoint", lambda: bool(committed(url)))
        with saving_run(1, url, steps=2000) as second:
            assert second.wait() == JobFailed.exit_code
            assert "Another job writes checkpoints" in second.said()
        first.wait_for_steps(0, more=5)
