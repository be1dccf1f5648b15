"""Eight stand-ins under real control: the job that all benchmarks run, and the waits they share."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.lifeline import lifeline
from bench.traces import Adoption, Traces
from outlast.protocol.messages import Status
from outlast.testing.cluster import LocalCluster

REPLICAS = 8
TINY_REPLICAS = 2
ENDLESS = "1000000000"
LAST_WORDS = 4000


class Crew:
    """A running job of stand-ins, and what they trace."""

    def __init__(self, cluster: LocalCluster, traces: Traces, replicas: int) -> None:
        self.cluster = cluster
        self.traces = traces
        self.replicas = replicas

    def wait_until_complete(self) -> None:
        """All replicas are members of one view, and know it."""
        self._wait("all are members", lambda: self.traces.all_in_one_view(self.replicas))

    def wait_until_warm(self) -> Status:
        """The same, and every one has made enough steps in its life for its pace to be known."""
        self.wait_until_complete()
        return self.cluster.wait_for("all are warm", self._warm)

    def _warm(self, status: Status) -> bool:
        # By lives, since the newest pulse may be of the life before, in the same process.
        lives = {(member.replica, member.incarnation) for member in status.view.members}
        warm = {(pulse.replica, pulse.incarnation) for pulse in status.pulses if pulse.pace_s > 0}
        return len(lives) == self.replicas and lives <= warm

    def victim(self, replica: int) -> Adoption:
        """Which process and which life the replica has at the moment."""
        return self.traces.newest[replica]

    def wait_until_removed(self, victim: Adoption, since_ns: int) -> float:
        """Seconds from that moment until the last survivor had adopted a view without the victim."""
        survivors = self.replicas - 1
        self._wait(
            f"replica {victim.replica} is out of the view",
            lambda: len(self.traces.adopted_without(victim, since_ns)) >= survivors,
        )
        return (max(self.traces.adopted_without(victim, since_ns).values()) - since_ns) / 1e9

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        try:
            self.traces.wait_for(what, condition)
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.cluster.said()[-LAST_WORDS:]}") from error


@contextmanager
def crew(*arguments: str, replicas: int = REPLICAS, options: Sequence[str] = ()) -> Iterator[Crew]:
    """A job with default settings; `arguments` are the stand-ins'. It ends with the block."""
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        traces = Path(name)
        command = ["-m", "outlast.testing.standin", "--steps", ENDLESS, "--trace", name, *arguments]
        with LocalCluster(replicas, command, options=options) as cluster, lifeline(cluster.pid):
            running = Crew(cluster, Traces(traces), replicas)
            running.wait_until_complete()
            yield running
