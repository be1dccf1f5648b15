"""Scripts that do something on one replica only, or keep something to themselves: they are told so by name.

Nobody's machine is at fault, so nobody is barred, and the job does not end as if all were well.
"""

import contextlib
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from training_run import TrainingRun

from outlast.kinship import alive
from outlast.testing.cluster import LocalCluster

Script = Callable[[str], str]

ONE_SIDED = """
    import time
    import torch
    import outlast

    outlast.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2)
    with outlast.join(model=model, optimizer=opt, state={"plateau": plateau}, verify=5) as job:
        for step in job.steps(2000):
            for shard in step:
                time.sleep(0.01)
                step.backward(model(torch.randn(6, 4)).square().mean())
            opt.step()
            opt.zero_grad()
            if step.number >= %d and %s:
                %s
    print("LOOP OVER")
"""

ENDING = r"differ again in the same place.*the script is the first suspect.*What differs is {what}"
CHIEFS = "Is something done under `if job.chief` that belongs on every replica?"


def ends(cluster: LocalCluster, what: str) -> str:
    assert cluster.wait() == 4
    told = cluster.said()
    (ending,) = [line for line in told.splitlines() if re.search(ENDING.format(what=re.escape(what)), line)]
    assert "LOOP OVER" not in told and "Traceback" not in told, told
    assert "is not let in again" not in told, told
    # Once as what a machine has done, by one replica; buffers perhaps twice.
    assert told.count("silent corruption") <= 2, told
    assert cluster.processes() == []
    return ending


@pytest.mark.parametrize(
    ("replicas", "mistake", "what"),
    [
        (2, "plateau.step(step.loss)", "state['plateau']['best']"),
        (3, "opt.param_groups[0]['lr'] = 0.05", "'lr' of parameter group 0 of the optimizer"),
    ],
)
def test_what_only_the_chief_does_ends_the_job(
    script: Script, replicas: int, mistake: str, what: str
) -> None:
    with LocalCluster(replicas, [script(ONE_SIDED % (13, "job.chief", mistake))]) as cluster:
        assert CHIEFS in ends(cluster, what)


def test_so_it_does_after_a_death(script: Script) -> None:
    mistake = "model[0].weight.data.add_(1)"
    with LocalCluster(2, [script(ONE_SIDED % (250, "job.chief", mistake))]) as cluster:
        cluster.wait_for_steps(0, 1)
        cluster.kill(0)
        cluster.wait_for_life(0, 2)
        assert CHIEFS in ends(cluster, "the parameter 0.weight")


MISTAKES = [
    ("job.chief", "plateau.step(step.loss)", "state['plateau']"),
    ("job.chief", "opt.param_groups[0]['lr'] = time.time() % 1", "'lr' of parameter group 0"),
    ("job.chief", "model[0].weight.data.add_(1)", "the parameter 0.weight"),
    ("job.chief", "model[1].running_mean.add_(1)", "the buffer 1.running_mean"),
    ("job.chief", "model[1].running_mean.add_(time.time() % 1)", "the buffer 1.running_mean"),
    ("job.replica == 1", "opt.param_groups[0]['lr'] = 0.05", "'lr' of parameter group 0"),
    ("job.replica == 1", "model[0].weight.data.add_(1)", "the parameter 0.weight"),
]


@pytest.mark.soak
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(("who", "mistake", "what"), MISTAKES)
def test_every_one_sided_script_is_told_so(
    script: Script, replicas: int, who: str, mistake: str, what: str
) -> None:
    with LocalCluster(replicas, [script(ONE_SIDED % (23, who, mistake))]) as cluster:
        ends(cluster, what)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_every_one_sided_script_is_told_so_under_kills(script: Script, tmp_path: Path, seed: int) -> None:
    """Kills before the mistake and while it is being found out; half of the runs have checkpoints."""
    chance = random.Random(seed)
    who, mistake, what = MISTAKES[seed % len(MISTAKES)]
    source = ONE_SIDED % (60, who, mistake)
    if chance.random() < 0.5:
        source = source.replace("verify=5", f"verify=5, checkpoints={str(tmp_path / 'vault')!r}, every=10")
    with LocalCluster(chance.choice([2, 3]), [script(source)]) as cluster:
        for at in sorted(chance.sample(range(5, 75), 2)):
            # Whoever has gone back, or has ended, does not come to this step any more.
            cluster.wait_until(
                f"step {at}",
                lambda: max(cluster.steps().values(), default=0) >= at or not alive(cluster.pid),  # noqa: B023
            )
            status = cluster.status()
            if pids := sorted(pulse.pid for pulse in status.pulses if pulse.pid) if status else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)
        ends(cluster, what)


@pytest.mark.soak
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("what", ["moment", "parameter"])
def test_a_machine_that_flips_two_bits_is_not_taken_for_the_script(replicas: int, what: str) -> None:
    """In the same place, too: what was verified in between was right."""
    flips = ("--flip", "1@23:parameter", f"1@90:{what}")
    with TrainingRun(replicas, "--verify", "10", *flips, steps=140, pace_s=0.03) as run:
        run.wait_for_step(30)
        run.wait_for_members(set(range(replicas)))
        run.finish()
        assert run.said("stdout").count("FLIPPED") >= 1
        assert "the script is the first suspect" not in run.said()


FORGOTTEN = """
    import torch
    import outlast

    model = torch.nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 10)
    with outlast.join(model=model, optimizer=opt) as job:
        print("JOINED")
"""


def test_a_schedule_that_was_not_handed_over_is_refused(script: Script) -> None:
    with LocalCluster(2, [script(FORGOTTEN)]) as cluster:
        assert cluster.wait() == 4
        told = cluster.said()
        assert 'outlast.join(…, state={"sched": sched})' in told and "StepLR" in told, told
        assert "JOINED" not in told
        assert cluster.processes() == []
