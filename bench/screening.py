"""What screening costs a step in which nothing is wrong, on this machine.

One job trains in turns with and without screening (`bench/screened.py`): pairs of blocks, the ratio of each
pair, the median of those, and a 95 % bootstrap interval. Large is the model of `bench overhead`, four layers
of 1024 x 1024 and a batch of 32 per replica; small has layers of 64 x 64 and a batch of 8.

- `screening_ratio`: steps per second with screening over those without; the worst of two and three replicas
  of the large model.
- `screening_ratio_small`: the same for the small one, where all is latency.

`cpu_ratio` in the details compares CPU time of all replicas, without over with: the same direction.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.lifeline import lifeline
from bench.overhead import REPLICAS, TINY, WITHIN_S, Size
from bench.paired import Ratio, paired_ratio
from bench.result import Result
from bench.stats import spread
from outlast.testing.cluster import LocalCluster

PROGRAM = str(Path(__file__).with_name("screened.py"))
RATIO_LEAST = 0.99


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--screening-pairs", type=int, default=40, help="pairs of blocks for each model (40)")
    parser.add_argument("--screening-replicas", type=int, nargs="*", default=REPLICAS, help="how many (2, 3)")


def run(options: argparse.Namespace) -> Result:
    size = Size(pairs=options.screening_pairs, replicas=options.screening_replicas)
    if options.tiny:
        size = TINY
    large = {n: _measure(n, size.pairs, size.large) for n in size.replicas}
    small = {n: _measure(n, size.pairs, size.small) for n in size.replicas}
    worst = min((_ratio(pairs, "s") for pairs in large.values()), key=lambda ratio: ratio.median)
    return Result(
        name="screening",
        figures={
            "screening_ratio": worst.median,
            "screening_ratio_small": min(_ratio(pairs, "s").median for pairs in small.values()),
        },
        floors={"screening_ratio": RATIO_LEAST},
        intervals={"screening_ratio_ci": worst.as_list()},
        details={
            "large": {f"n{n}": _described(pairs) for n, pairs in large.items()},
            "small": {f"n{n}": _described(pairs) for n, pairs in small.items()},
        },
    )


Pairs = list[dict[str, dict[str, float]]]


def _ratio(pairs: Pairs, of: str) -> Ratio:
    """Times are the inverse of steps per second, so it is without over with."""
    return paired_ratio([(pair["without"][of], pair["with"][of]) for pair in pairs])


def _described(pairs: Pairs) -> dict[str, Any]:
    clock, cpu = _ratio(pairs, "s"), _ratio(pairs, "cpu_s")
    return {
        "ratio": clock.median,
        "ratio_ci": clock.as_list(),
        "cpu_ratio": cpu.median,
        "cpu_ratio_ci": cpu.as_list(),
        "without_ms": spread([pair["without"]["s"] * 1e3 for pair in pairs]),
        "with_ms": spread([pair["with"]["s"] * 1e3 for pair in pairs]),
    }


def _measure(replicas: int, pairs: int, what: Mapping[str, int]) -> Pairs:
    print(f"bench: {replicas} replicas, {what['width']} wide …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        plan = json.dumps({**what, "pairs": pairs, "replicas": replicas, "directory": name})
        with LocalCluster(replicas, [PROGRAM, plan]) as cluster, lifeline(cluster.pid):
            code = cluster.wait(WITHIN_S)
            if code:
                raise RuntimeError(f"the job ended with code {code}:\n{cluster.said()[-4000:]}")
        found: Pairs = json.loads((Path(name) / "found-0.json").read_text())["pairs"]
    clock, cpu = _ratio(found, "s"), _ratio(found, "cpu_s")
    said = f"{clock.median:.3f} ({clock.low:.3f} to {clock.high:.3f}), of CPU time {cpu.median:.3f}"
    print(f"bench: … {said}", file=sys.stderr, flush=True)
    return found
