"""Agreeing on steps: how members come to hold the same records, whoever dies in the middle.

A *record* is the immutable result of one step. Members get it without a vote. Each sends its contribution to
everybody (its *part*), reduces the slice of the gradient that it owns, and sends that to everybody (its
*sum*); whoever has all parts and all sums of one *attempt*, (view, step), holds the record:

    COMPUTING ──contribute──▶ all parts are in ──conclude──▶ all sums are in ──▶ Completed(step)

Where the rule of the run compares whole contributions, owners first tell each other what each has to know of
all slices (their *surveys*), and reduce when all of them are in. Everything that is said of parts and sums
here holds for surveys, too.

Nobody is believed blindly: when all sums are in, they are *judged* by what came with them, alike on every
member, since all have the same. If something is doubted, the attempt is not completed but gets another
*trial*, with parts and sums of its own (`Trial` says what each is for), up to the final one, which counts as
it is. An attempt is then (view, step, trial), and a view voids them all.

Three facts make that safe, and each is one line of code below:

1. *An attempt is completed from its own pieces only.* Adopting a view throws away every part and every sum
   of the views before, in one assignment. Each slice has one owner, which reduces it once per attempt, so
   all who complete an attempt hold the same record.
2. *Contributing acknowledges.* Only who holds the record of k sends a part for k + 1. So completing k + 1
   proves that all members hold k: k is *stable*. And so the newest records of members differ by at most one.
3. *Nobody goes on before all have spoken.* When a view is adopted out of step (somebody died), every member
   says which record is its newest (`Holding`). If any has one more than others, they fetch it; else all do
   the step again. A death during this is another view, and all speak again.

Most views, though, are *planned*: a learner arrives or has caught up, a member leaves. They interrupt
nothing. Members say in their parts which planned view they know; when all name the same one in one step,
all of them, by the record of that step, switch to it at its end: *in band*. There is nothing to reconcile
then, since everybody who switches holds the same newest record. A planned view is followed out of step only
when in-band will not happen: nobody trains in the present view (it is paused), somebody has moved already
(its `Holding` says so), or a member that leaves with the planned view is gone before its last frames came.
In a paused view nobody contributes, so nobody acknowledges: there each says what it holds once it holds all,
and goes on only when everybody has said so. Else one that leaves could take the newest record with it.

Whoever is not a member learns: it gets a *snapshot* of the state after the step that was newest when its
view was adopted (the `Pin`), and all stable records after that. A learner that becomes a member in band is
handed the record of the switch itself, and takes part from the step after. A member of a new lineage has no
state at all (its newest is `BLANK`): the lowest-numbered one finds out what the lineage begins with, a
checkpoint or its own fresh model, and gives it to the others in the same way.

*Going back.* Parts also say what members know of their state being right (`verifying.py`). If it is not, the
parts are all there is of the attempt: whoever has them goes back to the newest verified state in the same
moment, and waits in `VOID` for a view that interrupts (those who differ are charged; see `charges.py`). The
newest place where the run went back is its *fork*, named by the view whose attempt was void. Members say it
in their `Holding`, and those whose fork is older go back then: to their own copy of the state, or if they
have none they are blank, and are given it. Every record has its fork in it, so whoever is given records of
two branches, or has a state of the wrong one, is lost, and knows it.

At the *end of the loop* members compare the last state, too, before anybody leaves: by `Ending`, which is no
part and acknowledges nothing.

The core decides; it holds no tensors. Whoever drives it (`train/engine.py`, the simulator) moves the bytes.
"""

from __future__ import annotations

from outlast.protocol.step_words import (
    BLANK,
    NO_FORK,
    NOTHING_SAID,
    AllDone,
    Attempt,
    Body,
    Check,
    Completed,
    Conclude,
    Ending,
    EndReached,
    Feed,
    FeedAgain,
    Follow,
    Fork,
    Found,
    GoBack,
    Gone,
    Handed,
    HandOver,
    Holding,
    Judge,
    LeftAlone,
    Lost,
    Mode,
    Part,
    Pin,
    Say,
    Stable,
    StepAction,
    Sum,
    Survey,
    Surveyed,
    Switched,
    Trial,
    Verdict,
    Want,
    Whole,
)
from outlast.protocol.verifying import Verifying, Void, judge
from outlast.protocol.views import Member, View

KEPT = 2
KEPT_FOR_LEARNERS = 4
"""Records that a member keeps: who falls further behind gets the whole state again."""

PARTS_AHEAD = 64
"""Steps for which parts are kept before their time; only a member that still catches up is ahead by many."""

NOT_THE_BEGINNING = "the state that it was given last is not what this lineage begins with"


IMMUNE = (Mode.IDLE, Mode.RUNNING, Mode.VOID, Mode.PAUSED, Mode.DONE)
"""Modes in which records of others are not taken."""


def _in_fork(holding: Holding, fork: Fork) -> int:
    """What the newest record is of one who said this, when it has gone the way of all."""
    if holding.fork == fork:
        return holding.newest
    return fork.step if holding.verified == fork.step else BLANK


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
        self.fork = NO_FORK
        """The newest place where this life, or those who gave it its state, went back."""
        self.due = False
        """Whether it is time to compare states; said in the next part."""
        self.checksum = 0
        """Of what is contributed next."""
        self._ending = False
        self._endings: dict[int, dict[int, Check]] = {}
        self.view = View()
        self.mode = Mode.IDLE
        self.newest = BLANK
        self.oldest = BLANK
        """The oldest record that is kept."""
        self.pending = 0
        self.closing = False
        self._top = BLANK
        self._told = BLANK
        """The newest step that is known to be stable here."""
        self._fed = BLANK
        """The newest step that members of this view need not feed to learners any more."""
        self._fed_in = 0
        """For one who learns: the newest view that members came into out of step, and fed it again."""
        self._fed_first = BLANK
        self._fed_top = BLANK
        self._loaded_in = 0
        """The view in which the state was given that this life began with."""
        self.trial = Trial.FIRST
        """Of the step that is being worked on."""
        self._contributed = False
        self._surveying = False
        self._concluded = False
        self._judging = False
        self._heard: dict[int, Holding] = {}
        """What each member said first in this view; all reconcile by that."""
        self._holds: dict[int, int] = {}
        """What each member said last."""
        self._teachers: list[int] = []
        """Whom to ask for records, if the one that was asked does not keep them."""
        # By step and trial.
        self._parts: dict[tuple[int, int], dict[int, Part]] = {}
        self._surveyed: dict[tuple[int, int], set[int]] = {}
        self._sums: dict[tuple[int, int], set[int]] = {}
        self._offers: dict[int, Verdict] = {}
        """Stable records that are at hand, from feeds, and what they say."""
        self._given: dict[int, Verdict] = {}
        """Records that members of this view have given; they may not be stable, so they count in it only."""
        self._loaded: set[Member] = set()

    # What happens to it.

    @property
    def step(self) -> int:
        """The step that is being worked on."""
        return self.newest + 1

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
        return self.mode is not Mode.PAUSED or any(
            self._holds.get(m.replica) != self.newest for m in self.view.members
        )

    def adopt(self, view: View, *, in_band: bool) -> list[StepAction]:
        """This view is in force: whatever belonged to earlier ones is void."""
        before, was, self.view = self.view, self.mode, view
        self._heard, self._parts, self._surveyed, self._sums, self._given = {}, {}, {}, {}, {}
        self._ending, self._endings = False, {}
        self._holds, self._teachers = {}, []
        self._begin_trial(Trial.FIRST)
        if self.verifying is not None and view.members != before.members:
            self.verifying.recomputing.forget()
        self.pending = 0
        learned = before.member(self.replica) is None and self.newest != BLANK
        if learned and self._loaded_in < view.void_before:
            # Members reconcile by what they hold. What one has who only learned may not be the beginning now.
            return [Lost(NOT_THE_BEGINNING)]
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

    def contribute(self, trial: int = Trial.FIRST) -> list[StepAction]:
        """The own contribution to this trial of the present step has been sent to all owners."""
        if self.mode is not Mode.RUNNING or self._contributed or trial != self.trial:
            return []
        self._contributed = True
        check = self.check() if trial == Trial.FIRST else None
        part = Part(self.step, self.pending, self.closing, self.trial, check)
        self._parts.setdefault((self.step, self.trial), {})[self.replica] = part
        return [Say(self.others, part), *self._progress()]

    def check(self) -> Check | None:
        """What the next part says of the state."""
        if self.verifying is None:
            return None
        return self.verifying.check(self.newest, due=self.due, checksum=self.checksum)

    def surveyed(self, step: int, trial: int = Trial.FIRST) -> list[StepAction]:
        """The own slice of this step has been surveyed, and everybody is sent that."""
        if not self._is_at(step, trial) or not self._surveying:
            return []
        self._surveyed.setdefault((step, trial), set()).add(self.replica)
        return [Say(self.others, Surveyed(step, trial)), *self._progress()]

    def summed(self, step: int, trial: int = Trial.FIRST) -> list[StepAction]:
        """The own slice of this step has been reduced and sent."""
        if not self._is_at(step, trial) or not self._concluded:
            return []
        self._sums.setdefault((step, trial), set()).add(self.replica)
        return [Say(self.others, Sum(step, trial)), *self._progress()]

    def judged(self, step: int, trial: int, *, again: bool) -> list[StepAction]:
        """What came with the sums of this trial calls for the next one, or the step is complete with it."""
        if not self._is_at(step, trial) or not self._judging:
            return []
        if not again:
            verdict = self._verdict()
            assert isinstance(verdict, Verdict), "a void attempt is not judged"
            return self._complete(verdict)
        self._begin_trial(Trial(trial + 1))
        return [Attempt(step, self.trial), *self._progress()]

    def _is_at(self, step: int, trial: int) -> bool:
        return self.mode is Mode.RUNNING and (step, trial) == (self.step, self.trial)

    def _begin_trial(self, trial: Trial) -> None:
        self.trial = trial
        self._contributed = self._surveying = self._concluded = self._judging = False

    def received(self, sender: int, body: Body) -> list[StepAction]:
        """A frame of the present view from one of its members."""
        match body:
            case Holding():
                return self._holding(sender, body)
            case Want():
                return self._wanted(sender, body.step)
            case Part() if self._near(body.step):
                self._parts.setdefault((body.step, body.trial), {})[sender] = body
                return self._progress()
            case Surveyed() if self._near(body.step):
                self._surveyed.setdefault((body.step, body.trial), set()).add(sender)
                return self._progress()
            case Sum() if self._near(body.step):
                self._sums.setdefault((body.step, body.trial), set()).add(sender)
                return self._progress()
            case Ending() if self._near(body.step + 1):
                self._endings.setdefault(body.step, {})[sender] = body.check
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
            self._offers[step] = verdict
        actions = self._take_offers()
        if self.mode is Mode.LEARNING and BLANK < self.newest < self._fed_first - 1 <= step - 1:
            # What was fed before the new beginning came before this on the same connections.
            lacking = f"it has records to step {self.newest}, and they begin at step {self._fed_first}"
            actions.append(Lost(lacking))
        return actions

    def loaded(self, step: int, view: int | None = None) -> list[StepAction]:
        """The state after this step has been received (and is, or will be, loaded before anything else). It
        was pinned in that view."""
        if self.newest != BLANK or self.mode is Mode.FOUNDING:
            return []
        if view is not None and view <= self.fork.view and step > self.fork.step:
            # It is of the branch that members have left; the right one is on its way.
            return [Lost(f"it was given the state after step {step}, which is void")]
        if self.undone(step, view):
            return [
                Lost(f"it was given the state after step {step}, and members only have step {self._fed_top}")
            ]
        awaits_beginning = self.mode is Mode.LOADING and self._top == BLANK
        learns = self.mode is Mode.LEARNING
        oldest = self.view.number if awaits_beginning else self.view.void_before if learns else 0
        if view is not None and view < oldest:
            # It comes from one who began before and is gone; since then it is on another one to begin.
            return [Lost(NOT_THE_BEGINNING)]
        self._start_from(step)
        self._loaded_in = self.view.number if view is None else view
        self._offers = {offer: verdict for offer, verdict in self._offers.items() if offer > step}
        if self.mode is Mode.LOADING:
            return [*self._compare_beginning(step), *self._caught_up()]
        return self._take_offers()

    def _compare_beginning(self, step: int) -> list[StepAction]:
        """What a lineage begins with is compared by all who begin it."""
        begins = all(holding.newest == BLANK for holding in self._heard.values())
        return self.verifying.begin(step) if self.verifying is not None and begins else []

    def digested(self, step: int, digest: bytes) -> list[StepAction]:
        """The copy of the state after this step has that digest; an empty one if there is no copy."""
        if self.verifying is None:
            return []
        actions = self.verifying.digested(step, digest)
        return [*actions, *self._say_end()]

    def _start_from(self, step: int) -> None:
        """The state after this step is ours, though not its record."""
        self.newest = self._told = self._fed = step
        self.oldest = step + 1

    def fed_from(self, view: int, first: int, top: int) -> list[StepAction]:
        """A member begins to feed again, having come into that view out of step: from that record on, and
        the newest one that any member has is `top`. That may be less than was fed before: when all who held
        the records after it are dead, and the one that is left was still catching up.

        One that lacks records before `first` is not lost yet: others may have fed them, or make it a member,
        which asks for them. It is when later ones come first (see `offered`)."""
        if self.mode is not Mode.LEARNING or view < self._fed_in:
            return []
        began, self._fed_in, self._fed_top = view > self._fed_in, view, top
        self._fed_first = first if began else max(first, self._fed_first)
        if began:
            self._offers = {offer: said for offer, said in self._offers.items() if offer <= top}
        if began and self.newest > top:
            return [Lost(f"it has records to step {self.newest}, and members only to step {top}")]
        return []

    def undone(self, step: int, view: int | None) -> bool:
        """Whether what was sent in this view is about a step that members have gone back behind since."""
        return view is not None and view < self._fed_in and step > self._fed_top

    def has_loaded(self, learner: Member) -> None:
        """A learner says that it needs no snapshot any more."""
        self._loaded = {one for one in self._loaded if self.view.learner(one.replica) == one} | {learner}

    def knows(self, number: int) -> None:
        """A planned view has been heard of."""
        self.pending = max(self.pending, number)

    def leads_to(self, planned: View) -> bool:
        """Whether members can switch to this view together: somebody has to stay, to hand on the record."""
        return not planned.members or any(m in planned.members for m in self.view.members)

    def abandons(self, planned: View, lost: frozenset[int]) -> bool:
        """Whether to follow a planned view out of step: somebody who leaves with it is gone already. One that
        has left the loop of steps has said its last word of this view with that."""
        parts = self._parts.get((self.step, Trial.FIRST), {})
        done = {replica for replica, part in parts.items() if part.closing}
        leaving = {m.replica for m in self.view.members if planned.member(m.replica) is None}
        return bool(leaving & lost - done)

    # A view that was adopted out of step.

    def _holding(self, sender: int, holding: Holding) -> list[StepAction]:
        self._heard.setdefault(sender, holding)
        self._holds[sender] = holding.newest
        if self.mode is Mode.RECONCILING:
            return self._reconcile()
        if holding.running or self.mode not in (Mode.RUNNING, Mode.JOINING):
            return []
        if self.replica in self._heard:
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
        self._heard[self.replica] = mine
        self._holds[self.replica] = self.newest
        return [Say(self.others, mine), *self._reconcile()]

    def _reconcile(self) -> list[StepAction]:
        members = [m.replica for m in self.view.members]
        if any(replica not in self._heard for replica in members):
            return []
        fork = max((self._heard[replica].fork for replica in members), key=lambda fork: fork.view)
        newest = {replica: _in_fork(self._heard[replica], fork) for replica in members}
        actions: list[StepAction] = self._go_back(fork) if fork != self.fork else []
        if max(newest.values()) == BLANK:
            return [*actions, *self._found(min(members))]
        self._top = max(newest.values())
        teacher, *self._teachers = sorted(replica for replica in members if newest[replica] == self._top)
        actions += self._pins(newest, teacher)
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
        if self.newest != BLANK and self._loaded_in == self.view.number:
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
        self._top = step
        newest = {m.replica: step if m.replica == self.replica else BLANK for m in self.view.members}
        begins = self.verifying.founded(step) if self.verifying is not None else []
        return [*begins, *self._pins(newest, self.replica), *self._caught_up()]

    def _go_back(self, fork: Fork) -> list[StepAction]:
        """What this life holds after that step is void. If it has no copy of the state, all is."""
        kept = self.verifying is not None and self.verifying.go_back(fork.step)
        step = fork.step if kept else BLANK
        self.fork = fork
        self.closing = False
        self._start_from(step)
        self._offers.clear()
        return [GoBack(fork, step)]

    def _pins(self, newest: dict[int, int], teacher: int) -> list[StepAction]:
        """Who gets the state after the newest step: blank members, and learners that do not have it yet."""
        pins: list[StepAction] = [
            Pin(member, self._top, (teacher,))
            for member in self.view.members
            if newest[member.replica] == BLANK
        ]
        if any(holding.running for holding in self._heard.values()):
            # Who came in band has fed and pinned already, as at the end of any step.
            self._fed = self._top - 1
            return pins
        # Only what every member holds may be told to others, and who was promoted may still lack a few.
        self._fed = min(newest.values())
        servers = tuple(replica for replica, step in sorted(newest.items()) if step != BLANK)
        pins += [
            Pin(learner, self._top, servers) for learner in self.view.learners if learner not in self._loaded
        ]
        if self.view.learners:
            pins.append(FeedAgain(self.oldest, self._fed, self._top))
        return pins

    def _wanted(self, sender: int, first: int) -> list[StepAction]:
        if first < self.oldest or first > self.newest:
            return [Say((sender,), Gone(first))]
        return [Say((sender,), Whole(step)) for step in range(first, self.newest + 1)]

    def _ask_next(self, lacking: int) -> list[StepAction]:
        """One that was given the state after a step does not have its record; another may."""
        if not self._teachers:
            return [Lost(f"nobody keeps the record of step {lacking}, which this replica lacks")]
        return [Say((self._teachers.pop(0),), Want(self.step))]

    def _caught_up(self) -> list[StepAction]:
        self._offers.clear()
        self._given.clear()
        if self.view.paused:
            self.mode = Mode.PAUSED
            return self._acknowledge()
        self.mode = Mode.RUNNING
        return [Attempt(self.step)]

    def _acknowledge(self) -> list[StepAction]:
        """Say that we hold all there is, unless that was what we said in the first place."""
        if self._holds.get(self.replica) == self.newest:
            return []
        self._holds[self.replica] = self.newest
        return [Say(self.others, self._mine(running=True))]

    # A view that was switched to in band.

    def _switched(self, before: View) -> list[StepAction]:
        self._fed = self.newest - 1
        stayed = tuple(m.replica for m in self.view.members if m in before.members)
        new = tuple(m.replica for m in self.view.members if m not in before.members)
        learners = tuple(m.replica for m in self.view.learners)
        actions: list[StepAction] = []
        if new or learners:
            actions.append(Say((*new, *learners), Switched(self.view)))
        if new:
            actions.append(HandOver(self.newest, new, stayed))
        actions += [
            Pin(learner, self.newest, stayed)
            for learner in self.view.learners
            if learner not in before.learners and learner not in before.members
        ]
        return actions + self._caught_up()

    def _handed(self, sender: int, handed: Handed) -> list[StepAction]:
        """Feeds came before this on the same connections. What is missing still is not coming: ask for it."""
        step = handed.step
        if self.newest > step:
            return [Lost(f"it holds step {self.newest}, and members are only at step {step}")]
        self.mode, self._top, self._fed = Mode.FETCHING, step, step - 1
        actions = self._take(step, handed.verdict)
        if self.mode is Mode.FETCHING:
            actions.append(Say((sender,), Want(self.step)))
        return actions

    # One step.

    def _near(self, step: int) -> bool:
        if self.newest == BLANK or self.mode is Mode.RECONCILING:
            # The state that is on its way may be that of any step, and the others may be done with the next;
            # or all go back, and others were quicker.
            return (step, Trial.FIRST) in self._parts or len(self._parts) < PARTS_AHEAD
        return self.newest < step <= self.newest + PARTS_AHEAD

    def _progress(self) -> list[StepAction]:
        """Conclude, judge or complete the present attempt, if everything for that is there."""
        if self.mode is not Mode.RUNNING:
            return []
        members = {m.replica for m in self.view.members}
        attempt = (self.step, self.trial)
        parts = self._parts.get(attempt, {})
        if not members <= parts.keys():
            return self._look_for_closing(parts)
        if any(part.closing for part in parts.values()):
            return self._close(parts)
        verdict = self._verdict()
        if isinstance(verdict, Void):
            return self._undo(verdict)
        surveys = self._surveys and self.trial is not Trial.HEARING
        if surveys and not self._surveying:
            self._surveying = True
            return [Survey(*attempt)]
        if surveys and not members <= self._surveyed.get(attempt, set()):
            return []
        if not self._concluded:
            self._concluded = True
            return [Conclude(*attempt)]
        if not members <= self._sums.get(attempt, set()):
            return []
        if not self.judges or self.trial is Trial.FINAL:
            return self._complete(verdict)
        if self._judging:
            return []
        self._judging = True
        return [Judge(*attempt)]

    def _verdict(self) -> Verdict | Void:
        """What the parts of the first trial say of the states of those who made them, taken together."""
        parts = self._parts[self.step, Trial.FIRST]
        return judge({m.replica: parts[m.replica].check for m in self.view.members}, self.fork)

    def _undo(self, void: Void) -> list[StepAction]:
        """States differ: nothing comes of this attempt, and nothing of all since the last verified state."""
        self._parts, self._surveyed, self._sums, self._endings = {}, {}, {}, {}
        actions = self._go_back(Fork(self.view.number, void.back_to))
        if self.verifying is not None and not void.members:
            self.verifying.recomputing.go_back(void.step, void.digests)
        self.mode, self._ending = Mode.VOID, False
        return [void.said, *actions]

    def end(self) -> list[StepAction]:
        """The loop of steps ends after the newest one. Says `EndReached` when all states are known to be
        equal, or when nobody can say anything else; and nothing in a view that ends before that."""
        if self.mode is not Mode.RUNNING or self._ending or self._contributed:
            return []
        if self.verifying is None or not self.others:
            return [EndReached(self.newest)]
        self._ending = True
        last = self.verifying.check(self.newest, due=False)
        begin = self.verifying.begin(self.newest) if last.step != self.newest else []
        return [*begin, *self._say_end()]

    def _say_end(self) -> list[StepAction]:
        """Once the digest of the last state is there."""
        if not self._ending or self.verifying is None or not self.verifying.known:
            return []
        mine = self.verifying.check(self.newest, due=False)
        known = self._endings.setdefault(self.newest, {})
        if self.replica in known:
            return []
        known[self.replica] = mine
        return [Say(self.others, Ending(self.newest, mine)), *self._end()]

    def _end(self) -> list[StepAction]:
        """Who has gone on, or compares nothing, has said something else by now."""
        endings, parts = self._endings.get(self.newest, {}), self._parts.get((self.step, Trial.FIRST), {})
        if not self._ending or self.replica not in endings or self.mode is not Mode.RUNNING:
            return []
        checks: dict[int, Check | None] = {replica: part.check for replica, part in parts.items()}
        checks |= endings
        if any(m.replica not in checks for m in self.view.members):
            return []
        verdict = judge(checks, self.fork)
        if isinstance(verdict, Void):
            return self._undo(verdict)
        self._ending = False
        assert self.verifying is not None
        # Whether the next step's state is chosen is not decided here.
        outcome = Verdict(verified=verdict.verified, digest=verdict.digest, dropped=verdict.dropped)
        return [*self.verifying.take(self.newest, outcome), EndReached(self.newest)]

    def _look_for_closing(self, parts: dict[int, Part]) -> list[StepAction]:
        """One that goes on while we have left: say so at once, it may never hear from everybody."""
        if self._ending:
            return self._end()
        others = tuple(sorted(replica for replica, part in parts.items() if not part.closing))
        if self.closing and self._contributed and others:
            return [LeftAlone(others)]
        return []

    def _close(self, parts: dict[int, Part]) -> list[StepAction]:
        others = tuple(sorted(replica for replica, part in parts.items() if not part.closing))
        if not others:
            self.mode = Mode.DONE
            return [*self._tell_stable(self.newest), AllDone()]
        return [LeftAlone(others)] if self.closing else []

    def _complete(self, verdict: Verdict) -> list[StepAction]:
        parts = self._parts[self.step, Trial.FIRST]
        if self.verifying is not None and len(parts) == 2:
            checks = {replica: part.check for replica, part in parts.items()}
            sums = {replica: check.checksum for replica, check in checks.items() if check is not None}
            self.verifying.recomputing.contributed(self.step, sums)
        named = {part.pending for part in parts.values()}
        switch = named.pop() if len(named) == 1 else 0
        actions = self._hold(self.step, verdict)
        if switch > self.view.number:
            # The attempt of the next step belongs to the next view.
            return [*actions, Follow(switch)]
        return [*actions, Attempt(self.step)]

    def _hold(self, step: int, verdict: Verdict) -> list[StepAction]:
        """The record of this step is ours."""
        if self._of_another_branch(step, verdict.fork):
            return [Lost(f"its state after step {step - 1} is of a branch that members have left")]
        self.newest = step
        for trial in Trial:
            self._parts.pop((step, trial), None)
            self._surveyed.pop((step, trial), None)
            self._sums.pop((step, trial), None)
        self._begin_trial(Trial.FIRST)
        actions: list[StepAction] = [Completed(step, verdict)]
        if self.verifying is not None:
            actions += self.verifying.take(step, verdict)
        if self.mode is Mode.RUNNING:
            actions += self._tell_stable(step - 1)
        elif self.view.member(self.replica) is None:
            # Learners are told of stable steps only.
            self._told = step
        kept = KEPT_FOR_LEARNERS if self.view.learners else KEPT
        self.oldest = max(self.oldest, step - kept + 1)
        return actions

    def _of_another_branch(self, step: int, fork: Fork) -> bool:
        """Whether a record that was made behind this fork does not follow upon what this life holds."""
        if fork.view < self.fork.view:
            return step > self.fork.step
        if fork.view == self.fork.view:
            return False
        if step - 1 > fork.step and self._loaded_in <= fork.view:
            return True
        self.fork = fork
        return False

    def _tell_stable(self, last: int) -> list[StepAction]:
        """All members have contributed after this step, so all hold it, and all before it. Steps whose
        records were fetched are told here too: when they were, somebody else may still have lacked them."""
        actions: list[StepAction] = [Stable(step) for step in range(self._told + 1, last + 1)]
        self._told = max(self._told, last)
        if self.view.learners:
            first = max(self._fed + 1, self.oldest)
            actions += [Feed(step) for step in range(first, last + 1)]
        self._fed = max(self._fed, last)
        return actions

    # Records that others hold.

    def _take(self, step: int, verdict: Verdict) -> list[StepAction]:
        if step > self.newest:
            self._given[step] = verdict
        return self._take_offers()

    def _take_offers(self) -> list[StepAction]:
        if self.newest == BLANK or self.mode in IMMUNE:
            return []
        actions: list[StepAction] = []
        while self.step in self._offers or self.step in self._given:
            offered, given = self._offers.pop(self.step, None), self._given.pop(self.step, None)
            actions += self._hold(self.step, given or offered or NOTHING_SAID)
            if any(isinstance(action, Lost) for action in actions):
                return actions
        arrived = self.mode is Mode.FETCHING and self.newest == self._top
        if arrived:
            actions += self._caught_up()
        return actions
