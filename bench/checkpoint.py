"""What checkpoints cost training, and how near saving and loading come to what the machine can do.

One replica trains an MLP whose weights and AdamW moments have 512 MiB, in a process of its own, and saves
where the benchmark wants it to (`bench/saver.py`). Each figure is the median of ratios; what is compared was
measured in turns, in the same process.

- `stall_vs_memcpy`: how much longer the step is that holds capture, copy and settling than the median of the
  undisturbed steps right before it, over a plain memcpy of the state into memory that was used before.
- `stall_vs_dcp`: the same, over how long torch's `distributed.checkpoint.async_save` of that state blocks.
- `save_vs_raw`: a sequential write of as many bytes to one file with fsync, over a save from the decision to
  the committed manifest. Nobody trains meanwhile on either side: it is the save at the end of a run. The
  details have the same of saves with training beside them.
- `load_vs_raw`: a sequential read into fresh memory, over finding, reading and verifying the newest
  checkpoint, both with files that the system was asked to forget.
- `s3_vs_raw`: obstore putting as many bytes into objects of the same size to a SeaweedFS on this machine,
  over a save to it; nobody trains meanwhile either. Left out if there is no `weed`.
- `delta_bytes_ratio`: what a save writes when one of ten layers has changed, with its moments, over all
  bytes.
- `throughput_ratio`: steps per second with saves at the `auto` interval over those without. Of a smaller
  model, in blocks of one interval with one save each and as long ones without, in turns. So many failures are
  pretended that the interval is the shortest that `auto` ever chooses.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lifeline import lifeline
from bench.paces import IMPORTABLE
from bench.paired import Ratio, paired_ratio
from bench.result import Result
from bench.stats import median, spread

PROGRAM = str(Path(__file__).with_name("saver.py"))
TESTS = str(Path(__file__).parents[1] / "tests")
BOUNDS = {"stall_vs_memcpy": 1.2, "stall_vs_dcp": 0.5, "delta_bytes_ratio": 0.15}
FLOORS = {"save_vs_raw": 0.8, "load_vs_raw": 0.8, "s3_vs_raw": 0.8, "throughput_ratio": 0.98}
MEBIBYTE = 1 << 20
BATCH = 64
SMALL_STATE_MIB = 24
SMALL_BATCH = 32
TINY = {"state_bytes": MEBIBYTE, "batch": 4, "rounds": 1}
WITHIN_S = 300.0

Found = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-mib", type=int, default=512, help="size of weights and moments (512)")
    parser.add_argument("--rounds", type=int, default=7, help="saves of each kind (7)")
    parser.add_argument("--save-pairs", type=int, default=20, help="of blocks with and without saves (20)")
    parser.add_argument(
        "--threads", type=int, default=1, help="that torch computes with; 0: as many as it likes (1)"
    )
    parser.add_argument("--no-s3", action="store_true", help="leave out the S3 server")


def run(options: argparse.Namespace) -> Result:
    base = {
        "state_bytes": options.state_mib * MEBIBYTE,
        "batch": BATCH,
        "rounds": options.rounds,
        "threads": options.threads,
    }
    beside = {
        "state_bytes": SMALL_STATE_MIB * MEBIBYTE,
        "batch": SMALL_BATCH,
        "pairs": options.save_pairs,
        "longest_s": math.inf,
    }
    if options.tiny:
        base, beside = base | TINY, beside | TINY | {"pairs": 1, "longest_s": 0.2}
    figures: dict[str, float] = {}
    intervals: dict[str, list[float]] = {}
    details: Found = {"threads": options.threads}

    def note(name: str, ratio: Ratio) -> None:
        figures[name], intervals[f"{name}_ci"] = ratio.median, ratio.as_list()

    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        directory = Path(name)
        local = _program({**base, "mode": "local"}, directory)
        stalls = [(_stall_s(one), one) for one in local["rounds"]]
        note("stall_vs_memcpy", paired_ratio([(stall_s, one["memcpy_s"]) for stall_s, one in stalls]))
        note("stall_vs_dcp", paired_ratio([(stall_s, one["dcp_s"]) for stall_s, one in stalls]))
        figures["delta_bytes_ratio"] = local["delta"]
        details["local"] = _described_local(local)
        final = _program({**base, "mode": "final"}, directory)
        note("save_vs_raw", paired_ratio(_pairs(final, "save_s")))
        details["save"] = _described(final)
        load = _program({**base, "mode": "load"}, directory)
        note("load_vs_raw", paired_ratio(_pairs(load, "load_s")))
        details["load"] = _described(load)
    if not options.no_s3:
        with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
            s3 = _with_s3_server({**base, "mode": "s3"}, Path(name))
        if s3 is not None:
            note("s3_vs_raw", paired_ratio(_pairs(s3, "save_s")))
            details["s3"] = _described(s3)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        pairs = _program({**base, **beside, "mode": "throughput"}, Path(name))["pairs"]
    note("throughput_ratio", paired_ratio([(pair["on"], pair["off"]) for pair in pairs]))
    details["throughput"] = {
        "saves": len(pairs),
        "interval_s": spread([pair["interval_s"] for pair in pairs]),
        "steps_per_s": spread([pair["off"] for pair in pairs]),
        "save_s": spread([pair["saved"]["took_s"] for pair in pairs]),
    }
    return Result(
        name="checkpoint",
        figures=figures,
        bounds=BOUNDS,
        floors={name: floor for name, floor in FLOORS.items() if name in figures},
        intervals=intervals,
        details=details,
    )


def _stall_s(one: Found) -> float:
    stall_s: float = one["copying_s"] - median(one["calm_s"])
    return stall_s


def _pairs(found: Found, ours: str) -> list[tuple[float, float]]:
    """Ours is the second of each, so that more is better."""
    return [(one["raw_s"], one[ours]) for one in found["rounds"]]


def _described(found: Found) -> Found:
    return {name: spread([one[name] for one in found["rounds"]]) for name in found["rounds"][0]}


def _described_local(found: Found) -> Found:
    rounds: Sequence[Found] = found["rounds"]
    return {
        "state_mib": found["state_bytes"] / MEBIBYTE,
        "calm_step_s": spread([step_s for one in rounds for step_s in one["calm_s"]]),
        "stall_s": spread([_stall_s(one) for one in rounds]),
        "held_s": spread([one["held_s"] for one in rounds]),
        "memcpy_s": spread([one["memcpy_s"] for one in rounds]),
        "dcp_blocks_s": spread([one["dcp_s"] for one in rounds]),
        "save_beside_training_s": spread([one["save_s"] for one in rounds]),
        "raw_write_s": spread([one["raw_s"] for one in rounds]),
        "whole_cost_s": spread(
            [_stall_s(one) + sum(s - median(one["calm_s"]) for s in one["after_s"]) for one in rounds]
        ),
    }


def _with_s3_server(plan: Found, directory: Path) -> Found | None:
    sys.path.insert(0, TESTS)
    from servers import seaweedfs  # type: ignore[import-not-found, unused-ignore]

    if seaweedfs.missing():
        print(f"bench: {seaweedfs.missing()}", file=sys.stderr, flush=True)
        return None
    folder = directory / "server"
    folder.mkdir()
    server = seaweedfs.SeaweedFS(folder)
    try:
        server.wait()
        return _program({**plan, "bucket": seaweedfs.BUCKET}, directory, server.environment())
    finally:
        server.stop()


def _program(plan: Found, directory: Path, environment: dict[str, str] | None = None) -> Found:
    print(f"bench: {plan['mode']} …", file=sys.stderr, flush=True)
    command = [sys.executable, PROGRAM, json.dumps({**plan, "directory": str(directory)})]
    env = {**os.environ, **IMPORTABLE, **(environment or {})}
    with subprocess.Popen(command, env=env) as process, lifeline(process.pid):
        try:
            code = process.wait(WITHIN_S)
        finally:
            process.kill()
    if code:
        raise RuntimeError(f"the benchmark's program ended with code {code}")
    found: Found = json.loads((directory / "found.json").read_text())
    return found
