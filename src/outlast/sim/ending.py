"""What a script does after its last step, and how its process comes to its end.

    resting     the loop of steps is over; the chief evaluates and saves, the others have little to do
    closing     the `with` block is left, together with the others
    done        the rest of the script; then the chief exits, and with that the job is done

Whoever is not the chief stays after the end of its script, and gives the final state to those who come back:
the chief may be killed at any of these places, and its next life has its work to do again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from outlast.protocol.messages import Phase
from outlast.protocol.step_words import Mode
from outlast.sim.checkers import require

if TYPE_CHECKING:
    from outlast.sim.engine import Engine

SHORT_S = 0.05


class Ending:
    """That of one life."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sim = engine.node.sim
        drawn = random.Random(f"ending-{self._sim.world.seed}")
        self._work_s = drawn.choice([0.0, 0.5, 3.0])
        self._rest_s = drawn.choice([0.0, 0.5, 3.0])
        self.begun = False
        """Whether the loop of steps is over here."""
        self.done = False

    @property
    def at_rest(self) -> bool:
        """Whether the script is beside the steps, and others know that it takes its time."""
        return self.begun and not self._engine.core.closing

    @property
    def closes(self) -> bool:
        """Whether the end of this process is that of the job."""
        return self.done and self._is_chief

    @property
    def _is_chief(self) -> bool:
        return self._engine.trainer.chief == self._engine.node.replica

    def rest(self) -> None:
        """The loop is over: what the script does beside the steps takes its time."""
        if self.begun:
            return
        self.begun = True
        engine = self._engine
        engine.node.enter(Phase.ASIDE)
        engine.perform(engine.participant.rest(self._sim.world.now))
        self._later(self._rest_s, self._close)

    def _close(self) -> None:
        engine = self._engine
        engine.perform(engine.participant.close(self._sim.world.now))
        if not engine.over and engine.core.mode is Mode.LEARNING:
            # The others do not wait for it, nor it for them.
            self.all_done()

    def all_done(self) -> None:
        """Everybody has left the loop."""
        if self.done:
            return
        self.done = True
        engine = self._engine
        engine.node.finish()
        require(
            engine.trainer.applied >= self._sim.last_step,
            f"{engine.node.name} is done at step {engine.trainer.applied}",
        )
        self._later(self._work_s, self._end)

    def _end(self) -> None:
        engine = self._engine
        if self._is_chief:
            engine.node.end()
        else:
            engine.perform(engine.participant.set_staying(engine.trainer.chief, self._sim.world.now))

    def _later(self, chief_s: float, then: object) -> None:
        most_s = chief_s if self._is_chief else SHORT_S
        self._sim.world.after(
            self._sim.world.chance.uniform(0.0, most_s), self._engine.node, self._go_on, then
        )

    def _go_on(self, then: object) -> None:
        if not self._engine.over and not self._engine.node.hanging:
            assert callable(then)
            then()
