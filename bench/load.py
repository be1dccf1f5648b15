"""Whether a busy machine makes anybody look dead.

Eight stand-ins run with default settings, and eight busy loops beside them for a minute, which on two cores
leaves everybody a fraction of what it wants. Nobody dies in that time, so every member that is taken out of a
view was taken out by mistake: `false_evictions` must be 0. Two configurations, of which the worse counts:
stand-ins that sleep through their steps and are late, and stand-ins that burn CPU themselves.

`steps_per_s` before and under load, and how late an idle thread woke up (`sched_ms_p99`), show that the load
was real.
"""

import argparse
import os
import time
from dataclasses import dataclass
from typing import Any

from bench.crew import REPLICAS, TINY_REPLICAS, Crew, crew
from bench.result import Result
from bench.spinners import spinners
from bench.stats import p99, spread
from bench.wakeups import Wakeups

CONFIGURATIONS = {"sleeping": (), "busy": ("--busy",)}


@dataclass(frozen=True, kw_only=True)
class Size:
    under_load_s: float
    before_s: float = 5.0
    replicas: int = REPLICAS
    spinners: int = 8


TINY = Size(under_load_s=0.3, before_s=0.3, replicas=TINY_REPLICAS, spinners=1)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="under load, per configuration (60)")


def run(options: argparse.Namespace) -> Result:
    size = TINY if options.tiny else Size(under_load_s=options.seconds)
    details = {name: _under_load(extra, size) for name, extra in CONFIGURATIONS.items()}
    return Result(
        name="load",
        figures={
            "false_evictions": max(found["false_evictions"] for found in details.values()),
            "sched_ms_p99": max(found["sched_ms"]["p99"] for found in details.values()),
            "slowdown": max(_slowdown(found) for found in details.values()),
        },
        bounds={"false_evictions": 0},
        details={**details, "cores": os.cpu_count(), "spinners": size.spinners, "replicas": size.replicas},
    )


def _under_load(extra: tuple[str, ...], size: Size) -> dict[str, Any]:
    with crew(*extra, replicas=size.replicas) as job:
        job.wait_until_warm()
        before = _steps_per_s(job, size.before_s)
        with spinners(size.spinners), Wakeups() as wakeups:
            during = _steps_per_s(job, size.under_load_s)
        job.traces.read()
        causes = sorted({adoption.cause for adoption in job.traces.adoptions if adoption.view > 1})
        return {
            "false_evictions": job.traces.removals(),
            "steps_per_s": {"before": before, "under_load": during},
            "sched_ms": {**spread(wakeups.late_ms), "p99": p99(wakeups.late_ms)},
            "views": len(job.traces.views()),
            "causes": causes,
            "seconds": size.under_load_s,
        }


def _steps_per_s(job: Crew, seconds: float) -> float:
    first, since = _newest_step(job), time.monotonic()
    time.sleep(seconds)
    steps = _newest_step(job) - first
    return steps / (time.monotonic() - since)


def _newest_step(job: Crew) -> int:
    status = job.cluster.wait_for("a status", lambda status: bool(status.pulses))
    return max(pulse.step for pulse in status.pulses)


def _slowdown(found: dict[str, Any]) -> float:
    rates: dict[str, float] = found["steps_per_s"]
    return rates["before"] / rates["under_load"] if rates["under_load"] else float("inf")
