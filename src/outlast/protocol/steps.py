"""Agreeing on steps: how members come to hold the same records, whoever dies in the middle.

A *record* is the immutable result of one step. Members get it without a vote. Each sends its contribution to
everybody (its *part*), reduces the slice of the gradient that it owns, and sends that to everybody (its
*sum*); whoever has all parts and all sums of one *attempt*, (view, step), holds the record:

    COMPUTING ──contribute──▶ all parts are in ──conclude──▶ all sums are in ──▶ Completed(step)

There may be more to an attempt, surveys and further trials (`attempts.py`). Everything that is said of parts
and sums here holds for those, too.

Three facts make that safe, and each is one line of code below:

1. *An attempt is completed from its own pieces only.* Adopting a view throws away every part and every sum
   of the views before, in one assignment. Each slice has one owner, which reduces it once per attempt, so
   all who complete an attempt hold the same record.
2. *Contributing acknowledges.* Only who holds the record of k sends a part for k + 1. So completing k + 1
   proves that all members hold k: k is *stable*. And so the newest records of members differ by at most one.
3. *Nobody goes on before all have spoken.* When a view is adopted out of step (somebody died), every member
   says which record is its newest (`Holding`; `reconciling.py`). If any has one more than others, they fetch
   it; else all do the step again. A death during this is another view, and all speak again.

Most views, though, are *planned*, and members switch to them *in band* (`switching.py`).

Whoever is not a member learns: it gets a *snapshot* of the state after the step that was newest when its
view was adopted (the `Pin`), and all stable records after that. A learner that becomes a member in band is
handed the record of the switch itself, and takes part from the step after. A member of a new lineage has no
state at all (its newest is `BLANK`): the lowest-numbered one finds out what the lineage begins with, a
checkpoint or its own fresh model, and gives it to the others in the same way.

What the core knows is kept by parts of it, each with its own story. It is the one who connects them:

    attempts.py, last_state.py   what members contribute to a step, and what they say at the end of the loop
    reconciling.py               what members hold when they come into a view out of step
    switching.py                 planned views
    offers.py, keeping.py        records that others have made; records that are kept for others
    descent.py, verifying.py     which branch the state is of; whether it is right

The core decides; it holds no tensors. Whoever drives it (`train/engine.py`, the simulator) moves the bytes.
"""

from __future__ import annotations

from outlast.protocol.attempts import Attempts
from outlast.protocol.descent import Descent
from outlast.protocol.keeping import Keeping
from outlast.protocol.last_state import LastState
from outlast.protocol.offers import Offers
from outlast.protocol.reconciling import Ground, Holdings
from outlast.protocol.step_words import (
    BLANK,
    NOTHING_SAID,
    AllDone,
    Attempt,
    Body,
    Check,
    Completed,
    Ending,
    EndReached,
    Follow,
    Fork,
    Found,
    GoBack,
    Gone,
    Handed,
    Holding,
    Lost,
    Mode,
    Part,
    Say,
    StepAction,
    Sum,
    Surveyed,
    Trial,
    Verdict,
    Want,
    Whole,
)
from outlast.protocol.switching import can_switch, hand_over, named_by_all, switch_in_vain
from outlast.protocol.verifying import Verifying, Void
from outlast.protocol.views import Member, View

NOT_THE_BEGINNING = "the state that it was given last is not what this lineage begins with"

IMMUNE = (Mode.IDLE, Mode.RUNNING, Mode.VOID, Mode.PAUSED, Mode.DONE)
"""Modes in which records of others are not taken."""


class StepCore:
    """One life of a replica."""

    def __init__(
        self, replica: int, *, surveys: bool = False, judges: bool = False, verifies: bool = False
    ) -> None:
        """`surveys`: slices are surveyed before they are reduced. `judges`: sums are judged before they
        count. `verifies`: states are compared."""
        self.replica = replica
        self._surveys = surveys
        self.judges = judges
        self.verifying = Verifying() if verifies else None
        self.due = False
        """Whether it is time to compare states; said in the next part."""
        self.checksum = 0
        """Of what is contributed next."""
        self.buffers = b""
        """Digest of the buffers from which that was computed."""
        self.buffer_entries = b""
        """Digests of each of them; needed once members have gone back."""
        self.view = View()
        self.mode = Mode.IDLE
        self.newest = BLANK
        self.pending = 0
        self.resting = False
        """Whether the training thread has come to the end of its loop, and is beside the steps: it has no
        part in them, and whoever needs the state is given it."""
        self.ending = False
        """Whether it has come to the end of its loop: there is nothing left to pause for."""
        self.closing = False
        """Whether it has left for good, and does no more steps."""
        self._top = BLANK
        """The newest record that any member has, for one that catches up."""
        self._teachers: list[int] = []
        """Whom to ask for records, if the one that was asked does not keep them."""
        self._loaded: set[Member] = set()
        """Learners that need no snapshot any more."""
        self._descent = Descent()
        self._keeping = Keeping()
        self._offers = Offers()
        self._attempts: Attempts
        self._last_state: LastState
        self._begin_attempts()
        self._holdings = Holdings(self.view)

    # What happens to it.

    @property
    def step(self) -> int:
        """The step that is being worked on."""
        return self.newest + 1

    @property
    def trial(self) -> Trial:
        """Of the step that is being worked on."""
        return self._attempts.trial

    @property
    def has_a_gap(self) -> bool:
        """A learner: whether records are at hand that it cannot take, because one before them has not come.
        Records come in order, so that one is lost."""
        return self.mode is Mode.LEARNING and self.newest != BLANK and self._offers.any_after(self.step)

    @property
    def stands(self) -> str:
        """Where it is, and what it waits for, for people."""
        missing = self._attempts.missing(self.step)
        lacks = ", ".join(f"{what} of {who}" for what, who in missing.items() if who) or "nothing"
        trial = f" (trial {self.trial.name.lower()})" if self.trial else ""
        return (
            f"{self.mode.name.lower()} in view {self.view.number} at step {self.step}{trial}, lacking {lacks}"
        )

    @property
    def oldest(self) -> int:
        """The oldest record that is kept."""
        return self._keeping.oldest

    @property
    def fork(self) -> Fork:
        """The newest place where this life, or those who gave it its state, went back."""
        return self._descent.fork

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(m.replica for m in self.view.members if m.replica != self.replica)

    @property
    def holds_planned_views(self) -> bool:
        """Whether a planned view has to wait for the end of a step, rather than be followed at once. Who has
        gone back waits for a view and for nothing else: any will do. (By the time a charge is counted,
        planned views may have more members than there were to make it.)"""
        if self.mode is Mode.VOID:
            return False
        return self.mode is not Mode.PAUSED or not self._holdings.all_hold(self.newest)

    def follows_at_once(self, planned: View) -> bool:
        """Whether to follow a planned view out of step, because there is no step at whose end it could be put
        into force: the loop is over here. The others are told, and do the same."""
        if not self.holds_planned_views:
            return True
        over = self.mode is Mode.DONE or (self.resting and self.mode is Mode.RUNNING)
        return over and planned.member(self.replica) is not None

    def adopt(self, view: View, *, in_band: bool) -> list[StepAction]:
        """This view is in force: whatever belonged to earlier ones is void."""
        before, was, self.view = self.view, self.mode, view
        if 0 < before.lineage < view.lineage:
            # It does its steps anew, and those of the one before are nothing to go on from.
            self._offers.begin_anew(view.number)
        self._begin_attempts()
        self._holdings, self._teachers = Holdings(view), []
        self._offers.forget_given()
        if self.verifying is not None and view.members != before.members:
            self.verifying.recomputing.forget()
        self.pending = 0
        learned = before.member(self.replica) is None and self.newest != BLANK
        if learned and self._descent.is_older_than_beginning(view):
            # Members reconcile by what they hold. What one has who only learned may not be the beginning now.
            return [Lost(NOT_THE_BEGINNING)]
        self._descent.adopt(view)
        if view.member(self.replica) is None:
            self.mode = Mode.LEARNING
            if self.newest != BLANK and before.lineage < view.lineage:
                # The new lineage does its steps anew; what it feeds must not be taken for what follows here.
                return [Lost(f"its state is that of lineage {before.lineage}, which is over")]
            return []
        if in_band and was is Mode.RUNNING:
            return self._switched(before)
        if in_band:
            self.mode = Mode.JOINING
            return []
        return self._speak()

    def _begin_attempts(self) -> None:
        """All pieces that are there are void."""
        self._attempts = Attempts(self.view, surveys=self._surveys, judges=self.judges)
        self._last_state = LastState(self.replica)

    def contribute(self, trial: int = Trial.FIRST) -> list[StepAction]:
        """The own contribution to this trial of the present step has been sent to all owners."""
        if self.mode is not Mode.RUNNING or self._attempts.contributed or trial != self.trial:
            return []
        self._attempts.contributed = True
        check = self.check() if trial == Trial.FIRST else None
        return self._say(Part(self.step, self.pending, self.closing, self.trial, check))

    def check(self) -> Check | None:
        """What the next part says of the state."""
        if self.verifying is None:
            return None
        return self.verifying.check(
            self.newest,
            due=self.due,
            checksum=self.checksum,
            buffers=self.buffers,
            buffer_entries=self.buffer_entries,
        )

    def surveyed(self, step: int, trial: int = Trial.FIRST) -> list[StepAction]:
        """The own slice of this step has been surveyed, and everybody is sent that."""
        if not self._is_at(step, trial) or not self._attempts.surveying:
            return []
        return self._say(Surveyed(step, trial))

    def summed(self, step: int, trial: int = Trial.FIRST) -> list[StepAction]:
        """The own slice of this step has been reduced and sent."""
        if not self._is_at(step, trial) or not self._attempts.concluded:
            return []
        return self._say(Sum(step, trial))

    def judged(self, step: int, trial: int, *, again: bool) -> list[StepAction]:
        """What came with the sums of this trial calls for the next one, or the step is complete with it."""
        if not self._is_at(step, trial) or not self._attempts.judging:
            return []
        if not again:
            verdict = self._attempts.verdict(step, self.fork)
            assert isinstance(verdict, Verdict), "a void attempt is not judged"
            return self._complete(verdict)
        self._attempts.begin(Trial(trial + 1))
        return [Attempt(step, self.trial), *self._progress()]

    def _is_at(self, step: int, trial: int) -> bool:
        return self.mode is Mode.RUNNING and (step, trial) == (self.step, self.trial)

    def _say(self, piece: Part | Surveyed | Sum) -> list[StepAction]:
        self._attempts.take(self.replica, piece)
        return [Say(self.others, piece), *self._progress()]

    def received(self, sender: int, body: Body) -> list[StepAction]:
        """A frame of the present view from one of its members."""
        match body:
            case Holding():
                return self._holding(sender, body)
            case Want():
                return [Say((sender,), answer) for answer in self._keeping.answer(body.step, self.newest)]
            case Part() | Surveyed() | Sum() if self._near(body.step):
                self._attempts.take(sender, body)
                return self._progress()
            case Ending() if self._near(body.step + 1):
                self._last_state.take(sender, body)
                return self._end()
            case Whole():
                return self._take(body.step, body.verdict)
            case Handed() if self.mode is Mode.JOINING:
                return self._handed(sender, body)
            case Gone() if self.mode is Mode.FETCHING:
                return self._ask_next(body.step)
        return []

    def offered(
        self, step: int, view: int | None = None, verdict: Verdict = NOTHING_SAID
    ) -> list[StepAction]:
        """The whole record of this step is at hand, from a feed of that view."""
        if step > self.newest and not self.undone(step, view):
            self._offers.feed(step, verdict)
        actions, first = self._take_offers(), self._offers.first
        if self.mode is Mode.LEARNING and BLANK < self.newest < first - 1 <= step - 1:
            # What was fed before the new beginning came before this on the same connections.
            actions.append(Lost(f"it has records to step {self.newest}, and they begin at step {first}"))
        return actions

    def loaded(self, step: int, view: int | None = None) -> list[StepAction]:
        """The state after this step has been received (and is, or will be, loaded before anything else). It
        was pinned in that view."""
        if self.newest != BLANK or self.mode is Mode.FOUNDING:
            return []
        if self._descent.has_left(step, view):
            # The right one is on its way.
            return [Lost(f"it was given the state after step {step}, which is void")]
        if self.undone(step, view):
            top = self._offers.top
            return [Lost(f"it was given the state after step {step}, and members only have step {top}")]
        awaits_beginning = self.mode is Mode.LOADING and self._top == BLANK
        learns = self.mode is Mode.LEARNING
        oldest = self.view.number if awaits_beginning else self.view.void_before if learns else 0
        if view is not None and view < oldest:
            # It comes from one who began before and is gone; since then it is on another one to begin.
            return [Lost(NOT_THE_BEGINNING)]
        self._start_from(step)
        self._descent.given_in = self.view.number if view is None else view
        self._descent.given_step = step
        self._offers.start_after(step)
        if self.mode is Mode.LOADING:
            return [*self._compare_beginning(step), *self._caught_up()]
        return self._take_offers()

    def _compare_beginning(self, step: int) -> list[StepAction]:
        """What a lineage begins with is compared by all who begin it."""
        if self.verifying is None or not self._holdings.nobody_had_any:
            return []
        return self.verifying.begin(step)

    def digested(self, step: int, digest: bytes, entries: bytes = b"") -> list[StepAction]:
        """The copy of the state after this step has that digest, an empty one if there is no copy, and these
        digests of its entries."""
        if self.verifying is None:
            return []
        actions = self.verifying.digested(step, digest, entries)
        return [*actions, *self._say_end()]

    def _start_from(self, step: int) -> None:
        """The state after this step is ours, though not its record."""
        self.newest = step
        self._keeping.start_after(step)

    def fed_from(self, view: int, first: int, top: int) -> list[StepAction]:
        """A member begins to feed again, having come into that view out of step: from that record on, and
        the newest one that any member has is `top`.

        One that lacks records before `first` is not lost yet: others may have fed them, or make it a member,
        which asks for them. It is when later ones come first (see `offered`)."""
        if self.mode is not Mode.LEARNING or not self._offers.feed_again(view, first, top):
            return []
        if self.newest > top:
            return [Lost(f"it has records to step {self.newest}, and members only to step {top}")]
        return []

    def undone(self, step: int, view: int | None) -> bool:
        """Whether what was sent in this view is about a step that members have gone back behind since."""
        return self._offers.undone(step, view)

    def holds_back(self, steps: int) -> None:
        """What learners are fed is so many steps late: until it leaves, records are kept for them."""
        self._keeping.held_back = steps

    def has_loaded(self, learner: Member) -> None:
        """A learner says that it needs no snapshot any more."""
        self._loaded = {one for one in self._loaded if self.view.learner(one.replica) == one} | {learner}

    def knows(self, number: int) -> None:
        """A planned view has been heard of."""
        self.pending = max(self.pending, number)

    def leads_to(self, planned: View) -> bool:
        """Whether members can switch to this view together."""
        return can_switch(self.view, planned)

    def abandons(self, planned: View, lost: frozenset[int]) -> bool:
        """Whether to follow a planned view out of step: somebody who leaves with it is gone already."""
        return switch_in_vain(self.view, planned, self._attempts.parts(self.step), lost)

    # A view that was adopted out of step.

    def _holding(self, sender: int, holding: Holding) -> list[StepAction]:
        self._holdings.take(sender, holding)
        if self.mode is Mode.RECONCILING:
            return self._reconcile()
        if holding.running or self.mode not in (Mode.RUNNING, Mode.JOINING):
            return []
        if self._holdings.has_spoken(self.replica):
            # Everybody here has reconciled; this is no question.
            return []
        if self.mode is Mode.JOINING:
            # One who comes out of step has no share of the record to hand over: ask for it instead.
            return self._speak()
        return [Say((sender,), self._mine(running=True))]

    def _mine(self, *, running: bool = False) -> Holding:
        verified = self.verifying.verified if self.verifying is not None else BLANK
        return Holding(self.newest, running, verified, self.fork)

    def _speak(self) -> list[StepAction]:
        self.mode = Mode.RECONCILING
        mine = self._mine()
        self._holdings.take(self.replica, mine)
        return [Say(self.others, mine), *self._reconcile()]

    def _reconcile(self) -> list[StepAction]:
        ground = self._holdings.ground()
        if ground is None:
            return []
        actions = self._go_back(ground.fork) if ground.fork != self.fork else []
        if ground.top == BLANK:
            return [*actions, *self._found(ground.founder)]
        teacher, *self._teachers = ground.teachers
        actions += self._give(ground)
        # What was said may be out of date: a state that was on its way has been loaded meanwhile.
        if self.newest == BLANK:
            self.mode = Mode.LOADING
        elif self.newest < self._top:
            self.mode = Mode.FETCHING
            actions += self._take_offers()
            if self.mode is Mode.FETCHING:
                actions.append(Say((teacher,), Want(self.step)))
        else:
            actions += self._caught_up()
        return actions

    def _found(self, founder: int) -> list[StepAction]:
        """Nobody had anything when they spoke."""
        if self.newest != BLANK and self._descent.given_in == self.view.number:
            # The founder has heard from all, and was quick.
            self._top = self.newest
            return self._caught_up()
        if self.newest != BLANK:
            # A state that was still on its way here when all others had none is older than the beginning.
            return [Lost(NOT_THE_BEGINNING)]
        self._top = BLANK
        self.mode = Mode.FOUNDING if founder == self.replica else Mode.LOADING
        return [Found()] if founder == self.replica else []

    def founded(self, step: int) -> list[StepAction]:
        """This replica holds the state that the lineage begins with, which is the one after this step."""
        if self.mode is not Mode.FOUNDING:
            return []
        self._start_from(step)
        ground = self._holdings.ground()
        assert ground is not None, "nobody founds before all have spoken"
        begins = self.verifying.founded(step) if self.verifying is not None else []
        return [*begins, *self._give(ground.founded(step)), *self._caught_up()]

    def _go_back(self, fork: Fork) -> list[StepAction]:
        """What this life holds after that step is void. If it has no copy of the state, all is."""
        kept = self.verifying is not None and self.verifying.go_back(fork.step)
        step = fork.step if kept else BLANK
        self._descent.fork = fork
        self.closing = self.ending = False
        self._start_from(step)
        self._offers.forget_fed()
        return [GoBack(fork, step)]

    def _give(self, ground: Ground) -> list[StepAction]:
        # What every member holds is stable. It is told before it is fed to anybody.
        held = min(ground.fed, self.newest)
        stable = self._keeping.stable(held, learners=False) if not ground.in_band else []
        self._top, self._keeping.fed = ground.top, ground.fed
        return [*stable, *ground.gifts(self.oldest, self._loaded)]

    def _ask_next(self, lacking: int) -> list[StepAction]:
        """One that was given the state after a step does not have its record; another may."""
        if not self._teachers:
            return [Lost(f"nobody keeps the record of step {lacking}, which this replica lacks")]
        return [Say((self._teachers.pop(0),), Want(self.step))]

    def _caught_up(self) -> list[StepAction]:
        self._offers.forget()
        acknowledged = self._acknowledge() if self.view.paused else []
        if self.view.paused and not self.ending:
            self.mode = Mode.PAUSED
            return acknowledged
        self.mode = Mode.RUNNING
        return [*acknowledged, Attempt(self.step)]

    def close(self) -> list[StepAction]:
        """The loop is left here for good."""
        self.closing = True
        return self._stop_pausing()

    def _stop_pausing(self) -> list[StepAction]:
        self.ending = True
        if self.mode is not Mode.PAUSED:
            return []
        self.mode = Mode.RUNNING
        return [Attempt(self.step)]

    def _acknowledge(self) -> list[StepAction]:
        """Say that we hold all there is, unless that was what we said in the first place."""
        if not self._holdings.acknowledge(self.replica, self.newest):
            return []
        return [Say(self.others, self._mine(running=True))]

    # A view that was switched to in band.

    def _switched(self, before: View) -> list[StepAction]:
        self._keeping.fed = self.newest - 1
        return [*hand_over(before, self.view, self.newest), *self._caught_up()]

    def _handed(self, sender: int, handed: Handed) -> list[StepAction]:
        """Feeds came before this on the same connections. What is missing still is not coming: ask for it."""
        step = handed.step
        if self.newest > step:
            return [Lost(f"it holds step {self.newest}, and members are only at step {step}")]
        self.mode, self._top, self._keeping.fed = Mode.FETCHING, step, step - 1
        actions = self._take(step, handed.verdict)
        if self.mode is Mode.FETCHING:
            # It may have been given the state after that step itself, and lack its record; others have it.
            self._teachers = [replica for replica in self.others if replica != sender]
            actions.append(Say((sender,), Want(self.step)))
        return actions

    # One step.

    def _near(self, step: int) -> bool:
        # The state that is on its way may be that of any step, and the others may be done with the next; or
        # all go back, and others were quicker.
        anywhere = self.newest == BLANK or self.mode is Mode.RECONCILING
        return self._attempts.has_room_for(step, None if anywhere else self.newest)

    def _progress(self) -> list[StepAction]:
        """Conclude, judge or complete the present attempt, if everything for that is there."""
        if self.mode is not Mode.RUNNING:
            return []
        if self._last_state.awaited and not self._attempts.has_all_parts(self.step):
            return self._end()
        match self._attempts.proceed(self.step, self.fork, closing=self.closing):
            case Verdict() as verdict:
                return self._complete(verdict)
            case Void() as void:
                return self._undo(void)
            case AllDone() as done:
                self.mode = Mode.DONE
                return [*self._tell_stable(self.newest), done]
            case actions:
                return actions

    def _undo(self, void: Void) -> list[StepAction]:
        """States differ: nothing comes of this attempt, and nothing of all since the last verified state."""
        self._begin_attempts()
        actions = self._go_back(Fork(self.view.number, void.back_to))
        if self.verifying is not None:
            self.verifying.before = void.difference
        if self.verifying is not None and not void.members:
            if BLANK < void.back_to < void.step:
                self.verifying.recomputing.go_back(void.step, void.digests, buffers=void.buffers)
            else:
                # What a lineage began with was given, and not computed by whoever has the wrong one.
                self.verifying.recomputing.forget()
        self.mode = Mode.VOID
        return [void.said, *actions]

    def end(self) -> list[StepAction]:
        """The loop of steps ends after the newest one. Says `EndReached` when all states are known to be
        equal, or when nobody can say anything else; and nothing in a view that ends before that."""
        actions = self._stop_pausing()
        if self.mode is not Mode.RUNNING or self._last_state.awaited or self._attempts.contributed:
            return actions
        if self.verifying is None or not self.others or self._last_state.agreed == self.newest:
            # Asked twice in one view, it is the same answer: nobody says its word twice.
            return [*actions, EndReached(self.newest)]
        return [*actions, *self._last_state.begin(self.newest, self.verifying), *self._say_end()]

    def _say_end(self) -> list[StepAction]:
        """Once the digest of the last state is there."""
        mine = self._last_state.own_word(self.newest, self.verifying) if self.verifying is not None else None
        return [Say(self.others, mine), *self._end()] if mine is not None else []

    def _end(self) -> list[StepAction]:
        if self.mode is not Mode.RUNNING:
            return []
        members = [m.replica for m in self.view.members]
        verdict = self._last_state.judge(self.newest, self._attempts.parts(self.step), members, self.fork)
        if verdict is None:
            return []
        if isinstance(verdict, Void):
            return self._undo(verdict)
        assert self.verifying is not None
        return [*self.verifying.take(self.newest, verdict), EndReached(self.newest)]

    def _complete(self, verdict: Verdict) -> list[StepAction]:
        parts = self._attempts.parts(self.step)
        checks = {replica: part.check for replica, part in parts.items() if part.check is not None}
        if self.verifying is not None:
            self.verifying.heard(verdict, checks)
        if self.verifying is not None and len(parts) == 2:
            sums = {replica: check.checksum for replica, check in checks.items()}
            buffers = {replica: check.buffers for replica, check in checks.items()}
            self.verifying.recomputing.contributed(self.step, sums, buffers)
        switch = named_by_all(parts)
        actions = self._hold(self.step, verdict)
        if switch > self.view.number:
            # The attempt of the next step belongs to the next view.
            return [*actions, Follow(switch)]
        return [*actions, Attempt(self.step)]

    def _hold(self, step: int, verdict: Verdict) -> list[StepAction]:
        """The record of this step is ours."""
        if not self._descent.follow(step, verdict.fork):
            return [Lost(f"its state after step {step - 1} is of a branch that members have left")]
        self.newest = step
        self._attempts.forget(step)
        actions: list[StepAction] = [Completed(step, verdict)]
        if self.verifying is not None:
            actions += self.verifying.take(step, verdict)
        if self.mode is Mode.RUNNING:
            actions += self._tell_stable(step - 1)
        elif self.view.member(self.replica) is None:
            # Learners are told of stable steps only.
            self._keeping.told = step
        self._keeping.keep(step, learners=bool(self.view.learners))
        return actions

    def _tell_stable(self, last: int) -> list[StepAction]:
        """All members have contributed after this step, so all hold it, and all before it."""
        return self._keeping.stable(last, learners=bool(self.view.learners))

    # Records that others hold.

    def _take(self, step: int, verdict: Verdict) -> list[StepAction]:
        if step > self.newest:
            self._offers.give(step, verdict)
        return self._take_offers()

    def _take_offers(self) -> list[StepAction]:
        if self.newest == BLANK or self.mode in IMMUNE:
            return []
        actions: list[StepAction] = []
        while (verdict := self._offers.pop(self.step)) is not None:
            actions += self._hold(self.step, verdict)
            if any(isinstance(action, Lost) for action in actions):
                return actions
        arrived = self.mode is Mode.FETCHING and self.newest == self._top
        if arrived:
            actions += self._caught_up()
        return actions
