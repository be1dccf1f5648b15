"""How long training stands still when a member is killed.

Three, four and eight replicas train a small model with default settings; a step is a sleep of 30 ms for each
shard, and little else, so that eight of them fit on two cores. A random member is killed with -9 at a random
moment, and the next one when all take part again. The clock runs from just before the kill until the slowest
survivor has completed, optimizer included, its first step in a job without the victim. Two median steps are
taken off: the one that was interrupted, and the one in which the victim's shards are computed by others.

- `stall_s_median`, `stall_s_p90`: what is left; the worst of the three sizes.
- `survivor_exits`: processes that ended although nobody killed them; must be 0.

`reached_s` in the details is the same with nothing taken off, for comparisons where there is no stall, and
`back_s` the time from the kill until all took part in the steps again.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.lifeline import lifeline
from bench.paces import IMPORTABLE, PROGRAM, Paces
from bench.result import Result
from bench.stats import median, p90, spread
from outlast.testing.cluster import LocalCluster

SIZES = (3, 4, 8)
TINY_SIZES = (2,)
STEP_SLEEP_S = 0.03
CALM_S = (0.3, 0.8)
STALL_MEDIAN_S = 0.15
STALL_P90_S = 0.4
STEPS_TAKEN_OFF = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kills-per-size", type=int, default=10, help="kills for each number of replicas (10)"
    )


def run(options: argparse.Namespace) -> Result:
    sizes, kills = (TINY_SIZES, 1) if options.tiny else (SIZES, options.kills_per_size)
    found = {size: _one_size(size, kills) for size in sizes}
    figures = {
        "stall_s_median": max(median(one["stalls_s"]) for one in found.values()),
        "stall_s_p90": max(p90(one["stalls_s"]) for one in found.values()),
        "survivor_exits": sum(one["survivor_exits"] for one in found.values()),
    }
    for size, one in found.items():
        figures[f"stall_s_median_n{size}"] = median(one["stalls_s"])
        figures[f"stall_s_p90_n{size}"] = p90(one["stalls_s"])
    return Result(
        name="recovery",
        figures=figures,
        bounds={"stall_s_median": STALL_MEDIAN_S, "stall_s_p90": STALL_P90_S, "survivor_exits": 0},
        details={
            f"n{size}": {
                "step_s": one["step_s"],
                "stall_s": spread(one["stalls_s"]),
                "reached_s": spread(one["reached_s"]),
                "back_s": spread(one["back_s"]),
            }
            for size, one in found.items()
        },
    )


def _one_size(size: int, kills: int) -> dict[str, Any]:
    print(f"bench: {size} replicas …", file=sys.stderr, flush=True)
    reached_s: list[float] = []
    back_s: list[float] = []
    killed = dict.fromkeys(range(size), 0)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        plan = json.dumps({"directory": name, "width": 64, "layers": 2, "sleep_s": STEP_SLEEP_S})
        with LocalCluster(size, [PROGRAM, plan], environment=IMPORTABLE) as cluster, lifeline(cluster.pid):
            paces = Paces(Path(name))
            try:
                for _ in range(kills):
                    victim = random.randrange(size)
                    stood_s, gone_s = _kill(paces, victim, size)
                    killed[victim] += 1
                    reached_s.append(stood_s)
                    back_s.append(gone_s)
            except TimeoutError as error:
                raise RuntimeError(f"{error}\n{cluster.said()[-4000:]}") from error
    step_s = paces.step_s()
    return {
        # Less than nothing is nothing: the survivors were in luck with the moment.
        "stalls_s": [max(0.0, reached - STEPS_TAKEN_OFF * step_s) for reached in reached_s],
        "reached_s": reached_s,
        "back_s": back_s,
        "step_s": step_s,
        "survivor_exits": sum(lives - 1 - killed[replica] for replica, lives in paces.lives().items()),
    }


def _kill(paces: Paces, victim: int, size: int) -> tuple[float, float]:
    """Seconds until the slowest survivor had made a step, and until all took part again."""
    paces.wait_for("all take part", lambda: paces.complete(size))
    time.sleep(random.uniform(*CALM_S))
    paces.read()
    pid = paces.pid(victim)
    before_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    paces.wait_for(
        f"the survivors of replica {victim} go on",
        lambda: len(paces.first_without(before_ns, victim, size)) == size - 1,
    )
    reached_ns = max(paces.first_without(before_ns, victim, size).values())
    paces.wait_for("all take part again", lambda: paces.pid(victim) != pid and paces.complete(size))
    back_ns = paces.done[victim][-1].at_ns
    return (reached_ns - before_ns) / 1e9, (back_ns - before_ns) / 1e9
