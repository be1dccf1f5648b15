"""What training with Outlast costs beside plain DistributedDataParallel over gloo, on this machine.

Every replica holds both, and trains the same model on the same batch with one and with the other in turns
(`bench/duel.py`); one ratio for each pair of blocks, the median of at least 30 pairs, and a 95 % bootstrap
interval of it. Everything that the loop of a user does is timed: forward, backward, AdamW, zero_grad.

- `ratio`: Outlast's time per step over DDP's for an MLP of four 1024 x 1024 layers with a batch of 32 per
  replica; the worse of two and three replicas, and its interval `ratio_ci`. `ratio_high` is the highest upper
  end of both.
- `ratio_small`: the same for 64 x 64 layers and a batch of 8, where all is latency.
- `extra_bytes_per_param`: memory beyond DDP's. Each side trains alone in processes of its own, a small and a
  large model; what the large one needs more, by its additional parameters, is the side's need per parameter.
  As many shards as replicas. `extra_vectors` is the same as a number of gradients.

`cpu_ratio` in the details compares CPU time in all threads of all replicas. On a machine that others use as
well it is much steadier than the clock.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.lifeline import lifeline
from bench.paired import Ratio, paired_ratio
from bench.result import Result
from bench.stats import median, spread
from outlast.testing.cluster import LocalCluster

PROGRAM = str(Path(__file__).with_name("duel.py"))
REPLICAS = (2, 3)
RATIO = 1.00
RATIO_HIGH = 1.05
RATIO_SMALL = 0.80
GRADIENTS_WORTH = 2
FLOAT_BYTES = 4
MEMORY_WIDTHS = (128, 1024)
MEMORY_LAYERS = 4
MEMORY_STEPS = 5
WITHIN_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Size:
    pairs: int
    replicas: Sequence[int] = REPLICAS
    memory_replicas: int = 2
    large: Mapping[str, int] = field(default_factory=lambda: {"width": 1024, "batch": 32, "steps": 5})
    small: Mapping[str, int] = field(default_factory=lambda: {"width": 64, "batch": 8, "steps": 60})


TINY = Size(
    pairs=1,
    replicas=(2,),
    memory_replicas=1,
    large={"width": 64, "batch": 8, "steps": 2},
    small={"width": 16, "batch": 2, "steps": 2},
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=36, help="pairs of blocks for each configuration (36)")
    parser.add_argument("--no-memory", action="store_true", help="leave out the comparison of memory")


def run(options: argparse.Namespace) -> Result:
    size = TINY if options.tiny else Size(pairs=options.pairs)
    large = {n: _duel(n, size.pairs, size.large) for n in size.replicas}
    small = {n: _duel(n, size.pairs, size.small) for n in size.replicas}
    worst = max((_clock(pairs) for pairs in large.values()), key=lambda ratio: ratio.median)
    figures = {
        "ratio": worst.median,
        "ratio_high": max(_clock(pairs).high for pairs in large.values()),
        "ratio_small": max(_clock(pairs).median for pairs in small.values()),
        **{f"ratio_n{n}": _clock(pairs).median for n, pairs in large.items()},
        **{f"ratio_small_n{n}": _clock(pairs).median for n, pairs in small.items()},
    }
    bounds = {"ratio": RATIO, "ratio_high": RATIO_HIGH, "ratio_small": RATIO_SMALL}
    details: dict[str, Any] = {
        "large": {f"n{n}": _described(pairs) for n, pairs in large.items()},
        "small": {f"n{n}": _described(pairs) for n, pairs in small.items()},
    }
    if not options.no_memory:
        needs = {side: _bytes_per_parameter(side, size.memory_replicas) for side in ("ddp", "outlast")}
        figures["extra_bytes_per_param"] = needs["outlast"] - needs["ddp"]
        figures["extra_vectors"] = figures["extra_bytes_per_param"] / FLOAT_BYTES
        bounds["extra_bytes_per_param"] = GRADIENTS_WORTH * FLOAT_BYTES
        details["bytes_per_param"] = needs
    intervals = {"ratio_ci": worst.as_list()}
    return Result(name="overhead", figures=figures, bounds=bounds, intervals=intervals, details=details)


Pairs = list[dict[str, dict[str, float]]]


def _ratio(pairs: Pairs, of: str) -> Ratio:
    return paired_ratio([(pair["outlast"][of], pair["ddp"][of]) for pair in pairs])


def _clock(pairs: Pairs) -> Ratio:
    return _ratio(pairs, "s")


def _described(pairs: Pairs) -> dict[str, Any]:
    clock, cpu = _clock(pairs), _ratio(pairs, "cpu_s")
    return {
        "ratio": clock.median,
        "ratio_ci": clock.as_list(),
        "cpu_ratio": cpu.median,
        "cpu_ratio_ci": cpu.as_list(),
        "ddp_ms": spread([pair["ddp"]["s"] * 1e3 for pair in pairs]),
        "outlast_ms": spread([pair["outlast"]["s"] * 1e3 for pair in pairs]),
    }


def _duel(replicas: int, pairs: int, what: Mapping[str, int]) -> Pairs:
    print(f"bench: {replicas} replicas, {what['width']} wide …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        _outlast({**what, "mode": "duel", "pairs": pairs, "replicas": replicas, "directory": name})
        found: Pairs = json.loads((Path(name) / "found-0.json").read_text())["pairs"]
    clock, cpu = _clock(found), _ratio(found, "cpu_s")
    said = f"{clock.median:.3f} ({clock.low:.3f} to {clock.high:.3f}), of CPU time {cpu.median:.3f}"
    print(f"bench: … {said}", file=sys.stderr, flush=True)
    return found


def _bytes_per_parameter(side: str, replicas: int) -> float:
    print(f"bench: memory of {side} …", file=sys.stderr, flush=True)
    few, many = (_peak_bytes(side, replicas, width) for width in MEMORY_WIDTHS)
    return (many - few) / (_parameters(MEMORY_WIDTHS[1]) - _parameters(MEMORY_WIDTHS[0]))


def _parameters(width: int) -> int:
    return MEMORY_LAYERS * (width * width + width)


def _peak_bytes(side: str, replicas: int, width: int) -> float:
    """The median over the replicas."""
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        plan = {"mode": side, "width": width, "batch": 8, "steps": MEMORY_STEPS}
        plan |= {"replicas": replicas, "directory": name}
        if side == "outlast":
            _outlast(plan)
        else:
            _alone(plan)
        found = [json.loads(path.read_text()) for path in Path(name).glob("found-*.json")]
        return median([entry["peak_kb"] * 1024 for entry in found])


def _outlast(plan: dict[str, Any]) -> None:
    with (
        LocalCluster(plan["replicas"], [PROGRAM, json.dumps(plan)]) as cluster,
        lifeline(cluster.pid),
    ):
        code = cluster.wait(WITHIN_S)
        if code:
            raise RuntimeError(f"the job ended with code {code}:\n{cluster.said()[-4000:]}")


def _alone(plan: dict[str, Any]) -> None:
    """DDP as everybody runs it: plain processes."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(plan["replicas"]):
            command = [sys.executable, PROGRAM, json.dumps({**plan, "rank": rank})]
            running.append(subprocess.Popen(command))
        for process in running:
            if process.wait(WITHIN_S):
                raise RuntimeError(f"a DDP process ended with code {process.returncode}")
    finally:
        for process in running:
            process.kill()
            process.wait()
