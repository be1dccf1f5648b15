"""What members notice of a replica that comes back, with 400 MB of state, and how fast the state gets there.

Three replicas train an MLP of 33 million parameters with AdamW. One is killed, and its successor is kept from
joining, so that two members train on in peace for a while; then it may join. All that counts is measured with
these two members: before the join, and from the moment the successor begins to join until all three have made
two steps together.

- `gap_ratio`: the members' longest gap between two steps during the join, over the longest one in an equally
  long stretch right before it.
- `stream_ratio`: how long the state was on its way to the successor, over how long a plain socket needs for
  the same bytes, beside the two members. It is the successor itself that receives them, before it joins.

Both are the median of a few joins.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.lifeline import lifeline
from bench.paces import IMPORTABLE, PROGRAM, Paces
from bench.result import Result
from bench.stats import median, spread
from outlast.testing.cluster import LocalCluster

REPLICAS = 3
VICTIM = 2
MEMBERS = (0, 1)
WIDTH = 2048
LAYERS = 8
GAP_RATIO = 2.0
STREAM_RATIO = 1.5
STEPS_OF_SETTLING = 3
WITHIN_S = 150.0


@dataclass(frozen=True)
class Join:
    took_s: float
    gap_s: float
    calm_gap_s: float
    stream_s: float
    plain_s: float
    size_mb: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--joins", type=int, default=3, help="how often a replica comes back (3)")
    parser.add_argument("--calm-seconds", type=float, default=12.0, help="to watch before each join (12)")


def run(options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        plan = json.dumps({"directory": name, "width": WIDTH, "layers": LAYERS, "sleep_s": 0.0})
        with (
            LocalCluster(REPLICAS, [PROGRAM, plan], environment=IMPORTABLE) as cluster,
            lifeline(cluster.pid),
        ):
            paces = Paces(Path(name))
            try:
                joins = [_one(paces, Path(name) / "hold", options.calm_seconds) for _ in range(options.joins)]
            except TimeoutError as error:
                raise RuntimeError(f"{error}\n{cluster.said()[-4000:]}") from error
    return Result(
        name="rejoin",
        figures={
            "gap_ratio": median([join.gap_s / join.calm_gap_s for join in joins]),
            "stream_ratio": median([join.stream_s / join.plain_s for join in joins]),
            "state_mb": joins[0].size_mb,
        },
        bounds={"gap_ratio": GAP_RATIO, "stream_ratio": STREAM_RATIO},
        details={
            "step_s": paces.step_s(),
            "gap_s": spread([join.gap_s for join in joins]),
            "calm_gap_s": spread([join.calm_gap_s for join in joins]),
            "stream_s": spread([join.stream_s for join in joins]),
            "plain_s": spread([join.plain_s for join in joins]),
            "join_s": spread([join.took_s for join in joins]),
        },
    )


def _one(paces: Paces, hold: Path, calm_s: float) -> Join:
    print("bench: a replica is killed …", file=sys.stderr, flush=True)
    paces.wait_for("all take part", lambda: paces.complete(REPLICAS), WITHIN_S)
    hold.touch()
    pid = paces.pid(VICTIM)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    _wait_for_steps(paces, killed_ns, STEPS_OF_SETTLING)
    size_bytes = 3 * 4 * LAYERS * (WIDTH * WIDTH + WIDTH)  # Weights, and twice that in AdamW.
    plain_s = _plain_copy(paces, hold.with_name("copy"), size_bytes)
    time.sleep(calm_s)
    begin_ns = time.monotonic_ns()
    hold.unlink()
    print("bench: its successor joins …", file=sys.stderr, flush=True)
    paces.wait_for("it is back", lambda: paces.pid(VICTIM) != pid and paces.complete(REPLICAS), WITHIN_S)
    first_ns = next(one.at_ns for one in paces.done[VICTIM] if one.pid != pid and one.shards)
    paces.wait_for("a step together", lambda: all(d[-1].at_ns > first_ns for d in paces.done.values()))
    paces.read()
    end_ns = min(paces.done[member][-1].at_ns for member in MEMBERS)
    arrived = paces.arrived[VICTIM][-1]
    calm_ns = begin_ns - min(end_ns - begin_ns, int(calm_s * 1e9))
    return Join(
        took_s=(end_ns - begin_ns) / 1e9,
        gap_s=_longest_s(paces, begin_ns, end_ns),
        calm_gap_s=_longest_s(paces, calm_ns, begin_ns),
        stream_s=arrived.took_s,
        plain_s=plain_s,
        size_mb=arrived.size_bytes / 1e6,
    )


def _plain_copy(paces: Paces, request: Path, size_bytes: int) -> float:
    """The successor runs by now or will soon; it finds the request, and writes down how long it took."""
    before = len(paces.plain_s)
    new = request.with_suffix(".new")
    new.write_text(str(size_bytes))
    new.rename(request)
    paces.wait_for("a plain copy", lambda: len(paces.plain_s) > before, WITHIN_S)
    return list(paces.plain_s.values())[-1]


def _wait_for_steps(paces: Paces, since_ns: int, count: int) -> None:
    """Until the members have made some steps by themselves."""

    def made(member: int) -> int:
        return sum(one.at_ns > since_ns and one.members < REPLICAS for one in paces.done[member])

    paces.wait_for("the survivors go on", lambda: all(made(m) >= count for m in MEMBERS), WITHIN_S)


def _longest_s(paces: Paces, from_ns: int, to_ns: int) -> float:
    return max(gap for member in MEMBERS for gap in paces.gaps_s(member, from_ns, to_ns))
