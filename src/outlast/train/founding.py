"""How a lineage begins: its founder reads the newest good checkpoint, with the help of the others, or takes
its own fresh model.

All of this happens in the training thread, without the lock. It takes as long as reading takes; the storage
has deadlines of its own, and the driver asks the others for patience meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from outlast import crashpoints as crash
from outlast.errors import DivergedError, OutlastError, SaveGivenUp
from outlast.protocol.driver import Driver
from outlast.protocol.kinds import Kind
from outlast.protocol.messages import Phase, Status
from outlast.protocol.step_words import BLANK, Mode
from outlast.protocol.todos import Found, Read
from outlast.protocol.views import Foundation, Intent
from outlast.state.vault.manifest import Claim
from outlast.train.gathering import Gathering
from outlast.train.gradients import Gradients
from outlast.train.outlet import TrainingOutlet
from outlast.train.restoring import Beginning
from outlast.train.saving import Saving

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5
"""How often a waiting thread looks at the clock; whatever happens wakes it at once."""


ROOM_WITHIN_S = 120.0
"""So long a storage may be full when a job that has lost all replicas begins again."""
TRY_EVERY_S = 1.0


class Founding:
    def __init__(
        self,
        driver: Driver,
        outlet: TrainingOutlet,
        gradients: Gradients,
        changed: threading.Condition,
        saving: Saving | None,
        check: Callable[[], None],
    ) -> None:
        """`check` raises what the training thread has to know at once."""
        self._driver = driver
        self._outlet = outlet
        self._gradients = gradients
        self._changed = changed
        self._saving = saving
        self._check = check
        self.on_beginning: Callable[[Beginning], None] = lambda _: None
        """Makes what a lineage begins with the own state, before anybody else is given it."""
        self.on_founding: Callable[[], None] = lambda: None
        """Called when it is on this replica to begin, before anybody is given its state."""
        self.void = False
        """Whether the state was found to be wrong, and there was none to go back to."""

    def found(self, todo: Found) -> tuple[int, int]:
        """The step after which the lineage begins, and for which view that was found; `BLANK` if it is not on
        this replica any more."""
        self.on_founding()
        if self._saving is None:
            self._refuse_void()
            return 0, todo.view
        driver = self._driver
        with self._changed:
            driver.gathering = gathering = Gathering(
                driver.view, driver.replica, self._changed, driver.life.post.send, driver.header
            )
            self._outlet.enter(Phase.ASIDE)
        try:
            found = self._saving.begin(
                todo.lineage,
                self._intents(),
                gathering,
                lambda: driver.view.founded,
                lambda: self._may_claim(todo.lineage),
                self._may_begin,
                Room(self, todo.lineage).awaits,
            )
            step = self._restore(found)
        except SaveGivenUp:
            log.info("replica %d is not the one to begin with any more", driver.replica)
            with self._changed:
                # Unless the coordinator was only quicker to tell of a view than this replica to adopt it.
                self._changed.wait(LOOK_AGAIN_S)
            return BLANK, 0
        finally:
            with self._changed:
                driver.gathering = None
                self._outlet.enter(Phase.STARTING)
        return step, found.claim.view

    def help_to_read(self, todo: Read) -> None:
        """Read some of a checkpoint for who puts it together."""
        driver = self._driver
        if self._saving is None:
            return

        def send(index: int, memory: memoryview) -> None:
            with self._changed:
                if driver.view.number == todo.view:
                    header = driver.header(Kind.CHUNK)._replace(lo=index)
                    driver.life.post.send(todo.founder, header, memory)

        try:
            self._saving.read_for(todo.request, send, lambda: driver.view.number == todo.view)
        except OutlastError as error:
            log.warning("replica %d cannot help to read: %s", driver.replica, error)

    def _intents(self) -> tuple[Intent, ...]:
        """What the coordinator knows of checkpoints; there is no beginning without its word."""
        status = self._ask()
        return status.intents if status is not None else ()

    def _may_claim(self, lineage: int) -> int | None:
        """In which view it is on this replica to begin; None if it is on somebody else by now. It may have
        been stopped while it looked for a checkpoint, and evicted; so the coordinator is asked, who knows.
        If it is stopped after that, its claim is known by the view to come too late."""
        driver, status = self._driver, self._ask()
        with self._changed:
            if driver.steps.mode is not Mode.FOUNDING or driver.view.lineage != lineage:
                return None
            here = driver.view.number
            if status is None:
                return here
            mine = status.view.holds(driver.replica, driver.member.incarnation)
            return here if mine and status.view.lineage == lineage else None

    def _may_begin(self, claim: Claim) -> bool:
        """Have the coordinator record under which claim the lineage begins; False if another view came first.
        If this replica is stopped after that, what it gives to others is known by the view to be void."""
        driver = self._driver
        if driver.setup.alone:
            return True
        foundation = Foundation(lineage=claim.lineage, view=claim.view, claim=claim.number)
        with self._changed:
            driver.founds(foundation, time.monotonic())
            while driver.may_begin != foundation:
                self._check()
                if driver.member.foundation != foundation:
                    return False
                self._changed.wait(LOOK_AGAIN_S)
            return True

    def pause(self, seconds: float) -> None:
        """Unless the job is over, or it is on somebody else to begin."""
        with self._changed:
            self._changed.wait_for(lambda: self._driver.steps.mode is not Mode.FOUNDING, seconds)
            self._check()

    def _ask(self) -> Status | None:
        """How the job stands, as the coordinator says now; None for one who has none."""
        driver = self._driver
        if driver.setup.alone:
            return None
        with self._changed:
            driver.forget_status()
            while driver.status is None:
                self._check()
                driver.ask()
                self._changed.wait(LOOK_AGAIN_S)
            return driver.status

    def _restore(self, beginning: Beginning) -> int:
        """Become the state of the checkpoint, if there is one; the step after which it was made."""
        step = beginning.manifest.step if beginning.manifest is not None else 0
        crash.reach("restoring", step)
        if beginning.manifest is None:
            self._refuse_void()
        self.void = False
        self._gradients.abandon_shard()
        self.on_beginning(beginning)
        self._gradients.start_step()
        return step

    def _refuse_void(self) -> None:
        """What this process has is not what a job begins with; the one that is started in its place has."""
        if self.void:
            raise DivergedError(
                f"replica {self._driver.replica}: the states of replicas differ, and nobody is left who has "
                "one that was verified. The job begins again, as if all replicas had died"
            )


class Room:
    """Patience with a storage that is full.

    Whoever starts a job sees at once that it is. But one that begins again, since all its replicas died, is
    watched by nobody, and others may well be making room: its checkpoints are there.
    """

    def __init__(self, founding: Founding, lineage: int) -> None:
        self._founding = founding
        self._until = time.monotonic() + ROOM_WITHIN_S if lineage > 1 else 0.0
        self._said = False

    def awaits(self) -> bool:
        """Waits for a moment; whether to try again."""
        if time.monotonic() >= self._until:
            return False
        if not self._said:
            self._said = True
            log.warning(
                "the job cannot begin again, since there is no space left for its checkpoints;"
                " it is tried again for %.0f s",
                ROOM_WITHIN_S,
            )
        self._founding.pause(TRY_EVERY_S)
        return True
