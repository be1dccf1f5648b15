"""One job under one schedule: started, tortured, and judged.

The story waits for the steps at which faults strike, lets them strike, and takes back what lasts only for a
while. Afterwards it asks what can be asked of a job that is over. A launcher that is killed is the one fault
that a job cannot outlast: nothing of it may be left then, and the same command is given once more.
"""

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import disks
import signals
import targets
import wires
from leavings import left_in_folders, left_in_shared_memory, shared_memory
from machine import BusyLoops, Twist
from quiet import SCRIPT
from schedule import Fault, Schedule
from sizes import Sizes
from verdict import wrong_ledgers, wrong_results, wrong_words

from outlast.errors import OutlastError
from outlast.testing.cluster import LocalCluster

PACE_S = 0.004
STALLED_AFTER_S = 45.0
"""What is stopped is replaced within 15 s; two such things may have to happen one after the other."""
STEPS_IN_AFTER_S = 20.0
GONE_WITHIN_S = 15.0
LOOK_EVERY_S = 0.005
MEASURE_EVERY_S = 0.5


class Story:
    """`problems` is empty afterwards if all was well; `events` tells what was done, and when."""

    def __init__(self, schedule: Schedule, folder: Path, *, pace_s: float = PACE_S) -> None:
        self.schedule = schedule
        self.problems: list[str] = []
        self.events: list[str] = []
        self._folder = folder
        self._pace_s = pace_s
        self._sizes = Sizes()
        self._clusters: list[LocalCluster] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._held: list[signals.Victim] = []
        self._order = itertools.count()
        self._began = 0.0
        for name in ("traces", "ledgers", "temporary"):
            (folder / name).mkdir()
        self._twist = Twist(folder / "twist")

    def run(self) -> None:
        before = shared_memory()
        with contextlib.ExitStack() as stack:
            if disks.can_mount() and self.schedule.has("full"):
                stack.enter_context(disks.small_disk(self._folder / "vault"))
            # Where runs are kept is the same place for all launches, since it may be that disk that is full.
            if disks.can_mount() and any(fault.target == "runs" for fault in self.schedule.faults):
                stack.enter_context(disks.small_disk(self._folder / "runs"))
            code: int | None = None
            self._began = time.monotonic()
            waiting = [fault for fault in self.schedule.faults if fault.kind != "exit"]
            while code is None:
                code = self._launch(waiting)
            self._judge(code, before)

    def said(self) -> str:
        return "".join(cluster.said() + cluster.views() for cluster in self._clusters)

    def report(self) -> str:
        """All there is to know about a failure."""
        return "\n".join([*self.problems, "", self.outline(), "", self.said()[-12_000:]])

    def outline(self) -> str:
        """What was to be done, and what was."""
        return "\n".join([self.schedule.describe(), *self.events])

    def _launch(self, waiting: list[Fault]) -> int | None:
        """Give the command, and torture what it starts until it ends; None if the launcher was killed."""
        cluster = self._cluster()
        self._clusters.append(cluster)
        killed = False
        try:
            with cluster:
                killed = self._torture(cluster, waiting)
                code = cluster.wait(1.0)
                self._take_all_back()
                try:
                    cluster.wait_until("nothing is left", lambda: not cluster.processes(), GONE_WITHIN_S)
                except AssertionError as left:
                    self.problems.append(f"processes are left: {left}"[:500])
        except AssertionError as error:
            self.problems.append(str(error)[:500])
            return -1
        finally:
            self._take_all_back()
        return None if killed else code

    def _torture(self, cluster: LocalCluster, waiting: list[Fault]) -> bool:
        """Until the launcher has ended; whether it was killed."""
        highest, since = -1, time.monotonic()
        measure_at = 0.0
        killed = False
        while not self._has_ended(cluster):
            now = time.monotonic()
            step = self._step(cluster)
            if step != highest:
                highest, since = step, now
            if now > since + STEPS_IN_AFTER_S and self._held:
                self._step_in(step)
            if now > since + STALLED_AFTER_S:
                raise AssertionError(f"nothing has happened for {STALLED_AFTER_S:.0f} s at step {step}")
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            if now >= measure_at:
                self._sizes.look(targets.everybody(cluster.pid))
                measure_at = now + MEASURE_EVERY_S
            if waiting and not killed and step >= waiting[0].step:
                fault = waiting.pop(0)
                time.sleep(fault.after_s)  # Any moment of a step will do.
                killed |= self._strike(cluster, fault)
                continue
            time.sleep(LOOK_EVERY_S)
        return killed

    def _step_in(self, step: int) -> None:
        """Wake who is held. The last one that has the training state is waited for, however long it is
        stopped: nobody else could go on from there, so whoever has stopped it has to decide. One whose data
        worker is stopped stands as still as if it were stopped itself."""
        at_s = time.monotonic() - self._began
        self.events.append(f"{at_s:6.2f} s, step {step}: nothing moves, so who is held is woken")
        for victim in self._held:
            signals.wake(victim)
        self._held.clear()

    def _strike(self, cluster: LocalCluster, fault: Fault) -> bool:
        """Let a fault happen; whether it was the launcher's end."""
        before = self._step(cluster)
        try:
            met = self._met(cluster, fault)
        except ProcessLookupError:
            met = "nobody, it was gone"
        except OSError as error:
            met = f"nobody: {error}"
        at_s = time.monotonic() - self._began
        self.events.append(f"{at_s:6.2f} s, step {before}: {fault.describe()} → {met}")
        return fault.kind == "kill" and fault.target == "launcher"

    def _met(self, cluster: LocalCluster, fault: Fault) -> str:
        """Strike, and say whom or what it was that was struck."""
        match fault.kind:
            case "kill" | "stop" | "hold":
                there = targets.of_kind(cluster.pid, fault.target)
                if not there:
                    return "nobody"
                pid = there[fault.which % len(there)]
                if fault.kind == "kill":
                    signals.kill(pid)
                elif fault.kind == "stop":
                    victim = signals.stop(pid)
                    self._later(fault.lasting_s, lambda: signals.wake(victim))
                elif fault.target in ("replica", "worker"):
                    self._held.append(signals.stop(pid))
                else:
                    signals.stop(pid).close()
                return f"pid {pid}"
            case "cut" | "lose" | "add":
                return self._on_a_wire(cluster, fault)
            case "full":
                if not disks.can_mount():
                    return "nothing: it takes root to have a small disk"
                place = self._folder / fault.target
                disks.fill(place)
                self._later(fault.lasting_s, lambda: disks.make_room(place))
            case "slow":
                self._twist.slow(fault.target)
                self._later(fault.lasting_s, lambda: self._twist.quick(fault.target))
            case "busy":
                loops = BusyLoops(fault.amount)
                self._later(fault.lasting_s, loops.end)
            case "clock":
                self._twist.jump(fault.amount)
        return "done"

    def _on_a_wire(self, cluster: LocalCluster, fault: Fault) -> str:
        owners = {pid: kind for kind, pid in targets.everybody(cluster.pid) if kind != "worker"}
        there = wires.connections(owners, fault.target)
        if not there:
            return "nothing"
        pair = there[fault.which % len(there)]
        end, other = pair if fault.which // len(there) % 2 else pair[::-1]
        if fault.kind == "cut":
            wires.cut(end, fault.how)
            how = "cut"
        elif fault.kind == "lose":
            how = f"{wires.lose(end, fault.amount)} bytes lost"
        else:
            how = f"{wires.add(end, fault.amount)} bytes added"
        return f"{how} between {owners[end.pid]} {end.pid} and {owners[other.pid]} {other.pid}"

    def _judge(self, code: int, shared_before: set[str]) -> None:
        folder, last = self._folder, self._clusters[-1]
        for victim in self._held:
            victim.close()
        sizes = [
            f"{kind} {size.descriptors}/{size.memory_mib}" for kind, size in self._sizes.largest().items()
        ]
        self.events.append(f"descriptors/MiB at last: {', '.join(sizes)}")
        if code != 0:
            self.problems.append(f"the exit code is {code}")
        self.problems += wrong_results(
            self.schedule, folder / "traces", last.said("stdout"), last.said("stderr") + last.views()
        )
        ledgers = folder / "ledgers" / ("all" if self.schedule.every else str(len(self._clusters)))
        self.problems += wrong_ledgers(self.schedule, ledgers)
        self.problems += wrong_words(self.schedule, self.said())
        self.problems += left_in_folders(folder / "temporary", [cluster.home for cluster in self._clusters])
        self.problems += left_in_shared_memory(shared_before)
        self.problems += self._sizes.too_much()

    def _cluster(self) -> LocalCluster:
        schedule, folder = self.schedule, self._folder
        launch = len(self._clusters) + 1
        home = folder / f"home-{launch}"
        home.mkdir(mode=0o700)
        if (folder / "runs").exists():
            (folder / "runs" / str(launch)).mkdir(mode=0o700)
            (home / "runs").symlink_to(folder / "runs" / str(launch))
        # Ledgers are appended to: a run that begins anew has a folder of its own, one that goes on has not.
        ledgers = folder / "ledgers" / ("all" if schedule.every else str(launch))
        command = [SCRIPT, "--steps", str(schedule.steps), "--shards", str(schedule.shards)]
        command += ["--traces", str(folder / "traces"), "--ledger", str(ledgers)]
        command += ["--pace", str(self._pace_s), "--workers", str(schedule.workers)]
        command += ["--verify", schedule.verify, *(["--norm"] if schedule.norm else [])]
        if schedule.every:
            command += ["--checkpoints", str(folder / "vault"), "--every", str(schedule.every)]
        exits = [fault for fault in schedule.faults if fault.kind == "exit"]
        command += ["--exits", *(f"{fault.how}@{fault.step}:{fault.which}" for fault in exits)]
        twisted = self._twist.environment() if schedule.has("slow", "clock") else {}
        return LocalCluster(
            schedule.replicas,
            command,
            options=["--agents", str(schedule.agents)],
            environment={"TMPDIR": str(folder / "temporary"), **twisted},
            home=home,
        )

    def _has_ended(self, cluster: LocalCluster) -> bool:
        try:
            cluster.wait(0.0)
        except AssertionError:
            return False
        return True

    def _step(self, cluster: LocalCluster) -> int:
        # A page may just be made, or lie on a disk that is full.
        with contextlib.suppress(OSError, OutlastError, ValueError):
            return max(cluster.steps().values(), default=0)
        return 0

    def _later(self, after_s: float, undo: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + after_s, next(self._order), undo))

    def _take_all_back(self) -> None:
        while self._due:
            heapq.heappop(self._due)[2]()
