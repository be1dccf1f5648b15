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
        self.bent = False
        """Whether the state is not what the records say; see `truth.py`."""
        self.copies: dict[int, tuple[int, bool]] = {}
        """States that were copied to be compared, and whether they were bent."""
        self.void = False
        """Whether the state was found to be wrong, and there is none to go back to."""
        self._copy_at = BLANK
        self._back_to: int | None = None
        self._ends_in: tuple[int, int] | None = None
        self.ended = BLANK

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
        digest = (self.digest & (1 << 64) - 1).to_bytes(8, "big")
        delay_s = self._sim.world.chance.choice([0.002, 0.02, 0.2])
        self._sim.world.after(delay_s, self._engine.node, self._digested, step, digest)

    def _digested(self, step: int, digest: bytes) -> None:
        if not self._engine.over:
            self._engine.perform(self._engine.participant.digested(step, digest, self._sim.world.now))

    def go_back(self, step: int, after: int) -> None:
        """The state is void; load the copy of that step, or wait for the one after that one."""
        self._pins = [(pin, view) for pin, view in self._pins if pin.step <= after]
        self._attempt, self._copy_at, self._received = None, BLANK, None
        self._computed = None
        if step == BLANK:
            self.applied, self.digest, self.bent, self.void = BLANK, 0, False, True
            self.copies.clear()
        else:
            self._back_to = step

    def found(self, step: int, digest: int) -> None:
        self.bent = self.void = False
        self._sim.truth.begins(step, digest)
        self._set_state(step, digest)

    def receive_state(self, step: int, digest: int, view: int, *, bent: bool) -> None:
        if self.applied == BLANK:
            self._received, self.bent = (step, digest, view), bent
            self.poke()

    def _set_state(self, step: int, digest: int) -> None:
        self.applied, self.digest, self.void = step, digest, False
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
        if trial == Trial.FIRST and self.applied >= self._sim.last_step and self.ended != self.applied:
            if self._ends_in != (view, step):
                self._ends_in = (view, step)
                engine.node.enter(Phase.WAITING, attempts_in=view)
                engine.perform(engine.participant.end(self._sim.world.now))
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
        if trial == Trial.FIRST:
            engine.core.due = self._sim.is_due(step)
            engine.core.checksum = self._sim.truth.checksum(self.digest)
            self._sim.truth.contributes(engine, step)
        engine.perform(engine.participant.contribute(self._sim.world.now, trial))

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
        self._set_state(step, digest)

    def _apply(self) -> None:
        record = self._engine.records.get(self.applied + 1)
        if record is None or self._back_to is not None or self.applied == BLANK:
            # It went back meanwhile.
            return
        self._set_state(self.applied + 1, self._sim.truth.after(self.digest, record))
        self._engine.saver.applied(self.applied, record)

    def _copied(self, pin: Pin, view: int) -> None:
        if (pin, view) not in self._pins or pin.step != self.applied or self._back_to is not None:
            return
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
