"""What the supervisors cost: they run beside the training on every machine, so they have to be small.

- `*_import_s`: what it takes to import the agent's and the coordinator's service in a fresh interpreter
  (median); restarts pay that.
- `*_rss_mb`: resident memory of the two processes in a running job of eight stand-ins.
- `*_cpu_percent`: the share of one core that they use while nothing happens in that job.

The details have the same for the launcher, and for the process that replicas are forked from.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.crew import REPLICAS, TINY_REPLICAS, crew
from bench.result import Result
from bench.stats import median, spread
from outlast.kinship import children_of

IMPORT_S = 0.3
RSS_MB = 60.0
IMPORTS = 10
TINY_IDLE_S = 0.2
MODULES = {"agent": "outlast.agent.service", "coordinator": "outlast.coordinator.service"}

_TIMED_IMPORT = """
import sys, time
before = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - before)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="to measure CPU use over (10)")


def run(options: argparse.Namespace) -> Result:
    replicas = TINY_REPLICAS if options.tiny else REPLICAS
    imports = {
        name: [import_s(module) for _ in range(2 if options.tiny else IMPORTS + 1)][
            1:
        ]  # The first one fills the disk cache.
        for name, module in MODULES.items()
    }
    with crew(replicas=replicas) as job:
        job.wait_until_warm()
        agent = job.cluster.agent_pid()
        own = {adoption.pid for adoption in job.traces.newest.values()}
        others = [pid for pid in children_of(agent) if pid not in own]
        pids = {"agent": agent, "coordinator": job.cluster.coordinator_pid(), "launcher": job.cluster.pid}
        if others:
            pids["forkserver"] = others[0]
        cpu = cpu_percent(pids, TINY_IDLE_S if options.tiny else options.idle_seconds)
        rss = {name: rss_mb(pid) for name, pid in pids.items()}
    figures: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for name, times in imports.items():
        figures |= {f"{name}_import_s": median(times), f"{name}_rss_mb": rss[name]}
        figures[f"{name}_cpu_percent"] = cpu[name]
        bounds |= {f"{name}_import_s": IMPORT_S, f"{name}_rss_mb": RSS_MB}
    return Result(
        name="footprint",
        figures=figures,
        bounds=bounds,
        details={
            "replicas": replicas,
            "import_s": {name: spread(times) for name, times in imports.items()},
            "rss_mb": rss,
            "cpu_percent": cpu,
        },
    )


def import_s(module: str) -> float:
    command = [sys.executable, "-c", _TIMED_IMPORT, module]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no memory; it has ended")


def cpu_percent(pids: dict[str, int], seconds: float) -> dict[str, float]:
    before, since = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - since
    return {name: (cpu_s(pid) - before[name]) / passed_s * 100 for name, pid in pids.items()}


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process since it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # The fields of utime and stime, counted from the one after the name.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
