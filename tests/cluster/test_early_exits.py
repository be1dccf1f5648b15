"""A process that ends with status 0 has not thereby done its work: the end is what the replica has said."""

import re
from collections.abc import Callable

import pytest
from training_run import TrainingRun

from outlast.testing.cluster import LocalCluster

pytestmark = pytest.mark.timeout(300)

Script = Callable[[str], str]

EXITS = """
    import os, sys
    import torch
    import outlast

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with outlast.join(model=model, optimizer=optimizer) as job:
        for step in job.steps(60):
            for shard in step:
                if step.number == 20:
                    {in_a_shard}
                step.backward(model(torch.randn(2, 4)).square().mean())
            optimizer.step()
            if step.number == 20:
                {between}
    {after}
    print("THE RESULT", flush=True)
"""


def exits(*, in_a_shard: str = "pass", between: str = "pass", after: str = "pass") -> str:
    return EXITS.format(in_a_shard=in_a_shard, between=between, after=after)


ALIKE = "step 20 failed on replica [01] and on replica [01]: "
ALWAYS = "exited with status 0 in the middle of the job .* 5 times in a row"


@pytest.mark.parametrize(
    ("replicas", "source", "ending"),
    [
        pytest.param(2, exits(in_a_shard="os._exit(0)"), ALIKE + "exited with status 0", id="in a shard"),
        pytest.param(2, exits(between="os._exit(0)"), ALWAYS, id="between two steps", marks=pytest.mark.soak),
        pytest.param(1, exits(in_a_shard="os._exit(0)"), ALWAYS, id="alone", marks=pytest.mark.soak),
        pytest.param(
            2,
            exits(in_a_shard="sys.exit(0)"),
            ALIKE + "LoopError: .*ended itself in the middle",
            id="by an exception",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            1,
            exits(between="sys.exit(0)"),
            "exited with status 1, 5 times in a row",
            id="by an exception, alone",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_exits_with_status_0_in_the_middle_are_no_end(
    script: Script, replicas: int, source: str, ending: str
) -> None:
    with LocalCluster(replicas, [script(source)]) as cluster:
        assert cluster.wait(100) == 4
        told = cluster.said()
        assert re.search(f"outlast: .*{ending}", told), told
        assert "finished" not in told
        assert "THE RESULT" not in told
        assert cluster.processes() == []


@pytest.mark.parametrize("how", ["os._exit", pytest.param("sys.exit", marks=pytest.mark.soak)])
def test_one_that_exits_with_status_0_in_the_middle_is_started_again(how: str) -> None:
    with TrainingRun(3, "--exit", f"12:1:{how}") as run:
        run.wait_for_life(1, 2)
        run.finish()
        assert run.said("stdout").count("HASH") == 3
        if how == "os._exit":
            assert "replica 1 exited with status 0 in the middle of the job" in run.said("stderr")


def test_what_a_script_does_after_its_with_block_is_not_the_middle(script: Script) -> None:
    source = exits(after="with job.aside(): os._exit(0)")
    with LocalCluster(2, [script(source)]) as cluster:
        assert cluster.wait(100) == 0
        told = cluster.said()
        assert "outlast: finished" in told
        assert "exited with status" not in told
