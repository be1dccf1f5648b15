from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from outlast import kinship

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
    async with asyncio.timeout(30):
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
