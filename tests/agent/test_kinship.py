from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from outlast import kinship
from outlast.kinship import ExitStatus
from patience import PATIENCE_S

Until = Any


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["/bin/sleep", "600"], env={kinship.KIN: "a-nursery/a-life"})
    yield child
    child.kill()
    child.wait()


def test_the_facts_about_a_process(sleeper: subprocess.Popen[bytes], wait_until: Until) -> None:
    assert sleeper.pid in kinship.children_of(os.getpid())
    asyncio.run(wait_until(lambda: kinship.kin_mark(sleeper.pid) == "a-nursery/a-life"))
    assert kinship.all_marked("a-nursery") == [sleeper.pid]
    assert kinship.all_marked("a-nurse") == []
    found = kinship.stat(sleeper.pid)
    assert found is not None
    assert (found.name, found.parent, found.session) == ("sleep", os.getpid(), os.getsid(0))
    assert kinship.alive(sleeper.pid)
    assert not kinship.stopped(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    asyncio.run(wait_until(lambda: kinship.stopped(sleeper.pid)))
    assert kinship.alive(sleeper.pid)
    delay_s = kinship.run_delay_s(sleeper.pid)
    assert delay_s is not None
    assert 0 <= delay_s < 60
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not kinship.alive(sleeper.pid)
    assert kinship.kin_mark(sleeper.pid) is None


def test_a_process_that_is_gone_has_no_facts(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert kinship.stat(sleeper.pid) is None
    assert not kinship.alive(sleeper.pid)
    assert not kinship.stopped(sleeper.pid)
    assert kinship.run_delay_s(sleeper.pid) is None
    assert kinship.children_of(sleeper.pid) == []


def test_a_name_with_brackets_and_spaces_is_read_right() -> None:
    code = "import os; from outlast.kinship import *; set_name(') R (1 2'); print(stat(os.getpid()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"name=') R (1 2', state='R', parent={os.getpid()}" in done.stdout


def test_waiting_for_a_cpu_is_counted() -> None:
    """Two that share one CPU: whatever one runs, the other waits."""
    spin = "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        asyncio.run(_until_delayed(rivals[0].pid))
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()


async def _until_delayed(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (kinship.run_delay_s(pid) or 0.0) < 0.05:  # noqa: ASYNC110 (the kernel does not tell)
            await asyncio.sleep(0.01)


def test_one_whose_parent_has_died_already_ends_at_once() -> None:
    code = "from outlast import kinship; kinship.die_with_parent(1 << 22)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == kinship.ORPHANED


def test_the_agents_modules_are_light() -> None:
    code = (
        "import sys, re, pathlib\n"
        "import outlast.agent.service\n"
        "resident = re.search(r'VmRSS:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text())\n"
        "print('torch' in sys.modules, int(resident[1]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    torch, resident_mb = done.stdout.split()
    assert torch == "False"
    assert int(resident_mb) < 60


@pytest.mark.parametrize(
    ("status", "own_fault"),
    [
        (ExitStatus(0, None), False),
        (ExitStatus(1, None), True),
        (ExitStatus(143, None), False),
        (ExitStatus(None, signal.SIGSEGV), True),
        (ExitStatus(None, signal.SIGABRT), True),
        (ExitStatus(None, signal.SIGKILL), False),
        (ExitStatus(None, signal.SIGTERM), False),
        (ExitStatus(None, signal.SIGINT), False),
    ],
)
def test_whether_a_process_died_by_its_own_fault(status: ExitStatus, own_fault: bool) -> None:
    assert status.own_fault is own_fault


NICE = """
    import os, threading
    from outlast import kinship
    over = threading.Event()
    threading.Thread(target=over.wait).start()
    nices = lambda: {os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")}
    before = nices()
    os.nice(10)
    threading.Thread(target=over.wait).start()
    assert len(nices()) == 2, nices()
    print(kinship.can_unnice(), kinship.unnice(), nices() == before)
    over.set()
"""


def test_all_threads_stop_being_nice_if_that_is_allowed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NICE)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(kinship.can_unnice())] * 3


def test_one_who_may_not_take_it_back_is_told_so_and_stays_nice() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else; for others, the test above says the same")
    head, line, rest = textwrap.dedent(NICE).partition("from outlast import kinship\n")
    nobody = "import resource; resource.setrlimit(resource.RLIMIT_NICE, (0, 0)); os.setuid(65534)\n"
    source = head + line + nobody + rest
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3


def test_niceness_that_the_whole_job_was_started_with_is_left_alone() -> None:
    """`nice outlast run` means it: a replica goes back to what its agent has, not to nothing."""
    start = f"subprocess.run([sys.executable, '-c', {textwrap.dedent(NICE)!r}], check=True)"
    source = f"import os, subprocess, sys\nos.nice(3)\n{start}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(kinship.can_unnice())] * 3
