"""What it costs to compare the replicas' states as often as `verify="auto"` does.

Two replicas train an MLP of four 1024 x 1024 layers with AdamW (`bench/digester.py`), in blocks with one
comparison each, as long as the interval that `auto` has chosen, and as long ones without, in turns.

- `digest_cost_ratio`: steps per second with comparisons over those without; the median over pairs. If the
  interval is longer than `--longest`, blocks are shorter than it, and the ratio is worse than in truth.
- `checksum_share`: what the checksum of a contribution takes, over a step. Only two members make it, in every
  step; it is on both sides of the ratio.
- `extra_bytes_per_param`: memory for copies, by the size of the state: two of parameters and moments.

`step_cpu_ms` in the details is the CPU time that a step takes the chief, with comparisons and without. On a
machine that others use as well it is much steadier than the clock.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.lifeline import lifeline
from bench.paired import paired_ratio
from bench.result import Result
from bench.stats import median, spread
from outlast.kinship import alive
from outlast.testing.cluster import LocalCluster

PROGRAM = str(Path(__file__).with_name("digester.py"))
REPLICAS = 2
FLOOR = 0.995
STATE_BYTES_PER_PARAM = 12
COPIES = 2
WARM_UP_S = 3.0
TINY = {"width": 32, "batch": 4, "pairs": 1, "longest_s": 0.5, "warm_up_s": 0.3}
WITHIN_S = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--digest-pairs", type=int, default=8, help="of blocks with and without (8)")
    parser.add_argument("--digest-width", type=int, default=1024, help="of the layers (1024)")
    parser.add_argument("--digest-batch", type=int, default=32, help="samples per replica (32)")
    parser.add_argument("--longest", type=float, default=12.0, help="seconds that a block takes at most (12)")


def run(options: argparse.Namespace) -> Result:
    print("bench: comparing states …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        found = Path(name) / "found.json"
        plan = {
            "width": options.digest_width,
            "batch": options.digest_batch,
            "pairs": options.digest_pairs,
            "longest_s": options.longest,
            "warm_up_s": WARM_UP_S,
            "found": str(found),
        }
        if options.tiny:
            plan |= TINY
        with LocalCluster(REPLICAS, [PROGRAM, json.dumps(plan)]) as cluster, lifeline(cluster.pid):
            cluster.wait_until("the figures", lambda: found.exists() or not alive(cluster.pid), WITHIN_S)
            if not found.exists():
                raise RuntimeError(f"the job ended early:\n{cluster.said()[-4000:]}")
            answer = json.loads(found.read_text())
    pairs = answer["pairs"]
    ratio = paired_ratio([(pair["on"], pair["off"]) for pair in pairs])
    rate = median([pair["off"] for pair in pairs])
    return Result(
        name="digests",
        figures={
            "digest_cost_ratio": ratio.median,
            "checksum_share": answer["checksum_s"] * rate,
            "extra_bytes_per_param": COPIES * STATE_BYTES_PER_PARAM,
        },
        bounds={},
        floors={"digest_cost_ratio": FLOOR},
        intervals={"digest_cost_ratio_ci": ratio.as_list()},
        details={
            "pairs": len(pairs),
            "steps_per_s": spread([pair["off"] for pair in pairs]),
            "step_cpu_ms": {
                name: spread([pair["cpu_s"][name] * 1e3 for pair in pairs]) for name in ("on", "off")
            },
            "interval_s": answer["interval_s"],
            "block_s": answer["block_s"],
            "cost_s": answer["cost_s"],
            "checksum_ms": answer["checksum_s"] * 1e3,
        },
    )
