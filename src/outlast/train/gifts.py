"""Copies of the own state for others, made by the training thread.

A snapshot is of the state after one step, so it is begun when the training thread stands there, and is
complete before it applies the next record, or as soon as it has nothing else to do.
"""

from __future__ import annotations

import logging
import threading
import time

from outlast import crashpoints as crash
from outlast.errors import CheckpointError
from outlast.protocol.driver import Driver
from outlast.protocol.seams import Described, Gave
from outlast.protocol.todos import Give
from outlast.state.training import TrainingState
from outlast.train.gradients import Gradients
from outlast.train.snapshots import Gift

log = logging.getLogger(__name__)


class Gifts:
    """Used by the training thread, without the lock."""

    def __init__(
        self, driver: Driver, state: TrainingState, gradients: Gradients, changed: threading.Condition
    ) -> None:
        self._driver = driver
        self._state = state
        self._gradients = gradients
        self._changed = changed
        self._begun: list[tuple[Gift, Give, object]] = []
        """What is being copied, and in which life."""
        self._at_once = False
        """Whether the script changes the state in the middle of steps, so that nothing can be copied then."""

    @property
    def idle(self) -> bool:
        """Whether nothing is being copied."""
        return not self._begun

    def begin(self, give: Give) -> None:
        crash.reach("serving", give.pin.step)
        life = self._driver.life
        gift = Gift(self._state, give.pin, self._driver.replica, self._gradients.step_buffers())
        with self._changed:
            described = Described(life, give.pin.to, give.header, gift.image)
            self._driver.done(described, time.monotonic())
        self._begun.append((gift, give, life))
        if give.at_once or self._at_once:
            self.settle()
        else:
            gift.start()

    def settle(self) -> None:
        """Complete what is being copied, and send it."""
        begun, self._begun = self._begun, []
        for gift, give, life in begun:
            to = give.pin.to
            try:
                pieces = gift.settle()
            except CheckpointError as error:
                # It misses the pieces, and asks again.
                self._at_once, pieces = True, None
                log.warning("replica %d is not given the state after this step: %s", to.replica, error)
            with self._changed:
                self._driver.done(Gave(life, to, give.header, pieces), time.monotonic())
