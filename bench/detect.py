"""How long it takes until every survivor goes on without a replica that died, was stopped, or hangs.

Eight stand-ins run with default settings. A fault is put to one of them after the other, each time after all
eight are members again and have warmed up; the clock runs from just before the signal is sent until the last
of the seven survivors has adopted a view without the victim's life, both on the machine's monotonic clock.

- `kill_ms_*`: SIGKILL. The agent sees the exit at once, so this is the whole path: agent, coordinator, disk,
  seven threads in seven processes.
- `stop_s_p90`: SIGSTOP. The bound is the promised window and half a second.
- `hang_s_p90`: the main thread waits for ever while all others of the process go on. The bound is a window
  and a half, and three of the run's own steps (`step_s`).
- `sched_ms_p99`: how late an idle thread of this process wakes up meanwhile.

`rejoin_s` in the details is the time from the signal until all eight were members again.

With `--store etcd` what is agreed on is kept by three members of etcd, and a second job that keeps it on its
disk runs beside. Replicas of both are killed in turn, so that both see the same machine:
`kill_ms_median_ratio` is what the agreement of three costs over that of one.
"""

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from bench import stores
from bench.crew import REPLICAS, TINY_REPLICAS, Crew, crew
from bench.result import Result
from bench.stats import median, p90, p99, spread
from bench.wakeups import Wakeups
from outlast.protocol.hang import STEPS_OF_PATIENCE
from outlast.protocol.timing import Timing
from outlast.protocol.views import Outcome

KILL_MEDIAN_MS = 50.0
KILL_P90_MS = 150.0
KILL_RATIO = 2.0
SLACK_S = 0.5
UNEVEN_S = 0.1
"""Faults come at any point between two beats."""

KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "hang": signal.SIGUSR1}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", type=int, default=20, help="faults of each kind (20)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of faults (kill,stop,hang)")
    stores.add_option(parser)


def run(options: argparse.Namespace) -> Result:
    with contextlib.ExitStack() as stack:
        if options.store == stores.EMBEDDED:
            return _run(options, "", None)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-")))
        address = stack.enter_context(stores.opened(options.store, folder))
        replicas = TINY_REPLICAS if options.tiny else REPLICAS
        return _run(options, address, stack.enter_context(crew(replicas=replicas)))


def _run(options: argparse.Namespace, store: str, beside: Crew | None) -> Result:
    """`beside` is the job that shows how long it takes without such a store."""
    removed_s: dict[str, list[float]] = {}
    beside_s: list[float] = []
    rejoined_s: dict[str, list[float]] = {}
    paces_s: list[float] = []
    replicas, faults = (TINY_REPLICAS, 1) if options.tiny else (REPLICAS, options.faults)
    where = ["--store", store] if store else []
    with crew(replicas=replicas, options=where) as job, Wakeups() as wakeups:
        for kind in options.kinds.split(","):
            removed_s[kind], rejoined_s[kind] = [], []
            for index in range(faults):
                status = job.wait_until_warm()
                paces_s.append(median([pulse.pace_s for pulse in status.pulses]))
                out_s, back_s = _fault(job, index % replicas, KINDS[kind])
                removed_s[kind].append(out_s)
                rejoined_s[kind].append(back_s)
                if beside is not None and kind == "kill":
                    beside.wait_until_warm()
                    beside_s.append(_fault(beside, index % replicas, KINDS[kind])[0])
        outcome = job.wait_until_warm().outcome
    result = _result(replicas, removed_s, rejoined_s, paces_s, wakeups, outcome)
    return _compared(result, removed_s["kill"], beside_s) if beside_s else result


def _fault(job: Crew, replica: int, number: int) -> tuple[float, float]:
    time.sleep(random.uniform(0, UNEVEN_S))
    victim = job.victim(replica)
    before_ns = time.monotonic_ns()
    os.kill(victim.pid, number)
    try:
        removed_s = job.wait_until_removed(victim, before_ns)
    finally:
        if number == signal.SIGSTOP:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
    job.wait_until_complete()
    back_ns = max(adoption.at_ns for adoption in job.traces.newest.values())
    return removed_s, (back_ns - before_ns) / 1e9


def _result(
    replicas: int,
    removed_s: dict[str, list[float]],
    rejoined_s: dict[str, list[float]],
    paces_s: list[float],
    wakeups: Wakeups,
    outcome: Outcome | None,
) -> Result:
    window_s = Timing().detect_within_s
    step_s = median(paces_s)
    hang_bound_s = window_s + SLACK_S + STEPS_OF_PATIENCE * step_s
    figures: dict[str, float] = {}
    bounds: dict[str, float] = {}
    if "kill" in removed_s:
        kill_ms = [value * 1e3 for value in removed_s["kill"]]
        figures |= {"kill_ms_median": median(kill_ms), "kill_ms_p90": p90(kill_ms)}
        bounds |= {"kill_ms_median": KILL_MEDIAN_MS, "kill_ms_p90": KILL_P90_MS}
    if "stop" in removed_s:
        figures["stop_s_p90"] = p90(removed_s["stop"])
        bounds["stop_s_p90"] = window_s + SLACK_S
    if "hang" in removed_s:
        figures["hang_s_p90"] = p90(removed_s["hang"])
        bounds["hang_s_p90"] = hang_bound_s
    figures |= {"hang_bound_s": hang_bound_s, "step_s": step_s, "sched_ms_p99": p99(wakeups.late_ms)}
    return Result(
        name="detect",
        figures=figures,
        bounds=bounds,
        details={
            "replicas": replicas,
            "removed_s": {kind: spread(values) for kind, values in removed_s.items()},
            "rejoin_s": {kind: spread(values) for kind, values in rejoined_s.items()},
            "sched_ms": spread(wakeups.late_ms),
            "job_ended": None if outcome is None else outcome.reason,
        },
    )


def _compared(result: Result, kill_s: list[float], beside_s: list[float]) -> Result:
    ratio = median(kill_s) / median(beside_s)
    return Result(
        name=result.name,
        figures={**result.figures, "kill_ms_median_ratio": ratio},
        bounds={**result.bounds, "kill_ms_median_ratio": KILL_RATIO},
        details={**result.details, "store": "etcd", "removed_embedded_s": spread(beside_s)},
    )
