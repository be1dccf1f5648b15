"""Mistakes that only show between replicas: who is told what, and how the job ends or goes on."""

import re
from collections.abc import Callable

import pytest
from training_run import TrainingRun

from outlast.testing.cluster import LocalCluster

Script = Callable[[str], str]

ODD_ONE_OUT = """
    import time
    import torch
    import outlast
    from outlast.wire.handover import handover

    replica = handover().replica
    wide, lr, threads, last = 3, 0.1, 1, 200
    if replica == 1:
        {mistake}
    torch.set_num_threads(threads)
    model = torch.nn.Sequential(torch.nn.Linear(4, wide))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with outlast.join(model=model, optimizer=optimizer) as job:
        for step in job.steps(200):
            for shard in step:
                time.sleep(0.01)
                step.backward(model(torch.randn(2, 4)).square().mean())
            optimizer.step()
            if step.number >= last:
                break
"""


@pytest.mark.parametrize(
    ("mistake", "what"),
    [
        ("wide = 5", r"replica 1 differs from its peers: .*0\.weight"),
        ("threads = 2", r"replica 1 differs from its peers: .*number of torch threads is 2.*exact=False"),
    ],
)
def test_a_replica_that_is_unlike_the_others_says_so(script: Script, mistake: str, what: str) -> None:
    with LocalCluster(2, [script(ODD_ONE_OUT.format(mistake=mistake))]) as cluster:
        # It cannot get better by itself, but the others may be done before that is certain.
        code = cluster.wait()
        told = cluster.said()
        assert re.search(what, told), told
        assert code in (0, 4)
        if code == 4:
            assert "outlast: replica 1 exited with status" in told
        assert "replica 0 exited" not in told and "[0] " not in told, "the other one is not at fault"
        assert cluster.processes() == []


JOINS_TWICE = """
    import torch
    import outlast

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with outlast.join(model=model, optimizer=optimizer) as job:
            for step in job.steps(3):
                for shard in step:
                    step.backward(model(torch.randn(2, 4)).square().mean())
                optimizer.step()
        print("LOOP OVER")
"""


def test_a_script_joins_its_job_once(script: Script) -> None:
    """A second time, one would find the others gone and train alone, and the job end as if all were well."""
    with LocalCluster(2, [script(JOINS_TWICE)]) as cluster:
        assert cluster.wait() == 4
        assert "outlast.join was called before in this process" in cluster.said()
        assert cluster.processes() == []


def test_leaving_the_loop_on_one_member_only(script: Script) -> None:
    with LocalCluster(2, [script(ODD_ONE_OUT.format(mistake="last = 10"))]) as cluster:
        cluster.wait()
        told = cluster.said()
        assert "replica 1 left the loop of steps after step 10, while replica 0 went on" in told, told
        assert cluster.processes() == []


def test_an_error_of_one_replica_is_shown_and_the_others_go_on() -> None:
    with TrainingRun(3, "--fail", "12:1") as run:
        run.wait_for_life(1, 2)
        run.finish()
        told = run.said("stderr")
        assert "RuntimeError: a mistake at step 12" in told
        assert "Traceback" in told
        assert "replica 1 fails at step 12: RuntimeError: a mistake at step 12" in told
        assert run.said("stdout").count("HASH") == 3


POISON = """
    import time
    import torch
    import outlast

    model = torch.nn.Linear(4, 2)
    with outlast.join(model=model) as job:
        for step in job.steps(500):
            for shard in step:
                time.sleep(0.02)
                if (step.number, shard) == (12, 1):
                    raise ValueError("a poisoned sample")
                step.backward(model(torch.randn(2, 4)).square().mean())
"""


def test_a_shard_that_fails_on_two_replicas_ends_the_job(script: Script) -> None:
    with LocalCluster(3, [script(POISON)]) as cluster:
        assert cluster.wait() == 4
        told = cluster.said("stderr")
        ending = r"shard 1 of step 12 failed on replica 1 and on replica [02]: ValueError: a poisoned sample"
        assert re.search(ending, told), told
        assert told.count("Traceback") == 1, told
        assert 'raise ValueError("a poisoned sample")' in told
        assert re.search(r"outlast: failed after .*, at step 11 of 500\n", told), told
        assert cluster.processes() == []
