"""What the replicas of `bench/pacer.py` have written: who ended which step when, in which process."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.following import Following
from bench.stats import median

PROGRAM = str(Path(__file__).with_name("pacer.py"))
"""What the replicas run; needs `IMPORTABLE`, for the benchmarks are not installed with the package."""

IMPORTABLE = {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).strip(
        os.pathsep
    )
}
LOOK_EVERY_S = 0.02
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Done:
    """One process has completed one step."""

    at_ns: int
    pid: int
    step: int
    shards: int
    """How many it computed itself; none for a learner."""
    members: int


@dataclass(frozen=True)
class Arrived:
    """The state of the others has come to a process."""

    at_ns: int
    pid: int
    size_bytes: int
    took_s: float


class Paces:
    """Everything written so far in a directory, read on as it grows."""

    def __init__(self, directory: Path) -> None:
        self._following = Following(directory, "steps")
        self.done: dict[int, list[Done]] = {}
        """Replica → its steps, in the order in which it made them."""
        self.arrived: dict[int, list[Arrived]] = {}
        self.plain_s: dict[int, float] = {}
        """Process → how long a plain copy took it."""
        self.joining_at_ns: dict[int, int] = {}
        """Process → when it began to join."""

    def read(self) -> None:
        for replica, line in self._following.lines():
            self._add(replica, line)

    def _add(self, replica: int, line: bytes) -> None:
        # One that was killed may have left half a line, to which its successor adds a whole one.
        entry = json.loads(line[line.rindex(b"{") :])
        if "step" in entry:
            self.done.setdefault(replica, []).append(Done(**entry))
        elif "took_s" in entry:
            arrived = Arrived(entry["at_ns"], entry["pid"], entry["size_bytes"], entry["took_s"])
            self.arrived.setdefault(replica, []).append(arrived)
        elif "plain_s" in entry:
            self.plain_s[entry["pid"]] = entry["plain_s"]
        else:
            self.joining_at_ns[entry["pid"]] = entry["at_ns"]

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            self.read()
            if condition():
                return
            if time.monotonic() > deadline:
                newest = {replica: done[-1] for replica, done in sorted(self.done.items())}
                raise TimeoutError(f"{what}: not within {timeout_s} s; the newest steps are {newest}")
            time.sleep(LOOK_EVERY_S)

    def complete(self, replicas: int) -> bool:
        """Whether all take part in the steps."""
        newest = [done[-1] for done in self.done.values()]
        return len(newest) == replicas and all(d.shards > 0 and d.members == replicas for d in newest)

    def pid(self, replica: int) -> int:
        return self.done[replica][-1].pid

    def lives(self) -> dict[int, int]:
        """Replica → how many processes of it have made steps."""
        return {replica: len({one.pid for one in done}) for replica, done in self.done.items()}

    def first_without(self, since_ns: int, victim: int, replicas: int) -> dict[int, int]:
        """Survivor → when it completed its first step, after that moment, in a job with a member less."""
        found: dict[int, int] = {}
        for replica, done in self.done.items():
            after = [one.at_ns for one in done if one.at_ns > since_ns and one.members < replicas]
            if replica != victim and after:
                found[replica] = after[0]
        return found

    def gaps_s(self, replica: int, from_ns: int, to_ns: int) -> list[float]:
        """Between two steps that one process made in that time."""
        within = [one for one in self.done[replica] if from_ns <= one.at_ns <= to_ns]
        return [(b.at_ns - a.at_ns) / 1e9 for a, b in pairwise(within) if a.pid == b.pid]

    def step_s(self) -> float:
        """The median step of all."""
        ends = 1 << 62
        return median([gap for replica in self.done for gap in self.gaps_s(replica, 0, ends)])
