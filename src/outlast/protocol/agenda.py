"""What the training thread does next.

It is asked when the thread has nothing to do (`next`), and told when something is done (`did`). Most of what
it looks at has been decided already, and waits in the life; some is decided here, since it depends on where
the thread stands: whether this replica contributes, whether it has caught up, whether it has come to the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from outlast.errors import LoopError
from outlast.protocol import events
from outlast.protocol.inbox import Arrival
from outlast.protocol.kinds import Kind
from outlast.protocol.life import Life
from outlast.protocol.messages import Phase
from outlast.protocol.saving import Save
from outlast.protocol.seams import At, Digested, Said
from outlast.protocol.step_words import BLANK, NO_FORK, Mode, Trial
from outlast.protocol.steps import StepCore
from outlast.protocol.todos import (
    Apply,
    Compute,
    Copy,
    Digest,
    Finished,
    Found,
    Give,
    GoBack,
    JobEnded,
    Keep,
    Leave,
    Load,
    Stage,
    Todo,
)

if TYPE_CHECKING:
    from outlast.protocol.driver import Driver

FINISHED = Finished()


class Agenda:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._shadow = driver.setup.shadow
        self._idles: Phase | None = None
        """As what the thread waits; None while it does something."""

    @property
    def _life(self) -> Life:
        return self._driver.life

    @property
    def _steps(self) -> StepCore:
        return self._driver.participant.steps

    # What there is to do.

    def next(self, stage: Stage) -> Todo | None:
        """None: nothing, until something happens. Raises what the thread has to know at once."""
        todo = self._find(stage)
        if todo is not None:
            self._idles = None
        return todo

    def _idle(self, phase: Phase) -> bool:
        """The thread waits, as this. Others measure how long it does, so it is said once. Whether it was said
        before."""
        before, self._idles = self._idles, phase
        if phase is not before:
            self._driver.outlet.enter(phase)
        return phase is before

    @property
    def waits(self) -> bool:
        """Whether the thread has found nothing to do, and sleeps until it is woken."""
        return self._idles is Phase.WAITING

    def is_wanted(self) -> None:
        """Something has come up for the thread, which may not know yet: from here on others wait for it."""
        self._idles = None
        self._driver.outlet.enter(Phase.COMPUTING)

    def _find(self, stage: Stage) -> Todo | None:
        driver = self._driver
        while True:
            life = driver.life
            if driver.failure is not None:
                raise driver.failure
            if driver.outcome is not None:
                driver.outlet.enter(Phase.DONE)
                return JobEnded(driver.outcome)
            if life.over is not None:
                if driver.leaving:
                    driver.outlet.enter(Phase.DONE)
                    return Leave()
                self._idle(Phase.STARTING)
                driver.begin_life()
                continue
            if life.back is not None:
                return GoBack(life.back)
            if life.applied == BLANK:
                self._idle(Phase.STARTING)
                return self._without_state()
            found = self._beside_steps(stage) or self._look(stage)
            if found is not None:
                if not isinstance(found, Finished):
                    driver.outlet.enter(Phase.COMPUTING)
                return found
            # What is left to do in the end is nobody's wait: saves. That it is the end may be heard in here.
            # Looking for work may have brought about some, such as the save of the last state; so look twice.
            if self._idle(Phase.ASIDE if life.all_done else Phase.WAITING):
                return None

    def _look(self, stage: Stage) -> Todo | None:
        match stage:
            case Stage.STARTING:
                return FINISHED
            case Stage.STEPPING:
                return self._stepping()
            case Stage.ENDING:
                return self._ending()
            case Stage.CLOSING:
                return self._closing()

    def _without_state(self) -> Todo | None:
        """What one can do who has no state: find out what the lineage begins with, or be given it."""
        life = self._life
        if life.founding:
            life.founding = False
            life.founds = Found(life.view.number, life.view.lineage)
            return life.founds
        if life.arrival.complete:
            return Load(life.arrival)
        if life.asked is not None:
            asked, life.asked = life.asked, None
            return asked if asked.view == life.view.number else None
        return None

    def _beside_steps(self, stage: Stage) -> Todo | None:
        """Copies of the state, while the model holds it."""
        driver = self._driver
        life = driver.life
        due = life.giving.due(life.applied)
        if due is not None:
            pin, header = due
            # The script may do something else before its first step.
            at_once = stage is Stage.STARTING or life.view.learner(pin.to.replica) is None
            return Give(pin, header, at_once=at_once)
        if stage is Stage.STARTING:
            return None
        if driver.copies is not None and (step := driver.copies.due(life.applied)) is not None:
            if step == life.applied:
                return Digest(step, life, self._steps.fork)
            driver.done(Digested(life, self._steps.fork, step, b""), driver.now)
        if driver.saves is None:
            return None
        if driver.saves.keep_due(life.applied):
            return Keep(life.applied)
        save = self._save_due()
        return Copy(save) if save is not None else None

    def _save_due(self) -> Save | None:
        driver = self._driver
        life = driver.life
        assert driver.saves is not None
        compares = driver.copies is not None and len(life.view.members) > 1
        chosen = driver.copies.chosen == life.applied if driver.copies is not None and compares else None
        return driver.saves.due(life.applied, driver.now, chosen=chosen)

    # The loop of steps.

    def _stepping(self) -> Todo | None:
        driver = self._driver
        life, steps = driver.life, driver.participant.steps
        step = life.applied + 1
        record = life.records.get(step)
        if record is not None:
            return Apply(record)
        if steps.mode is Mode.LEARNING:
            self._learn()
        if steps.mode is not Mode.RUNNING or steps.step != step or not self._has_a_part(step):
            return None
        if steps.view.number != life.view.number:
            return None
        computes = life.computes
        if computes is None or driver.is_void_attempt(computes.at):
            at = At(life.view.number, steps.step, steps.trial)
            if life.contributed == at:
                return None
            computes = life.computes = self._compute(at)
            driver.outlet.take_part(at.view)
        return computes if life.contributed != computes.at else None

    def _compute(self, at: At) -> Compute:
        life = self._life
        afresh = False
        if at.trial != Trial.HEARING:
            afresh, life.discredited = life.discredited, False
        members = len(life.view.members)
        wary = members > 1 and self._steps.fork != NO_FORK
        return Compute(at, afresh=afresh, members=members, wary=wary)

    def _has_a_part(self, step: int) -> bool:
        """After the first trial, only who is called as a witness has something to do."""
        trial = self._steps.trial
        return trial == Trial.FIRST or (trial == Trial.HEARING and self._driver.bulk.is_asked(step))

    def _learn(self) -> None:
        """A learner with nothing to apply has caught up. Others will wait for it from the first step after
        its promotion on, so it shows first that it keeps up: by a record that it has applied, unless there
        are none because the members pause."""
        driver = self._driver
        life = driver.life
        if driver.setup.alone or life.ready or self._shadow:
            return
        if life.applied > life.loaded or life.view.paused:
            life.ready = True
            driver.act(driver.participant.set_ready(driver.now))

    # The end of the loop.

    def _ending(self) -> Todo | None:
        """The last state is compared, or cannot be."""
        driver = self._driver
        life, steps = driver.life, driver.participant.steps
        if self._learned_all():
            return FINISHED
        attempt = (life.view.number, steps.step)
        at_work = steps.mode in (Mode.RUNNING, Mode.PAUSED) and steps.newest == life.applied
        if at_work and life.ends_in != attempt:
            life.ends_in, life.ended = attempt, BLANK
            driver.outlet.take_part(life.view.number)
            driver.outlet.enter(Phase.WAITING)
            driver.act(driver.participant.end(driver.now))
        return FINISHED if life.ended == life.applied else None

    def _closing(self) -> Todo | None:
        driver = self._driver
        life = driver.life
        if life.all_done:
            # The last state is saved before anybody leaves.
            return FINISHED if driver.saves is None or driver.saves.idle else None
        if life.left_alone is not None:
            others = " and ".join(str(replica) for replica in life.left_alone)
            raise LoopError(
                f"replica {driver.replica} left the loop of steps after step {life.applied}, while "
                f"replica {others} went on. All must leave it at the same step: give job.steps() the run's "
                "total and do not break out of the loop on one replica only"
            )
        if self._learned_all():
            # It has applied everything that it was given; the others end the job.
            return FINISHED
        self.contribute_nothing()
        return None

    def _learned_all(self) -> bool:
        """Whether this replica only learns, and has the final state; nobody compares it with that of others.
        So where states are compared, it has to be given to it as the final one: else it begins a new life,
        which is, since no more steps are done when that comes into a view."""
        driver = self._driver
        life, steps = driver.life, driver.participant.steps
        if steps.mode is not Mode.LEARNING or steps.newest > life.applied:
            return False
        if driver.copies is None or self._shadow or driver.has_final:
            return True
        driver.end_life("what it has learned may not be what the run ends with")
        return False

    def contribute_nothing(self) -> None:
        """To the step after the last, so that others know that this replica holds the last."""
        driver = self._driver
        life, steps = driver.life, driver.participant.steps
        at = At(life.view.number, steps.step, steps.trial)
        if steps.mode is not Mode.RUNNING or life.contributed == at or steps.view.number != at.view:
            return
        life.contributed = at
        driver.outlet.take_part(at.view)
        asked, keeps = driver.saves.named(steps.newest, last=True) if driver.saves is not None else (None, ())
        driver.bulk.contribute_nothing(at, Said(check=steps.check(), asked=asked, keeps=keeps))
        driver.act(driver.participant.contribute(driver.now))

    # What is done.

    def did(self, todo: Todo, said: Said | None) -> None:
        life = self._life
        match todo:
            case Compute():
                if todo is life.computes and life.over is None:
                    self._contribute(todo.at, said or Said())
            case Apply():
                life.applied = todo.record.step
            case GoBack():
                self._went_back(todo)
            case Load():
                self._loaded(todo.arrival)
            case _:
                pass

    def _contribute(self, at: At, said: Said) -> None:
        driver = self._driver
        life = driver.life
        if driver.is_void_attempt(at) or at.view != life.view.number:
            return
        life.contributed = at
        if at.trial == Trial.FIRST:
            self._contribute_first(at, said)
        else:
            driver.bulk.testify(at)
            driver.outlet.passes("testify", at.step)
        # It may have been said for this thread that it computes; from here on it does not.
        driver.outlet.enter(Phase.WAITING)
        driver.act(driver.participant.contribute(driver.now, at.trial))

    def _contribute_first(self, at: At, said: Said) -> None:
        driver, steps = self._driver, self._steps
        wish = driver.saves.wish(at.step) if driver.saves is not None else 0
        if driver.copies is not None:
            chief = driver.view.chief == driver.replica
            due = driver.saves is not None and driver.saves.waits_for_comparison(driver.copies.verified)
            steps.due = driver.copies.wish(at.step, chief=chief) or wish == 1 or due
            found = said.check
            steps.checksum = found.checksum if found is not None else 0
            steps.buffers = found.buffers if found is not None else b""
            steps.buffer_entries = found.buffer_entries if found is not None else b""
        asked, keeps = driver.saves.named(at.step - 1) if driver.saves is not None else (None, ())
        goes_with = Said(steps.pending, wish, steps.check(), asked, keeps)
        driver.bulk.contribute(at, goes_with)
        driver.outlet.passes("scatter", at.step)

    def _went_back(self, todo: GoBack) -> None:
        life = self._life
        if life.back is not todo.back:
            return
        life.back = None
        life.applied = todo.back.step
        fork = todo.back.fork
        self._driver.outlet.emit(events.WentBack(step=todo.back.step, fork=fork.view))
        if todo.back.step == BLANK:
            self._driver.look_at_state()

    def _loaded(self, arrival: Arrival) -> None:
        driver = self._driver
        life = driver.life
        if arrival is not life.arrival or life.over is not None:
            return
        life.loaded, life.final = arrival.step, arrival.final
        life.applied = arrival.step
        driver.outlet.stands_at(arrival.step)
        driver.outlet.emit(events.Restored(step=arrival.step, origin="members"))
        if driver.saves is not None:
            driver.saves.was_given(arrival.step)
        life.arrival = Arrival()
        for member in life.view.members:
            if member.replica != driver.replica:
                life.post.send(member, driver.header(Kind.LOADED))

    def founded(self, todo: Found, step: int, view: int) -> None:
        driver = self._driver
        life = driver.life
        if life.founds is todo:
            life.founds = None
        founds = self._steps.mode is Mode.FOUNDING and life.over is None
        if step == BLANK or view != life.view.number:
            # It is not on this replica any more, or is again: in a view between the two another one may have
            # made a claim of its own.
            life.founding = founds
            return
        actions = driver.participant.founded(step, driver.now) if founds else []
        if actions:
            # A change of views may have asked for the same thing again meanwhile, and a state that members of
            # the lineage before had sent may have come.
            life.founding = False
            life.forget_state(driver.now)
            life.applied = step
            driver.outlet.stands_at(step)
            origin: Literal["checkpoint", "beginning"] = "checkpoint" if step else "beginning"
            driver.outlet.emit(events.Restored(step=step, origin=origin))
            if driver.saves is not None:
                driver.saves.stands(step)
            driver.act(actions)

    # What takes too long.

    def look_at_clock(self, now: float) -> None:
        """One who learns, or waits for the state, finds that what it lacks does not come."""
        driver = self._driver
        life, steps = driver.life, driver.participant.steps
        if life.over is not None or driver.is_over or driver.setup.alone:
            return
        patience_s = driver.setup.timing.silent_at_most_s
        if life.applied == BLANK:
            if self._hungry(now):
                driver.end_life("the state that it waits for does not come")
        elif steps.mode is Mode.LEARNING:
            if life.broken and now - life.broken_at > patience_s:
                driver.end_life("a connection over which it was given records broke")
            elif life.lack.lasts_s(steps, now) > patience_s:
                driver.end_life(f"the record of step {steps.step}, which it lacks, does not come")

    def _hungry(self, now: float) -> bool:
        """Whether a snapshot is overdue: the view has members, and nothing of it has come for long."""
        life, timing = self._life, self._driver.setup.timing
        served = self._steps.mode in (Mode.LEARNING, Mode.LOADING) and bool(life.view.members)
        # A member gives its share at the end of its step, which may be a long one; so be patient at first.
        patience_s = timing.silent_at_most_s if life.arrival.view >= 0 else timing.cold_within_s
        return served and not life.arrival.complete and now - life.heard_at > patience_s
