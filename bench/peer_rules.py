"""Runs in the peers' own venv: times rules of ByzFL and Flower, one at a time, as told on standard input.

Each line is "peer rule n f d"; the answer is the seconds that one call took. Both get the input that they are
made for, already in memory: ByzFL a tensor, Flower a list of arrays per client.
"""

import sys
import time
from typing import Any
from unittest.mock import MagicMock

SEED = 0


def main() -> None:
    # ByzFL imports these for its experiments. There is no torchvision for this torch, and nothing here draws.
    for name in ("torchvision", "matplotlib", "matplotlib.pyplot", "seaborn"):
        sys.modules[name] = MagicMock()
    import torch

    torch.set_num_threads(1)
    rows = None
    for line in sys.stdin:
        peer, rule, n, f, d = line.split()
        if rows is None or rows.shape != (int(n), int(d)):
            rows = torch.randn(int(n), int(d), generator=torch.Generator().manual_seed(SEED))
        call = (_byzfl if peer == "byzfl" else _flower)(rule, rows, int(f))
        begin = time.perf_counter()
        call()
        print(time.perf_counter() - begin, flush=True)


def _byzfl(rule: str, rows: Any, f: int) -> Any:
    import byzfl

    if rule == "nnm_trimmed_mean":
        mix, trim = byzfl.NNM(f), byzfl.TrMean(f)
        return lambda: trim(mix(rows))
    aggregator = {
        "median": lambda: byzfl.Median(),
        "trimmed_mean": lambda: byzfl.TrMean(f),
        "krum": lambda: byzfl.Krum(f),
        "multi_krum": lambda: byzfl.MultiKrum(f),
        "geometric_median": lambda: byzfl.GeometricMedian(T=3),
        "centred_clipping": lambda: byzfl.CenteredClipping(),
    }[rule]()
    return lambda: aggregator(rows)


def _flower(rule: str, rows: Any, f: int) -> Any:
    from flwr.server.strategy import aggregate

    results = [([row.numpy()], 1) for row in rows]
    return {
        "median": lambda: aggregate.aggregate_median(results),
        # Half a contribution more, so that the share is not rounded down to f - 1.
        "trimmed_mean": lambda: aggregate.aggregate_trimmed_avg(results, (f + 0.5) / len(rows)),
        "krum": lambda: aggregate.aggregate_krum(results, f, 0),
        "multi_krum": lambda: aggregate.aggregate_krum(results, f, len(rows) - f),
    }[rule]


if __name__ == "__main__":
    main()
