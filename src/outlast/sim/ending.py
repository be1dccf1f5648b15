"""What a script does after its last step, and how its process comes to its end.

    resting     the loop of steps is over; the chief evaluates and saves, the others have little to do
    closing     the `with` block is left, together with the others
    done        the rest of the script; then the chief exits, and with that the job is done

Whoever is not the chief stays after the end of its script, and gives the final state to those who come back:
the chief may be killed at any of these places, and its next life has its work to do again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.protocol.step_words import BLANK
from outlast.sim.checkers import require

if TYPE_CHECKING:
    from outlast.protocol.life import Life
    from outlast.sim.thread import Thread

SHORT_S = 0.05
LONG_S = 8.0
HEARD_WITHIN_S = 1.0
"""So soon the coordinator has heard what a replica says, unless something happens to one of them."""


class Ending:
    """That of one process."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._node = thread.node
        self._sim = thread.node.sim
        drawn = random.Random(f"ending-{self._sim.world.seed}")
        self._work_s = drawn.choice([0.0, 0.5, 3.0])
        self._rest_s = drawn.choice([0.0, 0.5, 3.0])
        if self._sim.end_is_haunted:
            self._work_s = LONG_S
        self.begun = False
        """Whether the loop of steps is over here."""
        self.beside = False
        """Whether the script does something else than asking for work."""
        self.leaving = False
        """Whether it has come to the end of its `with` block: the last state is compared once more, since
        views may have changed while it did something else."""
        self.closing = False
        """Whether it leaves that block."""
        self.done = False
        self._stays = False
        """Whether the script has ended, and the process is there for others."""
        self._last, self._lineage = BLANK, 0
        """After which step, and in which lineage, it has left the loop."""
        self._since = 0.0
        """When this life had the final state, and was beside the steps."""
        self._life: Life | None = None
        """The one in which it has left the loop."""

    @property
    def at_rest(self) -> bool:
        """Whether the script is beside the steps, and others know that it takes its time."""
        return self.begun and not self.closing

    @property
    def closes(self) -> bool:
        """Whether the end of this process is that of the job."""
        return self.done and self._is_chief

    @property
    def _is_chief(self) -> bool:
        return self._thread.chief == self._node.replica

    def keeps(self, incarnation: int) -> bool:
        """Whether this life has had the final state for so long that others can know."""
        driver = self._node.driver
        same = self.begun and driver.life is self._life and self._node.core.incarnation == incarnation
        known = driver.has_final or driver.copies is None
        return same and known and self._sim.world.now > self._since + HEARD_WITHIN_S

    def rest(self) -> None:
        """The loop is over: what the script does beside the steps takes its time."""
        self.begun = self.beside = True
        self._last, self._lineage = self._thread.applied, self._node.view.lineage
        self._life, self._since = self._node.driver.life, self._sim.world.now
        self._thread.rest()
        self._later(self._rest_s, self._leave)

    def _leave(self) -> None:
        self.beside, self.leaving = False, True
        self._thread.wake()

    def close(self) -> None:
        """The last state is what it was."""
        if self._all_begin_again():
            return
        self._thread.check_loop(self._last)
        self.closing = True
        if self._life is not self._node.driver.life:
            self._life, self._since = self._node.driver.life, self._sim.world.now
        self._thread.rest()
        self._node.driver.close(self._sim.world.now)
        self._thread.wake()

    def _all_begin_again(self) -> bool:
        """Whether all who had the last state are lost: a new process does those steps again."""
        again = self._thread.applied < self._last and self._node.view.lineage > self._lineage
        if again:
            self._node.kill("has left the loop, and all begin again")
        return again

    def comes_back(self) -> bool:
        """Whether it was evicted behind its last step, and a new life was given a state: it leaves again."""
        driver = self._node.driver
        if not self.closing or driver.applied == BLANK or driver.life is self._life:
            return False
        if driver.life.over is not None or driver.life.back is not None:
            return False
        if self._all_begin_again():
            return True
        self._thread.check_loop(self._last)
        self._life, self._since = driver.life, self._sim.world.now
        self._thread.keep()
        self._thread.rest()
        driver.close(self._sim.world.now)
        self._thread.wake()
        return True

    def all_done(self) -> None:
        """Everybody has left the loop."""
        self.done = self.beside = True
        self._node.finish()
        require(
            self._thread.applied >= self._sim.last_step,
            f"{self._node.name} is done at step {self._thread.applied}",
        )
        self._later(self._work_s, self._end)

    def _end(self) -> None:
        if self._is_chief:
            self._node.end()
        else:
            self._stays = True
            self._node.driver.stay(self._thread.chief, self._sim.world.now)
            self.look()

    def look(self) -> None:
        """One that only stays for others has nothing to give any more when its life is over."""
        if self._stays and self._node.over:
            self._node.gives_up_staying()

    def _later(self, chief_s: float, then: Callable[[], None]) -> None:
        most_s = chief_s if self._is_chief else SHORT_S
        self._sim.world.after(self._sim.world.chance.uniform(0.0, most_s), self._node, self._go_on, then)

    def _go_on(self, then: Callable[[], None]) -> None:
        if not self._node.hanging:
            then()
