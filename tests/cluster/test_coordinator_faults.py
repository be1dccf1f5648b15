"""The coordinator may be killed at any moment: nothing agreed is lost, and the replicas never notice."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.coordinator.store.frames import decode_log
from outlast.coordinator.store.records import decode_records
from outlast.coordinator.storekeeper import MEMBERSHIP, Document
from outlast.protocol.views import Membership, View

Job = Any


def agreed(store: Path) -> list[Membership]:
    """Every membership that was ever committed, in order."""
    path = store / "log"
    _, frames = decode_log(path.read_bytes(), path)
    state, transactions = decode_records(frames, path)
    assert state.entries == (), "the log was compacted; make the test shorter"
    changes = [change for transaction in transactions for change in transaction.changes]
    values = [change.value for change in changes if change.key == MEMBERSHIP and change.value is not None]
    return [msgspec.json.decode(value, type=Document).membership for value in values]


def check_history(job: Job) -> list[View]:
    """No view is lost, used twice or left out, and every replica has adopted exactly what was agreed."""
    views: dict[int, View] = {}
    newest = 0
    for membership in agreed(job.directory.store):
        view = membership.view
        assert view.number in (newest, newest + 1), "numbers grow by one"
        assert views.setdefault(view.number, view) == view, "a number stands for one view"
        if view.number > max(newest, 1):
            before = views[newest]
            assert (view.members, view.learners) != (before.members, before.learners), "each has a reason"
        newest = view.number
    for trace in (job.directory.path / "traces").iterdir():
        adopted = [json.loads(line) for line in trace.read_text().splitlines()]
        lives: dict[int, list[int]] = {}
        for entry in adopted:
            members = views[entry["view"]].members
            assert entry["members"] == [member.replica for member in members]
            assert entry["lives"] == [member.incarnation for member in members]
            lives.setdefault(entry["pid"], []).append(entry["view"])
        for numbers in lives.values():
            assert numbers == sorted(set(numbers)), "a process never goes back"
    return list(views.values())


@pytest.fixture
def seeds(soak: bool) -> range:
    return range(4 if soak else 1)


def test_killing_it_loses_no_view_and_disturbs_no_replica(start_job: Job, seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        with start_job(3) as job:
            job.wait_for_all()
            pids = job.replica_pids()
            life = dict.fromkeys(pids, 1)
            for kill in range(5):
                victim = chance.choice([1, 2])
                coordinator = job.coordinator_pid()
                # At a random moment; with every other one, in the middle of a change of membership.
                time.sleep(chance.uniform(0, 0.2))
                if kill % 2:
                    os.kill(job.replica_pid(victim), signal.SIGKILL)
                    time.sleep(chance.uniform(0, 0.02))
                    life[victim] += 1
                os.kill(coordinator, signal.SIGKILL)
                job.wait_for_steps(0)
                job.wait_for_life(victim, life[victim])
                job.wait_for_steps(0, 1, 2)
            assert job.coordinator_pid() != coordinator
            untouched = {replica for replica in pids if life[replica] == 1}
            assert {0} <= untouched
            now = job.replica_pids()
            assert {r: now[r] for r in untouched} == {r: pids[r] for r in untouched}
            assert job.finish() == 0, f"seed {seed}"
            assert job.processes() == []
            seen = [member for view in check_history(job) for member in view.members]
            lives = {member.replica: member.incarnation for member in seen}
            assert lives == life, f"nobody was evicted for the coordinator's death (seed {seed})"


def test_without_it_training_goes_on(start_job: Job) -> None:
    with start_job(2, "--detect-within", "0.5") as job:
        before = job.wait_for_all().view
        coordinator = job.coordinator_pid()
        os.kill(coordinator, signal.SIGSTOP)
        # Longer than anybody may be silent.
        job.wait_for_steps(0, 1, more=200)
        os.kill(coordinator, signal.SIGCONT)
        after = job.wait_for("an answer", lambda _: True).view
        assert after == before
        job.wait_for_steps(0, 1, more=50)
        assert job.status().view == before, "it has slept, not the others"
        # Asked politely to end, or not: the job needs one, and gets one.
        os.kill(coordinator, signal.SIGTERM)
        job.wait_until("another coordinator", lambda: job.coordinator_pid() != coordinator)
        assert job.wait_for("an answer", lambda _: True).view == before
        assert job.finish() == 0
        check_history(job)


def test_killed_when_the_job_ends_it_still_tells_how(start_job: Job) -> None:
    with start_job(2) as job:
        job.wait_for_all()
        (job.directory.path / "enough").touch()
        job.wait_until("the end is agreed", lambda: agreed(job.directory.store)[-1].outcome is not None)
        for pid in job.processes():
            # The job is ending, so any of them may be gone by now.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"outlast.coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        assert job.wait() == 0
        assert job.processes() == []


def test_a_damaged_store_ends_the_job_with_a_clear_word(start_job: Job) -> None:
    with start_job(2, "--grace", "0.5") as job:
        job.wait_for_all()
        job.kill(1)
        job.wait_for_life(1, 2)
        path = job.directory.store / "log"
        _, frames = decode_log(path.read_bytes(), path)
        with path.open("r+b") as log:
            log.seek(frames[len(frames) // 2].start + 40)
            byte = log.read(1)[0]
            log.seek(-1, os.SEEK_CUR)
            log.write(bytes([byte ^ 1]))
        damaged = path.read_bytes()
        os.kill(job.coordinator_pid(), signal.SIGKILL)
        assert job.wait() == 7
        assert job.processes() == []
        assert f"{path} is damaged at byte {frames[len(frames) // 2].start}" in job.said("stderr")
        assert "Traceback" not in job.said()
        assert path.read_bytes() == damaged, "what a human must look at is left as it is"
