"""What a thousand machines cost the coordinator, and how soon it has them back when it is killed.

1,000 agents with a replica each have real connections to a real coordinator process, two for each machine,
and say what they would say in a job, as often as they would. Their cores are the real ones; they share a few
processes, and train nothing. The bench lends the coordinator its listening socket, as the launcher does, and
somebody looks on four times a second.

- `coordinator_core_share`: CPU time of the coordinator per second, while nothing happens.
- `beat_lag_s_p99`: from a beat until the agent has its answer, in that time.
- `death_seen_s_p90`: until the last of the survivors has received a view without the dead. Half of the dead
  are replicas whose agent tells of their end, half are whole machines that fall silent; the worse half
  counts.
- `fleet_back_s`: from the coordinator's `kill -9` until every agent and every replica has been answered by
  the next one; the worst of all kills. `fleet_evicted`: lives that views went on without, for that; must be
  0.
- `sim_3000_*`: the coordinator's core alone, with 3,000 machines and no sockets.

`crowd_core_share` in the details is what the machines took of the same cores.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from bench import stores
from bench.fleet_cores import measure_cores
from bench.footprint import cpu_s, rss_mb
from bench.result import Result
from bench.stats import p90, p99, spread
from outlast.protocol.messages import Status
from outlast.protocol.views import JobSpec
from outlast.run.observer import watch
from outlast.wire.address import format_address, listen
from outlast.wire.rundir import RunDirectory, RunFile

CORE_SHARE = 1.0
LAG_P99_S = 0.2
DEATH_P90_S = 1.5
BACK_S = 10.0
ROOT = Path(__file__).parents[1]
WITHIN_S = 120.0
LOOK_EVERY_S = 0.1
ASK_EVERY_S = 0.25
CALM_S = 5.0
"""After a change; also, a new leader that has not heard of somebody for so long would have given it up."""


@dataclass(frozen=True, kw_only=True)
class Size:
    machines: int = 1000
    crowds: int = 2
    steady_s: float = 20.0
    deaths: int = 10
    kills: int = 3
    calm_s: float = CALM_S
    simulated: int = 3000


TINY = Size(machines=8, crowds=1, steady_s=0.5, deaths=1, kills=1, calm_s=0.5, simulated=30)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machines", type=int, default=Size.machines, help="agents with a replica (1000)")
    stores.add_option(parser)


def run(options: argparse.Namespace) -> Result:
    size = TINY if options.tiny else Size(machines=options.machines)
    found = Found()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-")))
        store = stack.enter_context(stores.opened(options.store, folder))
        fleet = Fleet(folder, size, store, stack)
        _gather(fleet, found)
        _stay_calm(fleet, found)
        _lose_some(fleet, found)
        _lose_the_coordinator(fleet, found)
    return _result(size, found, measure_cores(size.simulated), options.store)


@dataclass
class Found:
    gathered_s: float = 0.0
    core_share: float = 0.0
    crowd_share: float = 0.0
    rss_mb: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    lags_in_change_s: list[float] = field(default_factory=list)
    told_s: list[float] = field(default_factory=list)
    silent_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    evicted: int = 0


class Fleet:
    """The coordinator, the crowds, and one who looks on."""

    def __init__(self, folder: Path, size: Size, store: str, stack: ExitStack) -> None:
        self.size = size
        self._stack = stack
        self._sock = stack.enter_context(listen("127.0.0.1:0"))
        self._directory = RunDirectory(folder / "home" / "runs" / "fleet")
        run = RunFile(
            spec=JobSpec(name="fleet", replicas=size.machines, shards=size.machines),
            addresses=(format_address(self._sock.getsockname()),),
            store=store,
            argv=("nothing.py",),
            working_directory=str(folder),
        )
        self._directory.create(run)
        self.coordinator = self.start_coordinator()
        self.crowds = [self._crowd(index) for index in range(size.crowds)]
        self.onlooker = stack.enter_context(Onlooker(self._directory))

    def start_coordinator(self) -> "subprocess.Popen[bytes]":
        fd = self._sock.fileno()
        command = [sys.executable, "-m", "outlast.coordinator", "--run", str(self._directory.path)]
        command += ["--listen-fd", str(fd), "--parent", str(os.getpid())]
        process = self._stack.enter_context(subprocess.Popen(command, pass_fds=[fd]))
        self._stack.callback(process.kill)
        return process

    def restart_coordinator(self) -> float:
        """Since when there has been none."""
        at = time.monotonic()
        self.coordinator.send_signal(signal.SIGKILL)
        self.coordinator.wait()
        self.coordinator = self.start_coordinator()
        return at

    def _crowd(self, index: int) -> "CrowdProcess":
        first, after = (part * self.size.machines // self.size.crowds for part in (index, index + 1))
        return self._stack.enter_context(CrowdProcess(self._directory, first, after - first))

    def crowd_of(self, replica: int) -> "CrowdProcess":
        return next(crowd for crowd in self.crowds if replica in crowd.replicas)

    def states(self) -> list[dict[str, Any]]:
        return [crowd.tell(do="state") for crowd in self.crowds]

    def lags_s(self) -> list[float]:
        """Since they were last asked for."""
        return [lag_s for crowd in self.crowds for lag_s in crowd.tell(do="lags")["lags_s"]]

    def crowd_cpu_s(self) -> float:
        return sum(float(state["cpu_s"]) for state in self.states())

    def complete(self) -> bool:
        """All are members of one view, and know it."""
        states = self.states()
        views = {number for state in states for number in state["views"]}
        members = sum(int(state["members"]) for state in states)
        return members == self.size.machines and len(views) == 1

    def answered(self) -> bool:
        return sum(int(state["answered"]) for state in self.states()) == self.size.machines

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            if self.coordinator.poll() is not None:
                raise RuntimeError(f"the coordinator ended with {self.coordinator.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not after {WITHIN_S:.0f} s: {what}; {self.states()}")
            time.sleep(LOOK_EVERY_S)


class CrowdProcess:
    def __init__(self, directory: RunDirectory, first: int, count: int) -> None:
        self.replicas = range(first, first + count)
        command = [sys.executable, "-m", "bench.crowd", str(directory.path), str(first), str(count)]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> "CrowdProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def tell(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the machines {self.replicas} have ended with {self._process.wait()}")
        said: dict[str, Any] = json.loads(answer)
        return said


class Onlooker:
    """Asks how things stand as often as a launcher does."""

    def __init__(self, directory: RunDirectory) -> None:
        self.status: Status | None = None
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._watching = self._loop.create_task(self._watch())
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Onlooker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._watching.cancel)
        self._thread.join()

    @property
    def lives(self) -> set[tuple[int, int]]:
        assert self.status is not None
        return {(member.replica, member.incarnation) for member in self.status.view.members}

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._watching)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _watch(self) -> None:
        async with aclosing(watch(self._directory, "bench", ASK_EVERY_S)) as messages:
            async for message in messages:
                if isinstance(message, Status):
                    self.status = message


def _gather(fleet: Fleet, found: Found) -> None:
    began = time.monotonic()
    fleet.wait_until("all are members of one view", fleet.complete)
    found.gathered_s = time.monotonic() - began


def _stay_calm(fleet: Fleet, found: Found) -> None:
    _say("nothing happens")
    time.sleep(fleet.size.calm_s)
    fleet.lags_s()
    pid = fleet.coordinator.pid
    began, busy_s, crowd_s = time.monotonic(), cpu_s(pid), fleet.crowd_cpu_s()
    time.sleep(fleet.size.steady_s)
    passed_s = time.monotonic() - began
    found.core_share = (cpu_s(pid) - busy_s) / passed_s
    found.crowd_share = (fleet.crowd_cpu_s() - crowd_s) / passed_s
    found.lags_s = fleet.lags_s()
    found.rss_mb = rss_mb(pid)


def _lose_some(fleet: Fleet, found: Found) -> None:
    victims = random.sample(range(fleet.size.machines), 2 * fleet.size.deaths)
    for index, replica in enumerate(victims):
        told = index % 2 == 0
        _say("a replica dies" if told else "a machine falls silent")
        crowd = fleet.crowd_of(replica)
        death = crowd.tell(do="die" if told else "fall silent", replica=replica)
        seen_s = _seen_s(fleet, replica, death)
        (found.told_s if told else found.silent_s).append(seen_s)
        if not told:
            crowd.tell(do="start", replica=replica)
        fleet.wait_until("all are members again", fleet.complete)
        time.sleep(min(1.0, fleet.size.calm_s))
    found.lags_in_change_s = fleet.lags_s()


def _seen_s(fleet: Fleet, replica: int, death: dict[str, Any]) -> float:
    seen: list[dict[str, Any]] = []

    def gone() -> bool:
        question = {"replica": replica, "incarnation": death["incarnation"], "view": death["view"]}
        seen[:] = [crowd.tell(do="without", **question) for crowd in fleet.crowds]
        return sum(int(one["count"]) for one in seen) >= fleet.size.machines - 1

    fleet.wait_until(f"a view without replica {replica} is everywhere", gone)
    return max(float(one["at"]) for one in seen) - float(death["at"])


def _lose_the_coordinator(fleet: Fleet, found: Found) -> None:
    for _ in range(fleet.size.kills):
        _say("the coordinator is killed")
        time.sleep(random.uniform(0.5, 1.0))
        before = fleet.onlooker.lives
        killed_at = fleet.restart_coordinator()
        fleet.wait_until("all have lost the one that was killed", lambda: not fleet.answered())
        fleet.wait_until("all are back", fleet.answered)
        found.back_s.append(max(float(state["last_answered_at"]) for state in fleet.states()) - killed_at)
        time.sleep(fleet.size.calm_s)
        fleet.wait_until("all are members", fleet.complete)
        found.evicted += len(before - fleet.onlooker.lives)


def _result(size: Size, found: Found, cores: dict[str, float], store: str) -> Result:
    figures = {
        "coordinator_core_share": found.core_share,
        "beat_lag_s_p99": p99(found.lags_s),
        "death_seen_s_p90": max(p90(found.told_s), p90(found.silent_s)),
        "fleet_back_s": max(found.back_s),
        "fleet_evicted": found.evicted,
        **{f"sim_3000_{name}": value for name, value in cores.items()},
    }
    return Result(
        name="fleet",
        figures=figures,
        bounds={
            "coordinator_core_share": CORE_SHARE,
            "beat_lag_s_p99": LAG_P99_S,
            "death_seen_s_p90": DEATH_P90_S,
            "fleet_back_s": BACK_S,
            "fleet_evicted": 0,
        },
        details={
            "machines": size.machines,
            "connections": 2 * size.machines,
            "store": store,
            "cores": os.cpu_count(),
            "crowd_core_share": found.crowd_share,
            "coordinator_rss_mb": found.rss_mb,
            "gathered_s": found.gathered_s,
            "beat_lag_s": spread(found.lags_s),
            "beat_lag_in_change_s": spread(found.lags_in_change_s),
            "beats_per_s": len(found.lags_s) / size.steady_s,
            "death_told_s": spread(found.told_s),
            "death_silent_s": spread(found.silent_s),
            "back_s": spread(found.back_s),
            "simulated": size.simulated,
        },
    )


def _say(what: str) -> None:
    print(f"bench: {what} …", file=sys.stderr, flush=True)
