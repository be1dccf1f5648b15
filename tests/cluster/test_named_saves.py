"""Saves by name in whole clusters: whoever dies in the middle, the name stands for the newest state."""

import random
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import outlast
from outlast.state.digest import state_digest
from outlast.testing.cluster import LocalCluster

SCRIPT = str(Path(__file__).with_name("named_job.py"))


def job(url: str, *more: object) -> list[str]:
    return [SCRIPT, url, *map(str, more)]


def check_best(url: str, step: int, said: str) -> None:
    """The checkpoint with the name is whole, and the state that all replicas had after that step."""
    states = set(re.findall(rf"STATE {step} (\w+)", said))
    best = outlast.load(url, "best")
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model.load_state_dict(best.model)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(best.optimizer)
    assert (best.step, {state_digest(model, optimizer)}) == (step, states)


@pytest.mark.parametrize("url", ["files", "s3", pytest.param("hdfs", marks=pytest.mark.soak)], indirect=True)
def test_whoever_dies_around_a_save_the_name_stands_for_the_newest_state(url: str) -> None:
    plan = "written@any:1 intending@any:0 committing@any:2 committed@any:1.2"
    with LocalCluster(3, job(url, "--crash", plan)) as cluster:
        assert cluster.wait() == 0, cluster.said()
        told = cluster.said()
        assert told.count("was killed by SIGKILL") >= 2, told
        check_best(url, 60, told)
        assert cluster.processes() == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("url", "seed"),
    [*(("files", n) for n in range(20)), *((place, n) for place in ("s3", "hdfs") for n in range(20, 25))],
    indirect=["url"],
)
def test_random_kills_around_saves(url: str, seed: int) -> None:
    chance = random.Random(seed)
    with LocalCluster(3, job(url, "--steps", 100)) as cluster:
        for _ in range(3):
            reached = max(cluster.steps().values(), default=0) + chance.randint(3, 12)
            cluster.wait_until(f"step {reached}", lambda: max(cluster.steps().values(), default=0) >= reached)  # noqa: B023
            cluster.kill(chance.choice(sorted(cluster.replica_pids())))
        assert cluster.wait() == 0, cluster.said()
        check_best(url, 100, cluster.said())


def test_a_run_that_ends_early_is_resumed_as_such_and_refuses_what_has_changed(url: str) -> None:
    with LocalCluster(2, job(url, "--ends", 23, "--pace", 0)) as cluster:
        assert cluster.wait() == 0, cluster.said()
        first = cluster.said()
        check_best(url, 20, first)
    with LocalCluster(3, job(url, "--pace", 0)) as cluster:
        assert cluster.wait() == 0, cluster.said()
        told = cluster.said()
    assert told.count("this run ended at step 23, as the script decided; nothing left to do") == 1, told
    assert set(re.findall(r"LEFT AT (\d+)", told)) == {"23"}
    assert len(set(re.findall(r"ID (\S+)", first + told))) == 1, "it is the same run"
    with LocalCluster(2, job(url, "--decay", 0.5)) as cluster:
        assert cluster.wait() == 4
        told = cluster.said()
    for words in ("checkpoint of step 23", "changed=('weight_decay',)", "outlast rewind", "another URL"):
        assert words in told, told


def test_a_run_says_what_it_goes_on_from(url: str) -> None:
    for steps in (10, 20):
        with LocalCluster(2, job(url, "--steps", steps, "--pace", 0)) as cluster:
            assert cluster.wait() == 0, cluster.said()
            told = cluster.said()
    found = re.findall(r"resumed from step 10 of (\S+), saved \d+ (?:s|min) ago; 10 steps to go", told)
    assert found == [url], told


def test_one_that_saves_alone_is_told_of_its_mistake(url: str) -> None:
    with LocalCluster(2, job(url, "--alone")) as cluster:
        assert cluster.wait() == 4, cluster.said()
        told = cluster.said()
    assert re.search(
        r"job\.save\('best'\) was called after step \d+ by replica 0, and not by replica 1", told
    )
    assert "take it out of `if job.chief`" in told
