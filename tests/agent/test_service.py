"""The agent as a whole, without a coordinator: what its replicas are started with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from outlast.agent import service
from outlast.agent.service import NICE_AGAIN, AgentService
from outlast.protocol.events import AnyEvent, Died, Restarted, Started
from outlast.protocol.restarts import Legacy
from outlast.protocol.views import JobSpec
from outlast.wire.rundir import RunDirectory, RunFile

Until = Callable[[Callable[[], bool]], Awaitable[None]]

SCRIPT = """
import json, os, sys
told = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
told |= {"nice": os.nice(0), "warm": "colorsys" in sys.modules}
with open("told", "a") as file:
    print(json.dumps(told), file=file)
sys.exit(1)
"""


def lives(
    tmp_path: Path, wait_until: Until, emit: Callable[[AnyEvent], None] = lambda _: None
) -> list[dict[str, object]]:
    """What the first two lives of a failing replica saw."""
    (tmp_path / "script.py").write_text(SCRIPT)
    directory = RunDirectory(tmp_path / "run")
    directory.create(
        RunFile(
            spec=JobSpec(name="job", replicas=1, shards=1),
            addresses=("127.0.0.1:9",),
            argv=("script.py",),
            working_directory=str(tmp_path),
            preload=("colorsys",),
            threads=3,
        )
    )
    told = tmp_path / "told"

    async def story() -> None:
        agent = AgentService(directory, "agent-0", (0,), grace_s=0.0, emit=emit)
        running = asyncio.ensure_future(agent.run())
        await wait_until(lambda: (told.exists() and told.read_text().count("\n") == 2) or running.done())
        agent.preempt()
        await running

    asyncio.run(story())
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_replica_is_nice_when_it_is_started_again_but_only_if_it_can_take_that_back(
    allowed: bool, tmp_path: Path, wait_until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "can_unnice", lambda: allowed)
    first, second = (life["nice"] for life in lives(tmp_path, wait_until))
    assert isinstance(first, int)
    assert second == min(19, first + (NICE_AGAIN if allowed else 0))


def test_what_an_agent_has_counted_is_there_for_the_next_one(tmp_path: Path, wait_until: Until) -> None:
    lives(tmp_path, wait_until)
    home = RunDirectory(tmp_path / "run").agent("agent-0")
    assert service.read_legacy(home).tallies[0].own_failures >= 1
    (home / service.LEGACY).write_text("half of it {")
    assert service.read_legacy(home) == Legacy()
    (home / service.LEGACY).unlink()
    assert service.read_legacy(home) == Legacy()


def test_a_life_is_told_though_no_coordinator_hears_of_it(tmp_path: Path, wait_until: Until) -> None:
    """And once, though the agent repeats it until somebody agrees."""
    told: list[AnyEvent] = []
    lives(tmp_path, wait_until, told.append)
    assert [type(event) for event in told[:3]] == [Started, Died, Restarted]
    started, died, again = told[:3]
    assert isinstance(started, Started) and isinstance(died, Died) and isinstance(again, Restarted)
    assert (died.process, died.cause) == (started.process, "exited with status 1")
    assert again.cause == "exited with status 1"
    assert again.process > started.process


def test_the_number_of_threads_is_the_runs_and_costs_no_warm_start(
    tmp_path: Path, wait_until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forkserver starts with the same number, whatever the agent's own environment says."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    for life in lives(tmp_path, wait_until):
        assert life["warm"]
        assert {life[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}
