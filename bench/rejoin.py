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
from dataclasses import dataclass, replace
from pathlib import Path

from bench.lifeline import lifeline
from bench.paces import IMPORTABLE, PROGRAM, Paces
from bench.result import Result
from bench.stats import median, spread
from outlast.testing.cluster import LocalCluster

GAP_RATIO = 2.0
STREAM_RATIO = 1.5
STEPS_OF_SETTLING = 3
WITHIN_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """The replica with the highest number is the victim, and all others are members throughout."""

    replicas: int = 3
    width: int = 2048
    layers: int = 8
    sleep_s: float = 0.0
    joins: int = 3
    calm_s: float = 12.0

    @property
    def victim(self) -> int:
        return self.replicas - 1

    @property
    def members(self) -> range:
        return range(self.replicas - 1)

    @property
    def state_bytes(self) -> int:
        """Weights, and twice that in AdamW."""
        return 3 * 4 * self.layers * (self.width * self.width + self.width)


SIZE = Size()
TINY = Size(replicas=2, width=64, layers=2, sleep_s=0.01, joins=1, calm_s=0.3)


@dataclass(frozen=True)
class Join:
    took_s: float
    gap_s: float
    calm_gap_s: float
    stream_s: float
    plain_s: float
    size_mb: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--joins", type=int, default=SIZE.joins, help="how often a replica comes back (3)")
    parser.add_argument(
        "--calm-seconds", type=float, default=SIZE.calm_s, help="to watch before each join (12)"
    )


def run(options: argparse.Namespace) -> Result:
    size = TINY if options.tiny else replace(SIZE, joins=options.joins, calm_s=options.calm_seconds)
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        plan = json.dumps(
            {"directory": name, "width": size.width, "layers": size.layers, "sleep_s": size.sleep_s}
        )
        with (
            LocalCluster(size.replicas, [PROGRAM, plan], environment=IMPORTABLE) as cluster,
            lifeline(cluster.pid),
        ):
            paces = Paces(Path(name))
            try:
                joins = [_one(paces, Path(name) / "hold", size) for _ in range(size.joins)]
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


def _one(paces: Paces, hold: Path, size: Size) -> Join:
    print("bench: a replica is killed …", file=sys.stderr, flush=True)
    paces.wait_for("all take part", lambda: paces.complete(size.replicas), WITHIN_S)
    hold.touch()
    pid = paces.pid(size.victim)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    _wait_for_steps(paces, killed_ns, size)
    plain_s = _plain_copy(paces, hold.with_name("copy"), size.state_bytes)
    time.sleep(size.calm_s)
    begin_ns = time.monotonic_ns()
    hold.unlink()
    print("bench: its successor joins …", file=sys.stderr, flush=True)
    paces.wait_for(
        "it is back", lambda: paces.pid(size.victim) != pid and paces.complete(size.replicas), WITHIN_S
    )
    first_ns = next(one.at_ns for one in paces.done[size.victim] if one.pid != pid and one.shards)
    paces.wait_for("a step together", lambda: all(d[-1].at_ns > first_ns for d in paces.done.values()))
    paces.read()
    end_ns = min(paces.done[member][-1].at_ns for member in size.members)
    arrived = paces.arrived[size.victim][-1]
    calm_ns = begin_ns - min(end_ns - begin_ns, int(size.calm_s * 1e9))
    # However slow the machine, there is a step in it: two ends of steps, of which the first is counted in.
    calm_ns = min(calm_ns, *(_steps_before(paces, member, begin_ns)[-2] for member in size.members))
    return Join(
        took_s=(end_ns - begin_ns) / 1e9,
        gap_s=_longest_s(paces, size, begin_ns, end_ns),
        calm_gap_s=_longest_s(paces, size, calm_ns, begin_ns),
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


def _wait_for_steps(paces: Paces, since_ns: int, size: Size) -> None:
    """Until the members have made some steps by themselves."""

    def made(member: int) -> int:
        return sum(one.at_ns > since_ns and one.members < size.replicas for one in paces.done[member])

    paces.wait_for(
        "the survivors go on",
        lambda: all(made(member) >= STEPS_OF_SETTLING for member in size.members),
        WITHIN_S,
    )


def _steps_before(paces: Paces, member: int, at_ns: int) -> list[int]:
    return [one.at_ns for one in paces.done[member] if one.at_ns <= at_ns]


def _longest_s(paces: Paces, size: Size, from_ns: int, to_ns: int) -> float:
    return max(gap for member in size.members for gap in paces.gaps_s(member, from_ns, to_ns))
