"""What an agent tells of its replicas: that they were started, took part, ended, and why.

The agent sees each of these more than once (a page is read several times a second, an exit is repeated until
it is agreed on) and tells it once.
"""

from collections.abc import Callable, Iterable

from outlast.protocol.events import AnyEvent, Died, Joined, LifeOver, Restarted, Started
from outlast.protocol.messages import Departure
from outlast.protocol.supervision import Sample

ITS_AGENT_DIED = "died with its agent"


class Telling:
    def __init__(self, emit: Callable[[AnyEvent], None]) -> None:
        self._emit = emit
        self._lives: dict[int, int] = {}
        """Replica → its newest life that was seen on its page."""
        self._processes: dict[int, tuple[int, int]] = {}
        """Replica → process and pid of the one that runs."""
        self._causes: dict[int, str] = {}
        self._departed: set[int] = set()

    def started(self, replica: int, process: int, pid: int, *, again: bool) -> None:
        self._processes[replica] = process, pid
        who = f"replica-{replica}"
        if again:
            cause = self._causes.get(replica, ITS_AGENT_DIED)
            self._emit(Restarted(who=who, process=process, pid=pid, cause=cause))
        else:
            self._emit(Started(who=who, process=process, pid=pid))

    def sampled(self, replica: int, sample: Sample) -> None:
        life = sample.incarnation
        if life and life != self._lives.get(replica):
            self._lives[replica] = life
            process, pid = self._processes.get(replica, (0, sample.pid))
            self._emit(Joined(replica=replica, incarnation=life, process=process, pid=pid))

    def departed(self, departures: Iterable[Departure], *, leaving: bool) -> None:
        """`leaving`: the agent goes, and was to end them."""
        for one in departures:
            if one.process in self._departed:
                continue
            self._departed.add(one.process)
            self._causes[one.replica] = one.how
            self._emit(self._ending(one, leaving))

    def _ending(self, one: Departure, leaving: bool) -> AnyEvent:
        life = self._lives.get(one.replica, 0)
        if one.finished or one.in_order or leaving:
            return LifeOver(
                replica=one.replica,
                incarnation=life,
                reason=f"it {one.how}",
                finished=one.finished,
                closes=one.closes,
            )
        return Died(
            who=f"replica-{one.replica}",
            process=one.process,
            incarnation=life,
            cause=one.how,
            step=one.step,
        )
