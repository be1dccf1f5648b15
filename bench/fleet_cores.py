"""What thousands of machines cost the coordinator's core: no sockets, no disk, and a clock of its own.

The cores of the machines are the real ones, too. Messages take no time, a commit takes some, and everybody
looks at the clock as often as in a job. Only what the coordinator's core does is timed.
"""

import time
from collections import deque
from collections.abc import Hashable, Sequence

import msgspec

from outlast.coordinator.storekeeper import FORMAT, Document
from outlast.protocol.coordinator import (
    Action,
    Commit,
    Committed,
    CoordinatorCore,
    Event,
    Load,
    Loaded,
    Publish,
    Received,
    Send,
    Tick,
)
from outlast.protocol.election import Campaign, Campaigned, Renew, Renewed
from outlast.protocol.member import MemberCore, Tell
from outlast.protocol.messages import Beat, Message, Phase, Report, ViewNews
from outlast.protocol.restarts import RestartPolicy
from outlast.protocol.supervision import AgentCore, Exit, Sample, StartReplica, TellCoordinator
from outlast.protocol.timing import Timing
from outlast.protocol.views import JobSpec, Membership

SLOTS = 20
COMMIT_S = 0.005
STEADY_S = 0.5
BACK_S = 0.25
"""Everybody has spoken twice by then."""
WARM_S = 1.5
"""A leader suspects nobody before, and its ticks are cheap."""
CALM_S = 4.0
"""A new leader has given up by then whom it has never heard."""
WITHIN_S = 60.0

Peer = tuple[str, int]


class Hall:
    """All machines and one coordinator after the other, in one place."""

    def __init__(self, machines: int) -> None:
        self._timing = Timing()
        self._spec = JobSpec(name="fleet", replicas=machines, shards=machines)
        self.now = 0.0
        self.cost_s: dict[str, list[float]] = {}
        """What the core took for each kind of event."""
        self.commits = 0
        self.document: Membership | None = None
        self._revision = 0
        self._term = 0
        self._due: deque[tuple[float, Event]] = deque()
        self.agents = [
            AgentCore(
                agent=f"agent-{index}",
                boot=1,
                replicas=(index,),
                timing=self._timing,
                policy=RestartPolicy(),
            )
            for index in range(machines)
        ]
        self.members: dict[int, MemberCore] = {}
        self.replace_coordinator()
        for index, agent in enumerate(self.agents):
            self._agent_acts(index, agent.start(self.now))

    def replace_coordinator(self) -> None:
        """Whatever was on its way to the one before is lost."""
        self._core = CoordinatorCore(self._spec, self._timing)
        self._due.clear()
        self._term += 1
        self._perform(self._core.start(self.now))

    @property
    def complete(self) -> bool:
        numbers = {member.view.number for member in self.members.values() if member.is_member}
        members = sum(member.is_member for member in self.members.values())
        return members == self._spec.replicas and len(numbers) == 1

    @property
    def agreed(self) -> Membership:
        assert self.document is not None
        return self.document

    def lives(self) -> set[tuple[int, int]]:
        return {(member.replica, member.incarnation) for member in self.agreed.view.members}

    def live(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._turn()

    def live_until_complete(self) -> None:
        deadline = self.now + WITHIN_S
        while not self.complete:
            if self.now > deadline:
                raise RuntimeError(f"the machines were not complete after {WITHIN_S:.0f} s of their own time")
            self._turn()

    def kill(self, index: int) -> None:
        process = self.members.pop(index).process
        ending = Exit(how="was killed by SIGKILL", killed=True)
        self._agent_acts(index, self.agents[index].exited(index, process, ending, self.now))

    def _turn(self) -> None:
        """A slot of the beat: some machines look at the clock, and so does the coordinator when it is due."""
        slot = round(self.now / self._slot_s) % SLOTS
        while self._due and self._due[0][0] <= self.now:
            self._handle(self._due.popleft()[1])
        for index in range(slot, len(self.agents), SLOTS):
            self._tick(index)
        if slot % (SLOTS // 2) == 0:
            self._handle(Tick())
        self.now += self._slot_s

    @property
    def _slot_s(self) -> float:
        return self._timing.beat_every_s / SLOTS

    def _tick(self, index: int) -> None:
        member = self.members.get(index)
        if member is not None:
            sample = Sample(
                pid=1,
                incarnation=member.incarnation,
                view=member.view.number,
                step=int(self.now),
                phase=Phase.COMPUTING,
                shard=index,
                joined=True,
            )
            self.agents[index].sampled({index: sample}, self.now)
            self._member_acts(index, member.tick(self.now))
        self._agent_acts(index, self.agents[index].tick(self.now))

    def _agent_acts(self, index: int, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case TellCoordinator():
                    self._handle(Received(("agent", index), action.message))
                case StartReplica():
                    member = MemberCore(
                        replica=index,
                        process=action.process,
                        agent=f"agent-{index}",
                        address=f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}:40000",
                        timing=self._timing,
                    )
                    self.members[index] = member
                    self._member_acts(index, member.tell(self.now))
                case _:
                    pass

    def _member_acts(self, index: int, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                self._handle(Received(("replica", index), action.message))

    def _hears(self, peer: Hashable, message: Message) -> None:
        assert isinstance(peer, tuple)
        role, index = peer
        if role == "agent":
            self._agent_acts(index, self.agents[index].received(message, self.now))
        elif (member := self.members.get(index)) is not None:
            self._member_acts(index, member.received(message, self.now))
            if (
                isinstance(message, ViewNews)
                and member.admitted
                and not member.is_member
                and not member.ready
            ):
                self._member_acts(index, member.set_ready(self.now))

    def _handle(self, event: Event) -> None:
        began = time.process_time()
        actions = self._core.handle(event, self.now)
        took_s = time.process_time() - began
        self.cost_s.setdefault(_kind(event), []).append(took_s)
        self._perform(actions)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._hears(action.to, action.message)
                case Publish():
                    for index in range(len(self.agents)):
                        self._hears(("agent", index), action.message)
                        self._hears(("replica", index), action.message)
                case Commit():
                    self.commits += 1
                    self._revision += 1
                    self.document = action.membership
                    self._due.append((self.now + COMMIT_S, Committed(action.ticket, self._revision)))
                case Load():
                    self._due.append((self.now, Loaded(self.document, self._revision, self._term)))
                case Campaign():
                    self._due.append((self.now, Campaigned(True, self._term, self._revision)))
                case Renew():
                    self._due.append((self.now, Renewed(True)))
                case _:
                    pass


def measure_cores(machines: int) -> dict[str, float]:
    hall = Hall(machines)
    hall.live_until_complete()
    found = {"gather_cpu_s": _sum_s(hall), "gather_commits": float(hall.commits)}
    hall.live(WARM_S)
    hall.cost_s.clear()
    hall.live(STEADY_S)
    found |= {
        "beat_us": _mean_s(hall, Beat.__name__) * 1e6,
        "report_us": _mean_s(hall, Report.__name__) * 1e6,
        "tick_ms": _mean_s(hall, Tick.__name__) * 1e3,
    }
    hall.cost_s.clear()
    hall.kill(machines // 2)
    hall.live_until_complete()
    found["death_cpu_s"] = _sum_s(hall)
    hall.cost_s.clear()
    before = hall.lives()
    hall.replace_coordinator()
    hall.live(BACK_S)
    found["failover_cpu_s"] = _sum_s(hall)
    hall.live(CALM_S)
    found |= {
        "evicted": float(len(before - hall.lives())),
        "document_bytes": float(len(msgspec.json.encode(Document(FORMAT, hall.agreed)))),
    }
    return found


def _kind(event: Event) -> str:
    return type(event.message).__name__ if isinstance(event, Received) else type(event).__name__


def _sum_s(hall: Hall) -> float:
    return sum(map(sum, hall.cost_s.values()))


def _mean_s(hall: Hall, kind: str) -> float:
    costs = hall.cost_s[kind]
    return sum(costs) / len(costs)
