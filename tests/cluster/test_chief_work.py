"""What the chief does after the last step is part of the job: it is done, or the job says that it is not.

The script below saves the model on the chief, inside the `with` block or after it, and meets with a fault
there the first time. Whoever does it in the end, the file holds the weights of a run without faults, and
nothing is trained twice.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.testing.cluster import LocalCluster

pytestmark = pytest.mark.timeout(300)

Script = Callable[[str], str]
STEPS = 25

SAVES = """
    import os, signal, sys, time
    from pathlib import Path
    import torch
    import outlast

    _, out, place, fault, checkpoints = sys.argv
    out = Path(out)

    def meet(job):
        me = job.chief if fault != "kill another" else not job.chief
        if not me or fault == "none" or ((out / "met").exists() and fault != "wait each time"):
            return
        (out / "met").write_text(str(job.replica))
        match fault:
            case "kill" | "kill another":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise OSError("no space left for the model")
            case "exit":
                os._exit(0)
            case "wait" | "wait each time":
                while not (out / "enough").exists():
                    time.sleep(0.01)

    def save(job):
        meet(job)
        if job.chief:
            if fault == "kill another":
                while not (out / "again").exists():
                    time.sleep(0.01)
            model.eval()
            torch.save(model.state_dict(), out / "new.pt")
            os.replace(out / "new.pt", out / "model.pt")

    outlast.seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with outlast.join(
        model=model, optimizer=optimizer, shards=4, checkpoints=None if checkpoints == "-" else checkpoints
    ) as job:
        done = 0
        for step in job.steps({steps}):
            for shard in step:
                step.backward(model(torch.randn(8, 4)).square().mean())
            optimizer.step()
            done += 1
            if place == "behind a break" and step.number == {steps} - 5:
                break
        (out / f"trained-{{os.getpid()}}").write_text(str(done))
        if not done:
            (out / "again").touch()
        if place != "after":
            save(job)
    if place == "after":
        save(job)
"""


class Run(LocalCluster):
    def __init__(
        self,
        path: str,
        out: Path,
        place: str,
        fault: str,
        *,
        replicas: int = 3,
        checkpoints: str = "-",
        options: tuple[str, ...] = (),
    ) -> None:
        out.mkdir(exist_ok=True)
        super().__init__(replicas, [path, str(out), place, fault, checkpoints], options=options)
        self.out = out
        self.replicas = replicas

    def pid_at_the_end(self, replica: int) -> int:
        """The process of this replica, if it has the final state; else 0."""
        status = self.status()
        pulses = status.pulses if status is not None else ()
        return next((p.pid for p in pulses if p.replica == replica and p.step == STEPS), 0)

    def pids_at_the_end(self) -> list[int]:
        """The processes of all replicas, as soon as all of them have the final state."""
        found: list[int] = []

        def all_are_there() -> bool:
            found[:] = map(self.pid_at_the_end, range(self.replicas))
            return all(found)

        self.wait_until("all have the final state", all_are_there)
        return found

    def trained(self) -> list[int]:
        """How many steps each process has done, that came to the end of its loop."""
        return sorted(int(file.read_text()) for file in self.out.glob("trained-*"))


@pytest.fixture
def path(script: Script) -> str:
    return script(SAVES.format(steps=STEPS))


def quiet(path: str, out: Path, place: str) -> bytes:
    """The file of one process that is left alone."""
    out.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, path, str(out), place, "none", "-"], env=environment, check=True)
    return (out / "model.pt").read_bytes()


INSIDE, AFTER, BREAK = "inside", "after", "behind a break"


@pytest.mark.parametrize(
    ("place", "fault", "checkpoints"),
    [
        (INSIDE, "kill", False),
        (AFTER, "kill", True),
        pytest.param(INSIDE, "kill", True, marks=pytest.mark.soak),
        pytest.param(AFTER, "kill", False, marks=pytest.mark.soak),
        (BREAK, "kill", False),
        (INSIDE, "kill another", False),
        pytest.param(AFTER, "kill another", False, marks=pytest.mark.soak),
    ],
)
def test_a_kill_after_the_last_step_costs_no_work(
    path: str, tmp_path: Path, place: str, fault: str, checkpoints: bool
) -> None:
    where = str(tmp_path / "checkpoints") if checkpoints else "-"
    with Run(path, tmp_path / "out", place, fault, checkpoints=where) as run:
        assert run.wait() == 0, run.said()
        assert (run.out / "met").exists()
        assert (run.out / "model.pt").read_bytes() == quiet(path, tmp_path / "quiet", place)
        total = STEPS - 5 if place == BREAK else STEPS
        assert max(run.trained()) == total
        assert run.trained().count(0) == 1, "the one that was killed is given the final state"
        assert len(run.trained()) == 4
        assert run.processes() == []


@pytest.mark.parametrize(
    ("place", "fault", "replicas", "words"),
    [
        (INSIDE, "raise", 2, "OSError: no space left for the model"),
        (AFTER, "raise", 1, "OSError: no space left for the model"),
        pytest.param(INSIDE, "raise", 1, "OSError: no space left for the model", marks=pytest.mark.soak),
        pytest.param(INSIDE, "exit", 2, "exited with status 0", marks=pytest.mark.soak),
    ],
)
def test_a_failure_after_the_last_step_ends_the_job_with_its_words(
    path: str, tmp_path: Path, place: str, fault: str, replicas: int, words: str
) -> None:
    with Run(path, tmp_path / "out", place, fault, replicas=replicas) as run:
        assert run.wait() == 4
        assert words in run.said()
        assert f"after the last step ({STEPS})" in run.said()
        assert "finished" not in run.said()
        assert not (run.out / "model.pt").exists()
        assert run.trained() == [STEPS] * replicas, "nothing is trained again"
        assert run.processes() == []


def test_where_the_chief_cannot_be_started_again_another_agent_does(path: str, tmp_path: Path) -> None:
    """The machine of the chief goes, for good, while the chief works."""
    options = ("--agents", "2", "--grace", "0.2")
    with Run(path, tmp_path / "out", INSIDE, "wait", replicas=2, options=options) as run:
        run.wait_until("the chief works", (run.out / "met").exists)
        run.pids_at_the_end()
        os.kill(run.agent_pid(0), signal.SIGTERM)
        assert run.wait() == 0, run.said()
        assert "replica 0 is started by agent-1, since its own agent has left" in run.said()
        assert (run.out / "model.pt").read_bytes() == quiet(path, tmp_path / "quiet", INSIDE)
        assert run.trained() == [0, STEPS, STEPS]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_kills_of_anybody_while_the_chief_works(path: str, tmp_path: Path, seed: int) -> None:
    """One process after the other, at random moments, as long as one of them has the final state."""
    chance = random.Random(seed)
    place = chance.choice([INSIDE, AFTER])
    where = str(tmp_path / "checkpoints") if chance.random() < 0.5 else "-"
    with Run(path, tmp_path / "out", place, "wait each time", checkpoints=where) as run:
        run.wait_until("the chief works", (run.out / "met").exists)
        for _ in range(chance.randint(1, 4)):
            victim = chance.randrange(3)
            pid = run.pids_at_the_end()[victim]
            os.kill(pid, signal.SIGKILL)
            run.wait_until(
                "it is back",
                lambda: run.pid_at_the_end(victim) not in (0, pid),  # noqa: B023
            )
        (run.out / "enough").touch()
        assert run.wait() == 0, run.said()
        assert (run.out / "model.pt").read_bytes() == quiet(path, tmp_path / "quiet", place)
        assert run.trained().count(STEPS) == 3, "nothing is trained again"


def test_a_script_that_never_joins_has_done_nothing(script: Script) -> None:
    with LocalCluster(2, [script("print('hello')")]) as cluster:
        assert cluster.wait() == 4
        assert "no replica called outlast.join" in cluster.said()
