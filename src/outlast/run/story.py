"""What a run has gone through so far, told by one who hears of what happens and asks how things stand.

The launcher keeps one of these for its display. Of what happens it hears as everybody does, by events
(`hear`), and says it in sentences: who was lost and why, who is back after how long. How things stand is the
coordinator's answer, of which it makes scenes to show. It decides nothing, so it may miss a view or two.
"""

from collections.abc import Sequence
from dataclasses import replace

from outlast.protocol import events
from outlast.protocol.messages import Phase, Status
from outlast.protocol.views import Standing
from outlast.run.faults import Fault, fault_of, leaves
from outlast.run.pace import Pace, Toll
from outlast.run.scene import STOPPING, Scene, first_stage, scene_of
from outlast.run.words import counted, duration


class Story:
    def __init__(self, run: str, *, replicas: int, preload: Sequence[str] = ()) -> None:
        self.faults: list[Fault] = []
        self.closed = False
        """Whether the run is ending, so that who goes is no fault any more."""
        self.resumed_from: int | None = None
        """The step whose checkpoint the run has gone on from."""
        self._replicas = replicas
        self._preload = tuple(preload)
        self._view = events.View(number=0)
        self._unborn: set[tuple[int, int]] = set()
        """Processes, each with its replica, that had not joined when they were last seen."""
        self._saves = False
        self._saved = -1
        """Whether checkpoints are made, and the newest step that was known to be saved."""
        self._jolted = False
        """Whether there was a fault since the last look, which may be over already."""
        self._pace = Pace()
        self._toll = Toll()
        self.scene = Scene(run=run, wanted=replicas, stage=first_stage(preload))

    @property
    def lost_s(self) -> float:
        return self._toll.lost_s

    def close(self) -> None:
        """The run is over."""
        self.closed = True
        self._toll.close()

    def hear(self, event: events.AnyEvent, now: float) -> list[str]:
        """What there is to say about something that happened."""
        match event:
            case events.View():
                return self._hear_view(event, now)
            case events.Restarted() if event.who.startswith("coordinator"):
                self._coordinator_restarted(now)
            case events.Ended():
                self.close()
        return []

    def _hear_view(self, view: events.View, now: float) -> list[str]:
        if view.number <= self._view.number or self.closed:
            return []
        before, self._view = self._view, view
        back = self._returned(view, now)
        if view.lineage > before.lineage:
            return [self._begins(view, now)]
        said = [
            f"replica {fault.replica} is back after {duration(now - fault.at)}: "
            f"{self._some(view, 'trains', 'train')}, at step {self.scene.step:,}"
            for fault in back
        ]
        lost = [life for life in _lives(before) if life not in _lives(view)]
        found = [
            Fault(why=why, replica=life.replica, step=self.scene.step, at=now)
            for life in lost
            if (why := fault_of(view.cause, life.replica)) is not None
        ]
        if not lost and not view.planned and before.members:
            found.append(Fault(why=view.cause, replica=None, step=self.scene.step, at=now))
        self.faults += found
        self._jolted |= bool(found)
        happened = [fault.sentence() for fault in found]
        happened += [f"replica {life.replica} leaves" for life in lost if leaves(view.cause, life.replica)]
        if happened:
            said.append(f"{'; '.join(happened)}; {self._who_goes_on(view)}")
        return said

    def heard_status(self, status: Status, now: float) -> list[str]:
        said = self.hear(events.View.of(status.view), now)
        self._look_for_stillborn(status, now)
        pulses = [pulse for pulse in status.pulses if status.view.member(pulse.replica) is not None]
        at_work = any(pulse.phase is not Phase.STARTING for pulse in pulses)
        last = self.faults[-1].story() if self.faults else ""
        scene = scene_of(status, fault=last, preload=self._preload, step_s=self._pace.step_s)
        if at_work and not self.closed:
            self._pace.saw(scene.step, now)
            open_faults = any(fault.open and not self._is_barred(fault, status) for fault in self.faults)
            disturbed, self._jolted = open_faults or self._jolted, False
            aside = any(pulse.phase is Phase.ASIDE for pulse in pulses)
            self._toll.saw(scene.step, now, disturbed=disturbed, aside=aside)
        if self.resumed_from is None and status.view.lineage == 1:
            older = [pulse.saved for pulse in pulses if pulse.saved >= 0 and pulse.saved_ago_s is None]
            self.resumed_from = max(older, default=None)
        self._saves |= any(pulse.saves for pulse in pulses)
        self._saved = max([self._saved, *(pulse.saved for pulse in pulses)])
        if self.closed:
            scene = replace(scene, stage=STOPPING, detail="")
        if not pulses:
            # When all have left, the last that was known of them is better than nothing.
            last_known = self.scene
            scene = replace(scene, step=last_known.step, total=last_known.total, loss=last_known.loss)
        self.scene = scene
        return said

    def _look_for_stillborn(self, status: Status, now: float) -> None:
        """Who dies before it joins was in no view; how it died, its agent has said."""
        gone = {(s.replica, s.process) for s in status.seats if s.standing is Standing.GONE}
        if not self.closed:
            self.faults += [
                Fault(
                    why=f"replica {replica} died before it joined",
                    replica=replica,
                    step=self.scene.step,
                    at=now,
                )
                for replica, _ in sorted(self._unborn & gone)
            ]
        seated = {(one.replica, one.process) for one in status.seats}
        starting = {(pulse.replica, pulse.process) for pulse in status.starting}
        self._unborn = (self._unborn - seated) | starting

    def _coordinator_restarted(self, now: float) -> None:
        """Which costs nothing by itself."""
        if not self.closed:
            why = "the coordinator was killed and replaced"
            self.faults.append(Fault(why=why, replica=None, step=self.scene.step, at=now))

    def _returned(self, view: events.View, now: float) -> list[Fault]:
        """The last fault of each replica that takes part again."""
        # A shadow only ever follows.
        present = {m.replica for m in view.members}
        present |= {m.replica for m in view.learners if m.replica >= self._replicas}
        back = {fault.replica: fault for fault in self.faults if fault.open and fault.replica in present}
        for fault in self.faults:
            if fault.open and fault.replica in present:
                fault.back_at = now
        return list(back.values())

    def _begins(self, view: events.View, now: float) -> str:
        if view.lineage == 1:
            return self._some(view, "has joined", "have joined")
        if self._saved >= 0:
            where = f"from a checkpoint, of step {self._saved:,} or newer"
        elif self._saves:
            where = "from the start, since nothing was saved yet"
        else:
            where = "from the start, since the script gives no checkpoints= to outlast.join"
        since = f", after {duration(now - self.faults[-1].at)}" if self.faults else ""
        who = self._some(view, "begins again", "begin again")
        return f"no replica was left that had the state: {who}{since}, {where}"

    def _who_goes_on(self, view: events.View) -> str:
        if not view.members:
            return "nobody is left to go on; all are being started again"
        if view.paused:
            return self._some(view, "is left, and waits for more", "are left, and wait for more")
        return self._some(view, "goes on", "go on")

    def _some(self, view: events.View, one_does: str, several_do: str) -> str:
        does = one_does if len(view.members) == 1 else several_do
        return f"{len(view.members)} of {counted(self._replicas, 'replica')} {does}"

    def _is_barred(self, fault: Fault, status: Status) -> bool:
        return any(seat.barred for seat in status.seats if seat.replica == fault.replica)


def _lives(view: events.View) -> tuple[events.Life, ...]:
    return (*view.members, *view.learners)
