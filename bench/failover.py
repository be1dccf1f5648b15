"""How long the job is without a coordinator after `kill -9`, and whether anybody notices.

Eight stand-ins run with default settings. The coordinator is killed at random moments, and again within a few
milliseconds of the death of a replica, in the middle of the change of membership that this causes. The clock
runs from just before the kill until a coordinator answers a status request.

- `back_s_*`: that time, over both kinds.
- `views_lost`: views that a replica had adopted, and that the next coordinator did not know of, or processes
  that were sent back to an older view. `views_reused`: numbers that stood for two memberships.
  `views_skipped`: numbers that no replica ever adopted. All from the traces; all must be 0.
- `replicas_noticed`: lives of replicas that ended although nobody killed them; must be 0.

`change_s` in the details is the time from the death of a replica until all survivors went on without it, with
the coordinator dying in between. The launcher gives up on a coordinator that dies twenty times a minute, and
rightly so; hence every ten kills a new job is started.
"""

import argparse
import asyncio
import os
import random
import signal
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from bench.crew import REPLICAS, TINY_REPLICAS, Crew, crew
from bench.result import Result
from bench.stats import median, p90, spread
from outlast.protocol.messages import Status
from outlast.run.observer import watch
from outlast.testing.cluster import LocalCluster

BACK_MEDIAN_S = 0.5
ANSWER_WITHIN_S = 30.0
ASK_EVERY_S = 0.005
KILLS_PER_JOB = 10
CALM_S = 1.0
SAME_MOMENT_S = 0.015
"""A change of membership takes about this long, so the second kill may hit any part of it."""


@dataclass
class Tally:
    """What all jobs of one kind have shown."""

    back_s: list[float] = field(default_factory=list)
    change_s: list[float] = field(default_factory=list)
    lost: int = 0
    reused: int = 0
    skipped: int = 0
    noticed: int = 0

    def count(self, job: Crew, killed: dict[int, int]) -> None:
        traces = job.traces
        traces.read()
        self.lost += traces.backwards()
        self.reused += traces.reused()
        self.skipped += traces.skipped()
        lives = traces.own_lives()
        self.noticed += sum(lives[replica] - 1 - killed.get(replica, 0) for replica in lives)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind (20)")


def run(options: argparse.Namespace) -> Result:
    tallies = {"calm": Tally(), "change": Tally()}
    replicas, kills = (TINY_REPLICAS, 1) if options.tiny else (REPLICAS, options.kills)
    for kind, tally in tallies.items():
        for begun in range(0, kills, KILLS_PER_JOB):
            _one_job(tally, replicas, min(KILLS_PER_JOB, kills - begun), changing=kind == "change")
    every = [back_s for tally in tallies.values() for back_s in tally.back_s]
    figures = {
        "back_s_median": max(median(tally.back_s) for tally in tallies.values()),
        "back_s_p90": max(p90(tally.back_s) for tally in tallies.values()),
        "views_lost": sum(tally.lost for tally in tallies.values()),
        "views_reused": sum(tally.reused for tally in tallies.values()),
        "views_skipped": sum(tally.skipped for tally in tallies.values()),
        "replicas_noticed": sum(tally.noticed for tally in tallies.values()),
    }
    nothing = ("views_lost", "views_reused", "views_skipped", "replicas_noticed")
    return Result(
        name="failover",
        figures=figures,
        bounds={"back_s_median": BACK_MEDIAN_S, **dict.fromkeys(nothing, 0.0)},
        details={
            "kills": len(every),
            "calm": {"back_s": spread(tallies["calm"].back_s)},
            "change": {
                "back_s": spread(tallies["change"].back_s),
                "change_s": spread(tallies["change"].change_s),
            },
        },
    )


def _one_job(tally: Tally, replicas: int, kills: int, *, changing: bool) -> None:
    killed: dict[int, int] = {}
    with crew(replicas=replicas) as job:
        for index in range(kills):
            job.wait_until_warm()
            coordinator = job.cluster.coordinator_pid()
            time.sleep(random.uniform(0, CALM_S))
            job.traces.read()
            victim = job.victim(index % replicas) if changing else None
            since_ns = time.monotonic_ns()
            if victim is not None:
                os.kill(victim.pid, signal.SIGKILL)
                killed[victim.replica] = killed.get(victim.replica, 0) + 1
                time.sleep(random.uniform(0, SAME_MOMENT_S))
            before_ns = time.monotonic_ns()
            os.kill(coordinator, signal.SIGKILL)
            status, answered_ns = asyncio.run(answer(job.cluster))
            tally.back_s.append((answered_ns - before_ns) / 1e9)
            job.traces.read()
            adopted = max(a.view for a in job.traces.adoptions if a.at_ns < before_ns)
            tally.lost += max(0, adopted - status.view.number)
            if victim is not None:
                tally.change_s.append(job.wait_until_removed(victim, since_ns))
        job.wait_until_warm()
        tally.count(job, killed)


async def answer(cluster: LocalCluster) -> tuple[Status, int]:
    """The first answer of the next coordinator, and when it came. Who dials early waits in the queue of the
    listening socket, which the launcher keeps; what is asked before there is an answer is asked again."""
    async with asyncio.timeout(ANSWER_WITHIN_S):
        async with aclosing(watch(cluster.directory, "bench", ASK_EVERY_S)) as messages:
            async for message in messages:
                if isinstance(message, Status):
                    return message, time.monotonic_ns()
    raise AssertionError("watching never ends")
