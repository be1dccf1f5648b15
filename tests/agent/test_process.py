"""Exits are seen at once, and nothing that a replica started outlives it or its agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaks import open_files
from outlast import kinship
from outlast.agent import forkserver_control, process
from outlast.agent.output import Output
from outlast.agent.process import Nursery
from outlast.errors import JobFailed, UsageError
from outlast.kinship import ExitStatus
from patience import PATIENCE_S

Launch = Any
Until = Any
Offspring = Any

SLEEPER = "print('up')\nimport time\ntime.sleep(600)\n"

# Starts one grandchild in the replica's own group, one in a session of its own, and one that is an orphan
# from the start; prints their pids.
FAMILY = """
    import json, os, subprocess, sys, time
    nap = [sys.executable, "-c", "import time; time.sleep(600)"]
    family = [os.getpid(), subprocess.Popen(nap).pid, subprocess.Popen(nap, start_new_session=True).pid]
    middle = subprocess.run(
        [sys.executable, "-c", f"import subprocess; print(subprocess.Popen({nap!r}, start_new_session=True, stdout=2).pid)"],
        stdout=subprocess.PIPE,
    )
    family.append(int(middle.stdout))
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    family.append(forked)
    print(json.dumps(family))
    time.sleep(600)
"""  # noqa: E501

AGENT = """
import asyncio, os, sys
from outlast.agent.output import Output
from outlast.agent.process import Nursery

async def agent():
    async with Nursery(preload=()) as nursery:
        output = Output(0, sink=lambda replica, stream, line: print(line, flush=True))
        await nursery.start(replica=0, process="life", argv=["family.py"], environment=dict(os.environ),
                            cwd=sys.argv[1], output=output)
        print(nursery.forkserver_pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(agent())
"""


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen in spite of this was seen through the kernel's own notice."""
    monkeypatch.setattr(process, "SWEEP_EVERY_S", 3600.0)


@pytest.mark.usefixtures("no_polling")
def test_an_exit_is_seen_with_its_code_or_its_signal(launch: Launch) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            clean = await launch(nursery, "print('x')")
            assert (await clean.ended()).describe() == "exited with status 0"
            failed = await launch(nursery, "raise SystemExit(3)")
            assert (await failed.ended()).describe() == "exited with status 3"
            killed = await launch(nursery, SLEEPER)
            await killed.line()
            os.kill(killed.process.pid, signal.SIGKILL)
            assert (await killed.ended()).describe() == "was killed by SIGKILL"
            crashed = await launch(nursery, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
            assert (await crashed.ended()).describe() == "was killed by SIGSEGV (a crash in native code)"
            assert nursery.running == []

    asyncio.run(story())


def test_a_death_that_we_asked_for_is_no_riddle() -> None:
    assert ExitStatus(None, signal.SIGKILL).describe(asked=True) == "was killed by SIGKILL"
    assert ExitStatus(None, 63).describe() == "was killed by signal 63"


def test_terminate_asks_first_and_kills_after_the_grace(launch: Launch) -> None:
    polite = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + SLEEPER
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER

    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            first, second = await launch(nursery, polite), await launch(nursery, stubborn, name="other.py")
            await first.line()
            await second.line()
            assert await first.process.terminate(grace_s=60.0) == ExitStatus(5, None)
            assert await second.process.terminate(grace_s=0.05) == ExitStatus(None, signal.SIGKILL)
            assert second.process.asked
            # Once more does no harm.
            assert await second.process.terminate(grace_s=0.0) == ExitStatus(None, signal.SIGKILL)

    asyncio.run(story())


def test_a_stopped_replica_can_be_killed(launch: Launch, wait_until: Until) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            launched = await launch(nursery, SLEEPER)
            await launched.line()
            launched.process.signal(signal.SIGSTOP)
            await wait_until(lambda: kinship.stopped(launched.process.pid))
            launched.process.kill()
            assert (await launched.ended()).signal == signal.SIGKILL

    asyncio.run(story())


def test_what_a_replica_started_dies_with_it(launch: Launch, wait_until: Until, offspring: Offspring) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            launched, other = await launch(nursery, FAMILY), await launch(nursery, SLEEPER, name="other.py")
            family = json.loads(await launched.line())
            await other.line()
            await wait_until(lambda: len(offspring()) == 4)
            nursery._sweep()
            # The orphan is adopted, but its replica lives, and so may it.
            assert all(map(kinship.alive, family))
            os.kill(launched.process.pid, signal.SIGKILL)
            await launched.ended()
            await wait_until(lambda: not any(map(kinship.alive, family)))
            await wait_until(lambda: len(offspring()) == 2)
            assert kinship.alive(other.process.pid)

    asyncio.run(story())


def test_who_is_being_started_is_not_taken_for_an_orphan(launch: Launch) -> None:
    async def sweep(nursery: Nursery) -> None:
        while True:
            nursery._sweep()
            await asyncio.sleep(0)

    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            sweeper = asyncio.ensure_future(sweep(nursery))
            for environment in (dict(os.environ), {**os.environ, "OMP_NUM_THREADS": "3"}):
                launched = await launch(nursery, "print('up')", environment=environment)
                assert await launched.ended() == ExitStatus(0, None)
            sweeper.cancel()

    asyncio.run(story())


def test_children_that_the_agent_started_itself_are_left_alone(launch: Launch) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            await (await launch(nursery, "print('x')")).ended()
            nursery._sweep()

    nap = [sys.executable, "-c", "import time; time.sleep(600)"]
    own, leader = subprocess.Popen(nap), subprocess.Popen(nap, start_new_session=True)
    dead = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"], start_new_session=True)
    try:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        asyncio.run(story())
        assert own.poll() is None
        assert leader.poll() is None
        assert dead.wait() == 9
    finally:
        for child in (own, leader, dead):
            child.kill()
            child.wait()


@contextlib.contextmanager
def an_agent(tmp_path: Path, source: str, family: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that is an agent with one replica; and the pids of its forkserver, replica and family."""
    (tmp_path / "family.py").write_text(textwrap.dedent(family))
    command = [sys.executable, "-c", source, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            said = [json.loads(agent.stdout.readline()) for _ in range(2)]
            yield agent, [pid for item in said for pid in (item if isinstance(item, list) else [item])]
        finally:
            agent.kill()


def test_an_agent_killed_with_9_leaves_nobody(tmp_path: Path, wait_until: Until) -> None:
    with an_agent(tmp_path, AGENT, FAMILY) as (agent, relatives):
        assert len(relatives) == 6
        assert all(map(kinship.alive, relatives))
        agent.kill()
        agent.wait()
        asyncio.run(wait_until(lambda: not any(map(kinship.alive, relatives))))


def test_a_forkserver_killed_with_9_is_replaced_and_replicas_go_on(launch: Launch, wait_until: Until) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            first = await launch(nursery, SLEEPER)
            await first.line()
            old = nursery.forkserver_pid
            assert old is not None
            os.kill(old, signal.SIGKILL)
            # It is replaced before anyone asks, so that the next replica finds it warm.
            await wait_until(lambda: nursery.forkserver_pid != old)
            second = await launch(nursery, SLEEPER)
            # And the same when it is seen only by the next start, and right after the last one.
            assert nursery.forkserver_pid is not None
            os.kill(nursery.forkserver_pid, signal.SIGKILL)
            third = await launch(nursery, SLEEPER)
            await second.line()
            assert kinship.alive(first.process.pid)
            await third.line()
            assert len(nursery.running) == 3

    asyncio.run(story())


def test_a_forkserver_killed_in_the_middle_of_a_start_loses_nothing(
    launch: Launch, wait_until: Until, offspring: Offspring
) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            for turn in range(12):
                await nursery.warm()
                assert nursery.forkserver_pid is not None
                killer = asyncio.get_running_loop().call_later(
                    turn / 1000, os.kill, nursery.forkserver_pid, signal.SIGKILL
                )
                launched = await launch(nursery, SLEEPER)
                killer.cancel()
                await launched.line()
            # Those that were on their way are gone, and reaped: twelve replicas and a forkserver are left.
            await nursery.warm()
            await wait_until(lambda: nursery._sweep() == 0 and len(offspring()) == 13)
            assert len(nursery.running) == 12

    asyncio.run(story())


def test_the_new_forkserver_guards_the_old_ones_replicas(tmp_path: Path, wait_until: Until) -> None:
    """The same as for the agent's death, but the forkserver that buries them did not start them."""
    patched = AGENT.replace(
        "        print(nursery.forkserver_pid",
        "        os.kill(nursery.forkserver_pid, 9)\n"
        "        old = nursery._control\n"
        "        while old is nursery._control: await asyncio.sleep(0.001)\n"
        "        await nursery.warm()\n"
        "        print(nursery.forkserver_pid",
    )
    # Without a mark in its environment, the grandchild is found through the guarded group alone.
    family = """
        import json, os, subprocess, sys, time
        nap = [sys.executable, "-c", "import time; time.sleep(600)"]
        print(json.dumps([os.getpid(), subprocess.Popen(nap, env={}).pid]))
        time.sleep(600)
    """
    with an_agent(tmp_path, patched, family) as (agent, relatives):
        assert len(relatives) == 3
        assert all(map(kinship.alive, relatives))
        agent.kill()
        agent.wait()
        asyncio.run(wait_until(lambda: not any(map(kinship.alive, relatives))))


def test_a_forkserver_that_always_dies_is_a_clear_error(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    popen = subprocess.Popen

    def broken(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(command)
        return popen([sys.executable, "-c", "raise SystemExit(1)"], **options)

    monkeypatch.setattr(forkserver_control.subprocess, "Popen", broken)

    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            with pytest.raises(JobFailed, match=r"failed 5 times in a row \(last: .* status 1\)"):
                await launch(nursery, SLEEPER)
            assert len(started) == 5

    asyncio.run(story())


def test_nothing_to_run_is_an_error_of_usage(launch: Launch) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            with pytest.raises(UsageError, match="give a script"):
                await launch(nursery, "", argv=["-m"])

    asyncio.run(story())


def test_a_start_that_is_cancelled_leaves_no_process(
    tmp_path: Path, wait_until: Until, offspring: Offspring
) -> None:
    (tmp_path / "script.py").write_text(SLEEPER)

    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            await nursery.warm()
            for turns in range(8):
                start = nursery.start(
                    replica=0,
                    process=f"life-{turns}",
                    argv=["script.py"],
                    environment=dict(os.environ),
                    cwd=tmp_path,
                    output=Output(0),
                )
                task = asyncio.ensure_future(start)
                await _spin_until_answered(nursery, turns)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    (await task).kill()
            await wait_until(lambda: offspring() == [nursery.forkserver_pid])

    asyncio.run(story())


async def _spin_until_answered(nursery: Nursery, turns: int) -> None:
    """Let the start proceed to different points: just asked, on its way, answered but not yet delivered."""
    if turns < 4:
        for _ in range(turns):
            await asyncio.sleep(0)
        return
    assert nursery._control is not None
    waiting = nursery._control._waiting
    async with asyncio.timeout(PATIENCE_S):
        while not waiting or not next(iter(waiting.values())).done():
            await asyncio.sleep(0)
            if not nursery._starting:
                return


def test_thirty_quick_lives_leak_nothing(launch: Launch, wait_until: Until, offspring: Offspring) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            await nursery.warm()
            files = open_files()
            for turn in range(30):
                launched = await launch(nursery, SLEEPER)
                if turn % 2:
                    await launched.line()
                launched.process.kill()
                assert (await launched.ended()).signal == signal.SIGKILL
            assert len(open_files()) <= len(files)
            await wait_until(lambda: offspring() == [nursery.forkserver_pid])
            assert nursery._kin == set()

    asyncio.run(story())
