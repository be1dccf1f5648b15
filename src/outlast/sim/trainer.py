"""A training thread: applies records in order, computes when there is a step to contribute to, else waits.

It lags behind the cores: a view may change while it computes. What it has computed for a step stays good in
the next view, where it computes only what has been added to its own share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from outlast.protocol.messages import Phase
from outlast.protocol.step_words import BLANK, Lost, Mode, Pin, Trial
from outlast.sim.ending import Ending

if TYPE_CHECKING:
    from outlast.sim.engine import Engine


class Trainer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sim = engine.node.sim
        self.applied = BLANK
        self.digest = 0
        """Of the whole state: the chain of all records applied."""
        self._busy = False
        self._attempt: tuple[int, int] | None = None
        self._computed: tuple[int, int] | None = None
        self._testified: tuple[int, int] | None = None
        self._pins: list[tuple[Pin, int]] = []
        self._received: tuple[int, int, int, int] | None = None
        self.bent = False
        """Whether the state is not what the records say; see `truth.py`."""
        self.warp = 0
        """What a flip has made of the buffers, until the next record sets them anew; 0 if they are right."""
        self.copies: dict[int, tuple[int, bool]] = {}
        """States that were copied to be compared, and whether they were bent."""
        self.void = False
        """Whether the state was found to be wrong, and there is none to go back to."""
        self._copy_at = BLANK
        self._back_to: int | None = None
        self._ends_in: tuple[int, int] | None = None
        self.ended = BLANK
        self.chief = -1
        """Part of the state: the chief of the last step, or who began the lineage."""
        self._chiefs: dict[int, int] = {}
        self.ending = Ending(engine)
        self.final_step = BLANK
        """The step whose state this life was given as the final one."""
        self._kept: tuple[int, int, bool, int] | None = None
        """The state at the end of the loop, with its step, as it was before it was compared."""

    @property
    def loading(self) -> bool:
        return self._received is not None

    # What the engine tells it.

    def view_changed(self) -> None:
        self._attempt = None

    def attempt(self, step: int, trial: int) -> None:
        self._attempt = (step, trial)

    def pin(self, pin: Pin, view: int) -> None:
        self._sim.history.pins(self._engine, pin, self.applied if self._back_to is None else self._back_to)
        self._pins.append((pin, view))

    @property
    def goes_back(self) -> bool:
        """Whether the state is void, and an earlier one about to be loaded."""
        return self._back_to is not None

    def copy_at(self, step: int) -> None:
        """Copy the state after this step, and digest it."""
        self._copy_at = step
        self._look_at_copy()

    def _look_at_copy(self) -> None:
        if self.applied != self._copy_at or self.applied == BLANK or self._back_to is not None:
            return
        step, self._copy_at = self.applied, BLANK
        verifying = self._engine.core.verifying
        kept = verifying.verified if verifying is not None else BLANK
        self.copies = {one: copy for one, copy in self.copies.items() if one == kept}
        self.copies[step] = (self.digest, self.bent)
        self._sim.truth.copies(self._engine, step)
        whole = hash((self.digest, self.warp)) if self.warp else self.digest
        digest = (whole & (1 << 64) - 1).to_bytes(8, "big")
        delay_s = self._sim.world.chance.choice([0.002, 0.02, 0.2])
        self._sim.world.after(delay_s, self._engine.node, self._digested, step, digest)

    def _digested(self, step: int, digest: bytes) -> None:
        if not self._engine.over:
            self._engine.perform(self._engine.participant.digested(step, digest, self._sim.world.now))

    def go_back(self, step: int, after: int) -> None:
        """The state is void; load the copy of that step, or wait for the one after that one."""
        self._pins = [(pin, view) for pin, view in self._pins if pin.step <= after]
        self._attempt, self._copy_at, self._received, self._kept = None, BLANK, None, None
        self._computed = None
        if step == BLANK:
            self.applied, self.digest, self.bent, self.void = BLANK, 0, False, True
            self.warp = 0
            self.copies.clear()
        else:
            self._back_to = step

    def found(self, step: int, digest: int) -> None:
        self.bent = self.void = False
        self.chief = self._engine.node.replica
        self._sim.truth.begins(step, digest)
        self._set_state(step, digest)

    def receive_state(self, step: int, digest: int, view: int, *, bent: bool, warp: int, chief: int) -> None:
        if self.applied == BLANK:
            self._received, self.bent, self.chief = (step, digest, view, warp), bent, chief
            self.poke()

    def _set_state(self, step: int, digest: int, warp: int = 0) -> None:
        self.applied, self.digest, self.void, self.warp = step, digest, False, warp
        self._chiefs[step] = self.chief
        self._sim.truth.stands_at(self._engine, digest)
        self._sim.history.stands_at(self._engine, step, digest)
        self._look_at_copy()
        self._engine.saver.look()

    # What it does.

    def poke(self) -> None:
        """Look for something to do."""
        engine = self._engine
        if self._busy or engine.node.hanging or engine.over or not engine.node.up:
            return
        due = next((entry for entry in self._pins if entry[0].step == self.applied), None)
        if self._back_to is not None:
            self._work(0.001, 0.05, Phase.COMPUTING, self._gone_back)
        elif due is not None:
            self._work(0.001, 0.02, Phase.COMPUTING, partial(self._copied, *due))
        elif self._received is not None and self.applied == BLANK:
            self._work(0.005, 0.1, Phase.STARTING, self._loaded)
        elif self.applied + 1 in engine.records and self.applied != BLANK:
            self._work(0.001, 0.01, Phase.COMPUTING, self._apply)
        elif self._attempt is not None and self._attempt[0] == self.applied + 1:
            self._step(*self._attempt)
        else:
            self._wait()

    def _step(self, step: int, trial: int) -> None:
        engine = self._engine
        view = engine.view.number
        if trial == Trial.HEARING and self._testified != (step, view):
            engine.node.enter(Phase.COMPUTING, attempts_in=view)
            self._work(0.0, 0.06, Phase.COMPUTING, lambda: self._testifies(step, view))
            return
        if trial == Trial.FIRST and self.applied >= self._sim.last_step and not engine.core.closing:
            self._end(step, view)
            return
        if trial != Trial.FIRST or engine.core.closing:
            pass
        elif self._computed != (step, view):
            begun = self._computed is not None and self._computed[0] == step
            least_s, most_s = (0.0, 0.03) if begun else (0.02, 0.12)
            engine.node.enter(Phase.COMPUTING, attempts_in=view)
            self._work(least_s, most_s, Phase.COMPUTING, lambda: self._computes(step, view))
            return
        self._attempt = None
        engine.node.enter(Phase.WAITING, attempts_in=view)
        if trial == Trial.FIRST:
            newest = max(engine.keeper.kept, default=BLANK)
            verified = engine.core.verifying.verified if engine.core.verifying is not None else newest
            engine.core.due = self._sim.is_due(step) or newest > verified
            engine.core.checksum = self._sim.truth.checksum(self.digest)
            engine.core.buffers = self._sim.truth.contributes(engine, step)
            self._sim.names.says(engine, step)
        engine.perform(engine.participant.contribute(self._sim.world.now, trial))

    def _end(self, step: int, view: int) -> None:
        """The loop ends here, once all states are known to be the same. In a new view that is said again."""
        engine = self._engine
        self._keep()
        if self._ends_in != (view, step):
            self._ends_in = (view, step)
            if self.ended != self.applied:
                engine.node.enter(Phase.WAITING, attempts_in=view)
            engine.perform(engine.participant.end(self._sim.world.now))
        elif self.ended == self.applied:
            self.ending.rest()

    def _keep(self) -> None:
        """What is given to others from here on is a copy: nothing that the script does later is in it."""
        if self._kept is None or self._kept[0] != self.applied:
            self._kept = (self.applied, self.digest, self.bent, self.warp)

    def gives(self, step: int) -> tuple[int, bool, int]:
        """The state after this step, as it is given to others: its digest, and what is wrong with it."""
        if self._kept is not None and self._kept[0] == step:
            return self._kept[1:]
        return self.digest, self.bent, self.warp

    def _computes(self, step: int, view: int) -> None:
        self._computed = (step, view)
        if self._engine.view.number == view:
            self._engine.doubts.compute(step)

    def _testifies(self, step: int, view: int) -> None:
        self._testified = (step, view)

    def _gone_back(self) -> None:
        if self._back_to is None:
            return
        step, self._back_to = self._back_to, None
        digest, self.bent = self.copies[step]
        self.chief = self._chiefs[step]
        self._set_state(step, digest)

    def _apply(self) -> None:
        record = self._engine.records.get(self.applied + 1)
        if record is None or self._back_to is not None or self.applied == BLANK:
            # It went back meanwhile.
            return
        self.chief = min(self._sim.checkers.view(self._sim.vault.completed_in[record]).shards)
        self._set_state(self.applied + 1, self._sim.truth.after(self.digest, record))
        self._engine.saver.applied(self.applied, record)
        self._engine.keeper.applied(self.applied, record, self.digest)

    def _copied(self, pin: Pin, view: int) -> None:
        if (pin, view) not in self._pins or pin.step != self.applied or self._back_to is not None:
            return
        self._pins.remove((pin, view))
        self._engine.serve(pin.to, view, pin.step, pin.servers)

    def _loaded(self) -> None:
        if self._received is None or self.applied != BLANK:
            return
        step, digest, view, warp = self._received
        self._received = None
        if self._engine.core.mode is Mode.FOUNDING:
            # It came from a lineage that is over; this replica finds out what the next one begins with.
            return
        actions = self._engine.takes(step, view)
        if any(isinstance(action, Lost) for action in actions):
            self._engine.perform(actions)
            return
        self._set_state(step, digest, warp)
        self._engine.loaded(step, actions)

    def _wait(self) -> None:
        engine, core = self._engine, self._engine.core
        if self.applied == BLANK:
            return
        if not self.ending.begun:
            engine.node.enter(Phase.WAITING)
        member = engine.participant.member
        if core.mode is Mode.PAUSED and self.applied == core.newest >= self._sim.last_step:
            self._end(core.step, engine.view.number)
            return
        if core.mode is Mode.LEARNING and self.applied == core.newest >= self._sim.last_step:
            compares = core.verifying is not None and not self._sim.spec.is_shadow(engine.node.replica)
            if compares and self.final_step != self.applied:
                engine.node.lose("what it has learned may not be what the run ends with")
                return
            self._keep()
            self.ending.rest()
            return
        if (
            core.mode is Mode.LEARNING
            and self.applied == core.newest
            and member.admitted
            and not member.ready
            and not self._sim.spec.is_shadow(engine.node.replica)
        ):
            engine.perform(engine.participant.set_ready(self._sim.world.now))

    def _work(self, least_s: float, most_s: float, phase: Phase, then: Callable[[], None]) -> None:
        self._busy = True
        self._engine.node.enter(phase)
        self._sim.world.after(
            self._sim.world.chance.uniform(least_s, most_s), self._engine.node, self._worked, then
        )

    def _worked(self, then: Callable[[], None]) -> None:
        if self._engine.node.hanging or self._engine.over:
            return
        self._busy = False
        then()
        self._engine.perform([])
