"""A training thread: applies records in order, computes when there is a step to contribute to, else waits.

It lags behind the cores: a view may change while it computes. What it has computed for a step stays good in
the next view, where it computes only what has been added to its own share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from outlast.protocol.messages import Phase
from outlast.protocol.step_words import BLANK, Mode, Pin, Trial

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
        self._received: tuple[int, int, int] | None = None

    @property
    def loading(self) -> bool:
        return self._received is not None

    # What the engine tells it.

    def view_changed(self) -> None:
        self._attempt = None

    def attempt(self, step: int, trial: int) -> None:
        self._attempt = (step, trial)

    def pin(self, pin: Pin, view: int) -> None:
        self._sim.history.pins(self._engine, pin, self.applied)
        self._pins.append((pin, view))

    def found(self, step: int, digest: int) -> None:
        self._set_state(step, digest)

    def receive_state(self, step: int, digest: int, view: int) -> None:
        if self.applied == BLANK:
            self._received = (step, digest, view)
            self.poke()

    def _set_state(self, step: int, digest: int) -> None:
        self.applied, self.digest = step, digest
        self._sim.history.stands_at(self._engine, step, digest)
        self._engine.saver.look()

    # What it does.

    def poke(self) -> None:
        """Look for something to do."""
        engine = self._engine
        if self._busy or engine.node.hanging or engine.over or not engine.node.up:
            return
        due = next((entry for entry in self._pins if entry[0].step == self.applied), None)
        if due is not None:
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
        if trial != Trial.FIRST:
            pass
        elif self.applied >= self._sim.last_step:
            engine.core.closing = True
        elif self._computed != (step, view):
            begun = self._computed is not None and self._computed[0] == step
            least_s, most_s = (0.0, 0.03) if begun else (0.02, 0.12)
            engine.node.enter(Phase.COMPUTING, attempts_in=view)
            self._work(least_s, most_s, Phase.COMPUTING, lambda: self._computes(step, view))
            return
        self._attempt = None
        engine.node.enter(Phase.WAITING, attempts_in=view)
        engine.perform(engine.participant.contribute(self._sim.world.now, trial))

    def _computes(self, step: int, view: int) -> None:
        self._computed = (step, view)
        if self._engine.view.number == view:
            self._engine.doubts.compute(step)

    def _testifies(self, step: int, view: int) -> None:
        self._testified = (step, view)

    def _apply(self) -> None:
        record = self._engine.records[self.applied + 1]
        self._set_state(self.applied + 1, hash((self.digest, record)))
        self._engine.saver.applied(self.applied, record)

    def _copied(self, pin: Pin, view: int) -> None:
        self._pins.remove((pin, view))
        self._engine.serve(pin.to, view, pin.step, pin.servers, self.digest)

    def _loaded(self) -> None:
        if self._received is None or self.applied != BLANK:
            return
        step, digest, view = self._received
        self._received = None
        if self._engine.core.mode is Mode.FOUNDING:
            # It came from a lineage that is over; this replica finds out what the next one begins with.
            return
        self._set_state(step, digest)
        self._engine.loaded(step, view)

    def _wait(self) -> None:
        engine, core = self._engine, self._engine.core
        if self.applied == BLANK:
            return
        engine.node.enter(Phase.WAITING)
        member = engine.participant.member
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
