"""What robust rules cost: the time of one call, over the time to read its input once.

One thread, 16 contributions of ten million float32 each, f = 3. Reading is a plain sum over the input, taken
right before each call, so that both see the same machine; calls of all rules take turns. Results go where
the last ones were (`out=`).

- `x_read_limit`: the median of these ratios, by rule. Less than 1 is impossible.
- `x_byzfl`, `x_flower`: how many times as long ByzFL and Flower take for the same rule, where they have it,
  in one thread on the same input. They run in a venv of their own (`scripts/peers` makes it, and is called
  if it is not there), once each, since they take seconds.

Compiling the kernels is not in these figures; the details say what the first call took.
"""

import argparse
import gc
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.paired import paired_ratio
from bench.peer_rules import SEED
from bench.result import Figure, Result
from bench.stats import median
from outlast import rules

N, F, D = 16, 3, 10_000_000
ROUNDS = 5
TINY_D = 10_000
BOUNDS: dict[str, float] = {
    "median": 3,
    "trimmed_mean": 3,
    "krum": 6,
    "multi_krum": 6,
    "geometric_median": 6,
    "centred_clipping": 6,
    "nnm_trimmed_mean": 10,
}
FASTER_THAN_PEERS = 10.0
RULES: dict[str, rules.Rule] = {
    "mean": rules.Mean(),
    "median": rules.Median(),
    "trimmed_mean": rules.TrimmedMean(F),
    "krum": rules.Krum(F),
    "multi_krum": rules.MultiKrum(F),
    "geometric_median": rules.GeometricMedian(iterations=3),
    "centred_clipping": rules.CentredClipping(radius=100.0),
    "nnm_trimmed_mean": rules.NNM(F) | rules.TrimmedMean(F),
    "bulyan": rules.Bulyan(F),
    "mda": rules.MDA(F),
    "clip_norms_mean": rules.ClipNorms() | rules.Mean(),
}
PEERS = {
    "byzfl": list(BOUNDS),
    "flower": ["median", "trimmed_mean", "krum", "multi_krum"],
}
ROOT = Path(__file__).parent.parent


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-peers", action="store_true", help="measure Outlast's own rules only")


def run(options: argparse.Namespace) -> Result:
    d, rounds = (TINY_D, 1) if options.tiny else (D, ROUNDS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = torch.randn(N, d, generator=torch.Generator().manual_seed(SEED))
        out = torch.empty(d)
        first_s = {name: _seconds(partial(rule, out=out), rows) for name, rule in RULES.items()}
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in RULES}
        for _ in range(rounds):
            for name, rule in RULES.items():
                read_s = _seconds(torch.sum, rows)
                pairs[name].append((_seconds(partial(rule, out=out), rows), read_s))
        details: dict[str, Any] = {
            "n": N,
            "f": F,
            "d": d,
            "read_ms": 1000 * median([read for times in pairs.values() for _, read in times]),
            "ms": {name: 1000 * median([own for own, _ in times]) for name, times in pairs.items()},
            "first_call_s": first_s,
        }
        _make_alike(rows)
        alike_s = [_seconds(partial(RULES["krum"], out=out), rows) for _ in range(3)]
        details["krum_of_contributions_that_are_alike_ms"] = 1000 * median(alike_s)
        del rows
    finally:
        torch.set_num_threads(before)
    figures: dict[str, Figure] = {
        "x_read_limit": {name: paired_ratio(times).median for name, times in pairs.items()}
    }
    floors: dict[str, Figure] = {}
    if not (options.no_peers or options.tiny):
        peers_s = peer_seconds()
        details["peers_s"] = peers_s
        for peer, seconds in peers_s.items():
            figures[f"x_{peer}"] = {
                name: peer_s / median([own for own, _ in pairs[name]]) for name, peer_s in seconds.items()
            }
            floors[f"x_{peer}"] = dict.fromkeys(seconds, FASTER_THAN_PEERS)
    return Result(
        name="rules", figures=figures, bounds={"x_read_limit": dict(BOUNDS)}, floors=floors, details=details
    )


def peer_seconds() -> dict[str, dict[str, float]]:
    subprocess.run([str(ROOT / "scripts" / "peers")], check=True, stdout=subprocess.DEVNULL)
    command = [str(ROOT / ".venv-peers" / "bin" / "python"), str(ROOT / "bench" / "peer_rules.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        found: dict[str, dict[str, float]] = {}
        with closing(worker.stdin):
            for peer, names in PEERS.items():
                found[peer] = {}
                for name in names:
                    worker.stdin.write(f"{peer} {name} {N} {F} {D}\n")
                    worker.stdin.flush()
                    answer = worker.stdout.readline()
                    if not answer:
                        raise RuntimeError(f"{peer}'s {name} failed with code {worker.wait()}; see above")
                    found[peer][name] = float(answer)
    return found


def _make_alike(rows: torch.Tensor) -> None:
    """Contributions that differ by a thousandth of what they have in common, as trained weights do."""
    rows.mul_(1e-3).add_(torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(SEED + 1)))


def _seconds(call: Callable[[torch.Tensor], object], rows: torch.Tensor) -> float:
    gc.collect()
    begin = time.perf_counter()
    call(rows)
    return time.perf_counter() - begin
