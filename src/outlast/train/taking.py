"""How a replica comes by its state: it finds out what the lineage begins with, or it is given it.

    founder     reads the newest good checkpoint, with the help of the others, or takes its own fresh model
    the others  are given that by the founder, or the newest state by members that train
    one whose life is over (evicted, cut off, or of a branch that was left) begins a new one, and is given it

All of this happens in the training thread, which waits here; a replica that has no state computes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from outlast import crashpoints as crash
from outlast.errors import ConfigError, DivergedError, OutlastError, SaveGivenUp
from outlast.mesh.kinds import Kind
from outlast.protocol.messages import Phase, Status
from outlast.protocol.step_words import BLANK, GoBack, Mode
from outlast.protocol.steps import StepCore
from outlast.protocol.timing import Timing
from outlast.protocol.views import Foundation, Intent, View
from outlast.state.training import TrainingState
from outlast.state.vault.manifest import Claim
from outlast.train.comparing import Comparing
from outlast.train.conduct import Conduct
from outlast.train.gathering import Gathering, ReadRequest
from outlast.train.giving import Giving
from outlast.train.gradients import Gradients
from outlast.train.link import Link
from outlast.train.patience import Patience
from outlast.train.post import Post
from outlast.train.restoring import Beginning
from outlast.train.saving import Saving
from outlast.train.snapshots import Arrival
from outlast.train.supply import Supply
from outlast.train.unlocked import unlocked

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5
"""How often a waiting thread looks at the clock; whatever happens wakes it at once."""


class Gap:
    """For how long a learner has lacked a record, while it has later ones."""

    def __init__(self) -> None:
        self._at = BLANK
        self._since = 0.0

    def lasts_s(self, steps: StepCore, now: float) -> float:
        at = steps.step if steps.has_a_gap else BLANK
        if at != self._at:
            self._at, self._since = at, now
        return now - self._since if at != BLANK else 0.0


class Taking:
    """What the training thread uses to have a state."""

    def __init__(
        self,
        *,
        conduct: Conduct,
        supply: Supply,
        giving: Giving,
        post: Post,
        state: TrainingState,
        gradients: Gradients,
        timing: Timing,
        changed: threading.Condition,
        link: Link | None,
        saving: Saving | None,
        comparing: Comparing | None,
        settle: Callable[[], None],
    ) -> None:
        """`settle` is called before the state changes."""
        self._core = conduct.core
        self._conduct = conduct
        self._supply = supply
        self._giving = giving
        self._post = post
        self._state = state
        self._gradients = gradients
        self._timing = timing
        self._changed = changed
        self._link = link
        self._saving = saving
        self._comparing = comparing
        self._settle = settle
        self.on_beginning: Callable[[Beginning], None] = lambda _: None
        """Makes what a lineage begins with the own state, before anybody else is given it."""
        self.on_founding: Callable[[], None] = lambda: None
        """Called when it is on this replica to begin, before anybody is given its state."""
        self._void = False
        """Whether the state was found to be wrong, and there was none to go back to."""
        self._ready = False
        self._gap = Gap()
        self._loaded = -1
        """The step whose state this life was given."""
        self._final = False

    @property
    def _view(self) -> View:
        return self._conduct.view

    @property
    def _steps(self) -> StepCore:
        return self._conduct.participant.steps

    def get(self) -> None:
        """Wait for the state, beginning a new life if the old one is over."""
        with self._changed:
            self._conduct.enter(Phase.STARTING)
            while True:
                self._conduct.check()
                if self._conduct.over is not None:
                    self._begin_anew()
                if self._conduct.applied >= 0:
                    return
                if self._conduct.founding:
                    self._found()
                    continue
                if self._supply.arrival.complete:
                    break
                if self._supply.asked is not None:
                    self._help_to_read(*self._supply.asked)
                    continue
                if self._hungry():
                    self._conduct.over = "the state that it waits for does not come"
                else:
                    self._changed.wait(LOOK_AGAIN_S)
            arrival = self._supply.arrival
        self._load(arrival)

    def _found(self) -> None:
        """It is on this replica to say what the lineage begins with. Under the lock, but not throughout."""
        self._conduct.founding = False
        self.on_founding()
        step = 0
        if self._saving is None:
            self._refuse_void()
        else:
            lineage, view = self._view.lineage, 0
            gathering = self._supply.gathering = Gathering(
                self._view, self._core.replica, self._changed, self._post.send, self._conduct.header
            )
            # Reading takes as long as it takes, and the storage has deadlines of its own.
            self._conduct.enter(Phase.ASIDE)
            try:
                with unlocked(self._changed), Patience(self._conduct, self._changed):
                    found = self._saving.begin(
                        lineage,
                        self._intents(),
                        gathering,
                        lambda: self._view.founded,
                        lambda: self._may_found(lineage),
                        self._may_begin,
                    )
                    step, view = self._restore(found), found.claim.view
            except SaveGivenUp:
                log.info("replica %d is not the one to begin with any more", self._core.replica)
                # Unless the coordinator was only quicker to tell of a view than this replica to adopt it.
                self._changed.wait(LOOK_AGAIN_S)
                self._conduct.founding = self._steps.mode is Mode.FOUNDING
                return
            finally:
                self._supply.gathering = None
                self._conduct.enter(Phase.STARTING)
            if view != self._view.number:
                # In a view between the two another one may have made a claim of its own. Then this replica's
                # is superseded, and there would be no checkpoints; so it makes another.
                self._conduct.founding = self._steps.mode is Mode.FOUNDING
                return
        actions = self._conduct.participant.founded(step, time.monotonic())
        if actions:
            # A change of views may have asked for the same thing again meanwhile, and a state that members of
            # the lineage before had sent may have come.
            self._conduct.founding = False
            self._supply.arrival = Arrival()
            self._conduct.stand_after(step)
            if self._saving is not None:
                self._saving.stands(step)
            self._conduct.act(actions)

    def _help_to_read(self, view: int, founder: int, request: ReadRequest) -> None:
        """Read some of a checkpoint for who puts it together. Under the lock, but not throughout."""
        self._supply.asked = None
        member = self._view.member(founder)
        if self._saving is None or member is None or view != self._view.number:
            return

        def send(index: int, memory: memoryview) -> None:
            with self._changed:
                if self._view.number == view:
                    self._post.send(member, self._conduct.header(Kind.CHUNK)._replace(lo=index), memory)

        with unlocked(self._changed):
            try:
                self._saving.read_for(request, send, lambda: self._view.number == view)
            except OutlastError as error:
                log.warning("replica %d cannot help to read: %s", self._core.replica, error)

    def _intents(self) -> tuple[Intent, ...]:
        """What the coordinator knows of checkpoints; there is no beginning without its word."""
        status = self._ask()
        return status.intents if status is not None else ()

    def _may_found(self, lineage: int) -> int | None:
        """In which view it is on this replica to begin; None if it is on somebody else by now. It may have
        been stopped while it looked for a checkpoint, and evicted; so the coordinator is asked, who knows.
        If it is stopped after that, its claim is known by the view to come too late."""
        status = self._ask()
        with self._changed:
            if self._steps.mode is not Mode.FOUNDING or self._view.lineage != lineage:
                return None
            here = self._view.number
            if status is None:
                return here
            mine = status.view.holds(self._core.replica, self._core.incarnation)
            return here if mine and status.view.lineage == lineage else None

    def _may_begin(self, claim: Claim) -> bool:
        """Have the coordinator record under which claim the lineage begins; False if another view came first.
        If this replica is stopped after that, what it gives to others is known by the view to be void."""
        if self._link is None:
            return True
        foundation = Foundation(lineage=claim.lineage, view=claim.view, claim=claim.number)
        with self._changed:
            self._conduct.act(self._conduct.participant.founds(foundation, time.monotonic()))
            while self._conduct.may_begin != foundation:
                self._conduct.check()
                if self._core.foundation != foundation:
                    return False
                self._changed.wait(LOOK_AGAIN_S)
            return True

    def _ask(self) -> Status | None:
        """How the job stands, as the coordinator says now; None for one who has none."""
        if self._link is None:
            return None
        with self._changed:
            self._conduct.forget_status()
            while self._conduct.status is None:
                self._conduct.check()
                self._conduct.ask()
                self._changed.wait(LOOK_AGAIN_S)
            return self._conduct.status

    def _restore(self, beginning: Beginning) -> int:
        """Become the state of the checkpoint, if there is one; the step after which it was made."""
        crash.reach("restoring", beginning.manifest.step if beginning.manifest is not None else 0)
        if beginning.manifest is None:
            self._refuse_void()
        self._void = False
        self._gradients.abandon_shard()
        self.on_beginning(beginning)
        self._gradients.start_step()
        return beginning.manifest.step if beginning.manifest is not None else 0

    def _refuse_void(self) -> None:
        """What this process has is not what a job begins with; the one that is started in its place has."""
        if self._void:
            raise DivergedError(
                f"replica {self._core.replica}: the states of replicas differ, and nobody is left who has "
                "one that was verified. The job begins again, as if all replicas had died"
            )

    def go_back(self, back: GoBack) -> None:
        """Without the lock: the state is void."""
        log.info("replica %d goes back to step %d", self._core.replica, back.fork.step)
        self._gradients.abandon_shard()
        self._settle()
        if back.step != BLANK:
            assert self._comparing is not None
            self._comparing.load(back.step)
            self._gradients.start_step()
        with self._changed:
            self._void = back.step == BLANK
            if self._conduct.back is not back:
                return
            self._conduct.back = None
            self._conduct.applied = back.step
            if self._void:
                self._conduct.given()
        if self._void:
            self.get()

    def learn(self, *, shadow: bool) -> None:
        """A learner with nothing to apply has caught up; one that is cut off from a member starts over."""
        if self._link is None:
            return
        # Others will wait for it from the first step after its promotion on, so it shows first that it keeps
        # up: by a record that it has applied, unless there are none because the members pause.
        if not self._ready and not shadow and (self._conduct.applied > self._loaded or self._view.paused):
            self._ready = True
            self._link.ready()
        if (
            self._conduct.broken
            and time.monotonic() - self._conduct.broken_at > self._timing.silent_at_most_s
        ):
            self._conduct.over = "a connection over which it was given records broke"
        if self._gap.lasts_s(self._steps, time.monotonic()) > self._timing.silent_at_most_s:
            self._conduct.over = f"the record of step {self._steps.step}, which it lacks, does not come"

    @property
    def has_final(self) -> bool:
        """Whether the state is the one that this life was given as the final one. One that learned it by
        records, or before members had compared it, may have another: it is not asked when they compare."""
        return self._final and self._conduct.applied == self._loaded

    def _hungry(self) -> bool:
        """Whether a snapshot is overdue: the view has members, and nothing of it has come for long."""
        served = self._steps.mode in (Mode.LEARNING, Mode.LOADING) and bool(self._view.members)
        # A member gives its share at the end of its step, which may be a long one; so be patient at first.
        begun = self._supply.arrival.view >= 0
        patience_s = self._timing.silent_at_most_s if begun else self._timing.cold_within_s
        return served and self._supply.silent_s(time.monotonic()) > patience_s

    def _begin_anew(self) -> None:
        assert self._link is not None
        if self._conduct.leaving:
            self._conduct.enter(Phase.DONE)
            raise SystemExit(0)
        log.info("replica %d begins a new life: %s", self._core.replica, self._conduct.over)
        self._conduct.over = self._conduct.back = None
        if self._comparing is not None:
            self._comparing.begin_anew()
        self._conduct.founding = self._ready = False
        self._conduct.applied = -1
        self._conduct.records.clear()
        self._giving.clear()
        self._supply.clear()
        self._link.rejoin()

    def _load(self, arrival: Arrival) -> None:
        crash.reach("joining", arrival.step)
        log.info("the state of %d bytes came in %.3f s", arrival.image.total_bytes, self._supply.took_s())
        self._gradients.abandon_shard()
        self._settle()
        try:
            self._state.load(arrival.image, arrival.tensors())
        except ConfigError as error:
            raise ConfigError(f"replica {self._core.replica} differs from its peers: {error}") from error
        self._gradients.start_step()
        with self._changed:
            if arrival is not self._supply.arrival:
                return
            self._loaded, self._final = arrival.step, arrival.final
            self._conduct.stand_after(arrival.step)
            self._void = False
            if self._saving is not None:
                self._saving.was_given(arrival.step)
            self._supply.arrival = Arrival()
            for member in self._view.members:
                if member.replica != self._core.replica:
                    self._post.send(member, self._conduct.header(Kind.LOADED))
