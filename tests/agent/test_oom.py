"""Only the kernel says that memory ran out."""

import signal
from pathlib import Path

import pytest

from outlast.agent.oom import OutOfMemory
from outlast.agent.service import exit_of
from outlast.kinship import ExitStatus

KILLED = ExitStatus(None, signal.SIGKILL)


class Machine:
    def __init__(self, root: Path, groups: str, counter: str) -> None:
        self.own = root / "cgroup"
        self.own.write_text(groups)
        self.counter = root / counter
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        self.count(3)
        self.watch = OutOfMemory(cgroups=root / "groups", own=self.own, vmstat=root / "vmstat")

    def count(self, kills: int) -> None:
        self.counter.write_text(f"low 0\noom 9\noom_kill {kills}\n")


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        ("0::/jobs/mine\n", "groups/jobs/mine/memory.events"),
        ("4:cpu,memory:/jobs/mine\n0::/\n", "groups/memory/jobs/mine/memory.oom_control"),
        ("4:memory:/of/the/host\n", "groups/memory/memory.oom_control"),
        ("", "vmstat"),
    ],
)
def test_each_kill_of_the_kernel_explains_one_death(tmp_path: Path, groups: str, counter: str) -> None:
    machine = Machine(tmp_path, groups, counter)
    assert not machine.watch.explains_one()
    machine.count(4)
    assert machine.watch.explains_one()
    assert not machine.watch.explains_one()


def test_where_nothing_is_counted_nothing_is_explained(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert not OutOfMemory(cgroups=nowhere, own=nowhere, vmstat=nowhere).explains_one()


def test_a_kill_is_called_what_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n", "groups/memory.events")
    assert exit_of(KILLED, memory=machine.watch).how == "was killed by SIGKILL"
    machine.count(5)
    assert exit_of(ExitStatus(1, None), memory=machine.watch).how == "exited with status 1"
    assert exit_of(KILLED, asked=True, memory=machine.watch).how == "was killed by SIGKILL"
    assert (
        exit_of(KILLED, memory=machine.watch).how == "was killed by SIGKILL (out of memory, says the kernel)"
    )
