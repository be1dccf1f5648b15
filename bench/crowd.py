"""Many machines in one process: a real agent's core and a real replica's core each, on connections of their
own.

`python -m bench.crowd RUN FIRST COUNT`, started by `bench.fleet`. It is told what to do by one JSON object
per line on its standard input, and answers each with one on its standard output. It ends with its input.
"""

import asyncio
import json
import os
import resource
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from bench.crowd_line import Line
from outlast.protocol.member import Adopt, FencedOff, MemberAction, MemberCore, Tell
from outlast.protocol.messages import Admitted, Beat, BeatAck, Message, Phase, ReportAck, ViewNews
from outlast.protocol.restarts import RestartPolicy
from outlast.protocol.supervision import AgentAction, AgentCore, Exit, Sample, StartReplica, TellCoordinator
from outlast.protocol.views import View
from outlast.wire.control import CONTROL
from outlast.wire.rundir import RunDirectory

SLOTS = 20
"""Machines beat one after the other, in so many groups."""
STEP_S = 0.5
VIEWS_KEPT = 64


class Sightings:
    """Which views have arrived, and when each of the replicas here had them."""

    def __init__(self) -> None:
        self.news: dict[int, ViewNews] = {}
        self._lives: dict[int, frozenset[tuple[int, int]]] = {}
        self._heard: dict[int, deque[tuple[int, float]]] = {}

    def note(self, replica: int, view: View, now: float) -> None:
        self._heard.setdefault(replica, deque(maxlen=VIEWS_KEPT)).append((view.number, now))
        if view.number not in self._lives:
            lives = (*view.members, *view.learners)
            self._lives[view.number] = frozenset((one.replica, one.incarnation) for one in lives)
            for old in [number for number in self._lives if number <= view.number - VIEWS_KEPT]:
                del self._lives[old]

    def without(self, replica: int, incarnation: int, after: int) -> tuple[int, float]:
        """How many others have received the first view without that life, or a later one, and when the last
        of them had it."""
        later = (number for number in sorted(self._lives) if number > after)
        first = next((n for n in later if (replica, incarnation) not in self._lives[n]), None)
        if first is None:
            return 0, 0.0
        firsts_at = [
            next((at for number, at in heard if number >= first), None)
            for other, heard in self._heard.items()
            if other != replica
        ]
        known = [at for at in firsts_at if at is not None]
        return len(known), max(known, default=0.0)

    def decode(self, payload: bytes) -> Message:
        """A view has some ten thousand bytes, and comes once for everybody: read it once, too."""
        number = view_number(payload)
        if number is None:
            return CONTROL.decode(payload)
        known = self.news.get(number)
        if known is None:
            message = CONTROL.decode(payload)
            assert isinstance(message, ViewNews)
            known = self.news[number] = message
            self.news.pop(number - VIEWS_KEPT, None)
        return known


def view_number(payload: bytes) -> int | None:
    """The number of a view, without a look at the rest; None if this is no news of one."""
    head = payload[:64]
    at = head.find(b"\xa6number")
    if at < 0 or b"\xa8ViewNews" not in head[:at]:
        return None
    first = head[at + 7]
    if first < 0x80:
        return first
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(first)
    return int.from_bytes(head[at + 8 : at + 8 + size], "big") if size is not None else None


class Machine:
    """An agent and its one replica."""

    def __init__(self, crowd: "Crowd", index: int) -> None:
        self._crowd = crowd
        self._index = index
        self._boot = 0
        self._frozen: list[socket.socket] = []
        self.silent = False
        self.start()

    def start(self) -> None:
        crowd, name = self._crowd, f"agent-{self._index}"
        for sock in self._frozen:
            sock.close()
        self._frozen.clear()
        self.silent = False
        self._boot += 1
        self._sent_at: dict[int, float] = {}
        self._agent = AgentCore(
            agent=name,
            boot=self._boot,
            replicas=(self._index,),
            timing=crowd.timing,
            policy=RestartPolicy(),
        )
        self.agent_back_at = self.member_back_at = 0.0
        self._agent_line = crowd.line("agent", name, self._agent_opened, self._agent_heard)
        self._member_line: Line | None = None
        self.act(self._agent.start(self._now()))

    @property
    def open(self) -> bool:
        return self._agent_line.open and self._member_line is not None and self._member_line.open

    def die(self) -> float:
        """The replica is killed, and its agent sees that."""
        assert self._member_line is not None
        self._member_line.close()
        self._member_line = None
        now = self._now()
        ending = Exit(how="was killed by SIGKILL", killed=True)
        self.act(self._agent.exited(self._index, self.member.process, ending, now))
        return now

    def fall_silent(self) -> float:
        """The whole machine is gone, and nobody sees that."""
        self.silent = True
        for line in (self._agent_line, self._member_line):
            sock = line.freeze() if line is not None else None
            if sock is not None:
                self._frozen.append(sock)
        return self._now()

    def tick(self, now: float) -> None:
        if self.silent:
            return
        self._agent_line.look(now)
        if self._member_line is not None:
            self._member_line.look(now)
            self._agent.sampled({self._index: self._sample(now)}, now)
            self.tell(self.member.tick(now))
        self.act(self._agent.tick(now))

    def _sample(self, now: float) -> Sample:
        step = int((now - self._started_at) / STEP_S)
        return Sample(
            pid=1_000_000 + self._index,
            incarnation=self.member.incarnation,
            view=self.member.view.number,
            step=step,
            phase=Phase.COMPUTING if self.member.is_member else Phase.STARTING,
            quiet_s=0.05,
            shard=self._index,
            joined=True,
            contributed=step,
            total=1_000_000,
            loss=0.5,
            samples=4096,
        )

    def act(self, actions: list[AgentAction]) -> None:
        for action in actions:
            match action:
                case TellCoordinator():
                    if isinstance(action.message, Beat):
                        self._sent_at[action.message.number] = self._now()
                    self._agent_line.say(action.message)
                case StartReplica():
                    self._start_replica(action.process)
                case _:
                    pass

    def _start_replica(self, process: int) -> None:
        crowd = self._crowd
        self._started_at = self._now()
        self.member = MemberCore(
            replica=self._index,
            process=process,
            agent=f"agent-{self._index}",
            address=f"10.{self._index >> 16}.{self._index >> 8 & 255}.{self._index & 255}:40000",
            timing=crowd.timing,
        )
        name = f"replica-{self._index}"
        self._member_line = crowd.line("replica", name, self._member_opened, self._member_heard)

    def tell(self, actions: list[MemberAction]) -> None:
        for action in actions:
            match action:
                case Tell() if self._member_line is not None:
                    self._member_line.say(action.message)
                case Adopt() if not self.member.is_member and not self.member.ready:
                    # There is no state to be given here.
                    self.tell(self.member.set_ready(self._now()))
                case FencedOff():
                    self._crowd.fenced += 1
                    self.tell(self.member.rejoin(self._now()))
                case _:
                    pass

    def _agent_opened(self) -> None:
        self.agent_back_at = 0.0
        self._sent_at.clear()
        self.act(self._agent.beat(self._now()))

    def _agent_heard(self, message: Message) -> None:
        now = self._now()
        if isinstance(message, BeatAck):
            sent_at = self._sent_at.pop(message.number, None)
            if sent_at is not None:
                self._crowd.lags_s.append(now - sent_at)
            self.agent_back_at = self.agent_back_at or now
        self.act(self._agent.received(message, now))

    def _member_opened(self) -> None:
        self.member_back_at = 0.0
        self.tell(self.member.tell(self._now()))

    def _member_heard(self, message: Message) -> None:
        now = self._now()
        if isinstance(message, ReportAck | Admitted):
            self.member_back_at = self.member_back_at or now
        elif isinstance(message, ViewNews):
            self._crowd.sightings.note(self._index, message.view, now)
        self.tell(self.member.received(message, now))

    def _now(self) -> float:
        return time.monotonic()


class Crowd:
    def __init__(self, directory: RunDirectory, first: int, count: int) -> None:
        self._run = directory.read()
        self._token = directory.token()
        self._first = first
        self.timing = self._run.timing()
        self.sightings = Sightings()
        self.fenced = 0
        self.lags_s: list[float] = []
        self._machines = [Machine(self, first + index) for index in range(count)]

    def line(self, role: str, name: str, on_open: Any, on_message: Any) -> Line:
        return Line(
            self._run,
            self._token,
            role=role,
            name=name,
            # An agent is told no more of a view than its number, so it must not read it for replicas.
            decode=self.sightings.decode if role == "replica" else CONTROL.decode,
            on_open=on_open,
            on_message=on_message,
        )

    async def live(self) -> None:
        """Every machine looks at its clock once per beat."""
        due, slot = time.monotonic(), 0
        while True:
            now = time.monotonic()
            for machine in self._machines[slot::SLOTS]:
                machine.tick(now)
            slot = (slot + 1) % SLOTS
            due = max(due + self.timing.beat_every_s / SLOTS, now)
            await asyncio.sleep(due - time.monotonic())

    def told(self, order: dict[str, Any]) -> dict[str, Any]:
        match order["do"]:
            case "die":
                machine = self._machine(order)
                life = machine.member.incarnation
                return {"at": machine.die(), "incarnation": life, "view": machine.member.view.number}
            case "fall silent":
                machine = self._machine(order)
                at = machine.fall_silent()
                return {
                    "at": at,
                    "incarnation": machine.member.incarnation,
                    "view": machine.member.view.number,
                }
            case "start":
                self._machine(order).start()
                return {}
            case "without":
                count, at = self.sightings.without(order["replica"], order["incarnation"], order["view"])
                return {"count": count, "at": at}
            case "lags":
                lags_s, self.lags_s = self.lags_s, []
                return {"lags_s": lags_s}
        return self._state()

    def _machine(self, order: dict[str, Any]) -> Machine:
        index: int = order["replica"] - self._first
        return self._machines[index]

    def _state(self) -> dict[str, Any]:
        here = [machine for machine in self._machines if not machine.silent]
        used = resource.getrusage(resource.RUSAGE_SELF)
        backs_at = [min(machine.agent_back_at, machine.member_back_at) for machine in here if machine.open]
        last_at = [max(machine.agent_back_at, machine.member_back_at) for machine in here if machine.open]
        return {
            "views": sorted({machine.member.view.number for machine in here if machine.member.is_member}),
            "members": sum(machine.member.is_member for machine in here),
            "answered": sum(at > 0 for at in backs_at),
            "last_answered_at": max(last_at, default=0.0),
            "fenced": self.fenced,
            "cpu_s": used.ru_utime + used.ru_stime,
        }


async def main(directory: RunDirectory, first: int, count: int) -> None:
    crowd = Crowd(directory, first, count)
    loop = asyncio.get_running_loop()
    living = loop.create_task(crowd.live())
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while (line := await orders.readline()) and not living.done():
        print(json.dumps(crowd.told(json.loads(line))), flush=True)
    if living.done():
        living.result()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main(RunDirectory(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])))
    os._exit(0)
