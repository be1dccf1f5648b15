"""A replica's two cores as one: which view is in force (`member`), and what is done in it (`steps`).

The cores do not know of each other. Here is what connects them, and nothing else:

- a view that is adopted ends every attempt of the one before, in the same event;
- a view that was switched to in band comes from a completed step;
- a planned view waits for that, unless it would wait in vain;
- frames reach the steps only after the member has passed them.

Everything that happens to a replica is an event here, and every event returns what is to be done, in order.
The driver (the engine of a training process, or the simulator) does it and thinks no further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from outlast.protocol.member import (
    Adopt,
    Deliver,
    FencedOff,
    Frame,
    JobOver,
    MayBegin,
    MemberAction,
    MemberCore,
    Overflow,
    Planned,
    Recorded,
    Tell,
)
from outlast.protocol.messages import Message
from outlast.protocol.naming import Kept
from outlast.protocol.saving import Ended, SaveAction, SaveBody, SaveCore
from outlast.protocol.step_words import (
    BLANK,
    NOTHING_SAID,
    Accused,
    Body,
    Differ,
    Dropped,
    Follow,
    GoBack,
    Lost,
    Mode,
    Stable,
    StepAction,
    Trial,
    Verdict,
    Verified,
)
from outlast.protocol.steps import StepCore
from outlast.protocol.views import Charge, Foundation, Intent, Member, View

Action = Tell | Adopt | Deliver | Overflow | FencedOff | JobOver | MayBegin | StepAction | SaveAction


class Participant:
    """One replica process, over all of its lives."""

    def __init__(
        self,
        member: MemberCore,
        begin: Callable[[int], StepCore] = StepCore,
        begin_saves: Callable[[int], SaveCore] = SaveCore,
    ) -> None:
        self.member = member
        self._begin = begin
        self._begin_saves = begin_saves
        self.steps = begin(member.replica)
        self.saves = begin_saves(member.replica)
        self._lost: frozenset[int] = frozenset()
        member.hold_planned = member.catching_up = True

    # Membership.

    def alone(self, view: View, now: float) -> list[Action]:
        """There is no coordinator, and this is the only view that there will ever be."""
        self.member.view = view
        self.member.catching_up = False
        return self._run([Adopt(view)], now)

    def tick(self, now: float) -> list[Action]:
        return self._run(self.member.tick(now), now)

    def tell(self, now: float) -> list[Action]:
        return self._run(self.member.tell(now), now)

    def received(self, message: Message, now: float) -> list[Action]:
        """From the coordinator."""
        return self._run(self.member.received(message, now), now)

    def rejoin(self, now: float) -> list[Action]:
        """Begin a new life; the caller has discarded the state of the old one."""
        ended = self.saves.abandon("the life of this replica that took part is over")
        self.steps = self._begin(self.member.replica)
        self.saves = self._begin_saves(self.member.replica)
        self._lost = frozenset()
        self.member.catching_up = True
        return self._run([*ended, *self.member.rejoin(now)], now)

    def set_ready(self, now: float) -> list[Action]:
        return self._run(self.member.set_ready(now), now)

    def set_leaving(self, now: float) -> list[Action]:
        return self._run(self.member.set_leaving(now), now)

    def peers_lost(
        self, lost: frozenset[int], now: float, back: frozenset[int] = frozenset()
    ) -> list[Action]:
        """These members of the view are all that this replica is cut off from in this era; there is another
        connection with those in `back`. See `lines.py`."""
        self._lost = lost
        told = self.member.set_unreachable(lost - back, now, back) if self.member.is_member else []
        return self._run([*told, *self._missed(lost & back)], now)

    def _missed(self, back: frozenset[int]) -> list[StepAction]:
        """One that learns, or was just made a member, cannot know what it was given by these and lacks. They
        live, so no view will make that good: it comes back as a new life."""
        if not back or self.steps.mode not in (Mode.LEARNING, Mode.JOINING):
            return []
        named = " and ".join(str(replica) for replica in sorted(back))
        return [Lost(f"the connection with replica {named}, over which it was given records, broke")]

    def charge(self, charges: Sequence[Charge], now: float) -> list[Action]:
        return self._run(self.member.charge(charges, now), now)

    # What peers say.

    def frame(self, frame: Frame, now: float) -> list[Action]:
        return self._run(self.member.frame(frame), now)

    def switched(self, view: View, now: float) -> list[Action]:
        """Members have switched to this view in band, and tell those who were not part of it."""
        if self.steps.mode not in (Mode.IDLE, Mode.LEARNING):
            return []
        return self._run(self.member.switched(view, now), now)

    def fed_from(self, view: int, first: int, top: int, now: float) -> list[Action]:
        return self._after_members(view, now) + self._run(self.steps.fed_from(view, first, top), now)

    def _after_members(self, view: int, now: float) -> list[Action]:
        """One who learns is fed by members in this view. If it waits to hear that they have switched to it,
        they came into it out of step, or their word was lost."""
        if self.steps.mode is Mode.LEARNING and view in self.member.planned:
            return self._run(self.member.follow(view, now), now)
        return []

    def learner_loaded(self, learner: Member, now: float) -> list[Action]:
        self.steps.has_loaded(learner)
        return self._run([], now)

    # What the own process does.

    def contribute(self, now: float, trial: int = Trial.FIRST) -> list[Action]:
        return self._run(self.steps.contribute(trial), now)

    def surveyed(self, step: int, now: float, trial: int = Trial.FIRST) -> list[Action]:
        return self._run(self.steps.surveyed(step, trial), now)

    def summed(self, step: int, now: float, trial: int = Trial.FIRST) -> list[Action]:
        return self._run(self.steps.summed(step, trial), now)

    def judged(self, step: int, trial: int, now: float, *, again: bool) -> list[Action]:
        return self._run(self.steps.judged(step, trial, again=again), now)

    def offered(
        self, step: int, now: float, view: int | None = None, verdict: Verdict = NOTHING_SAID
    ) -> list[Action]:
        follows = self._after_members(view, now) if view is not None else []
        return follows + self._run(self.steps.offered(step, view, verdict), now)

    def digested(self, step: int, digest: bytes, now: float, entries: bytes = b"") -> list[Action]:
        return self._run(self.steps.digested(step, digest, entries), now)

    def end(self, now: float) -> list[Action]:
        return self._run(self.steps.end(), now)

    def rest(self, now: float) -> list[Action]:
        """The training thread is beside the steps from now on."""
        self.steps.resting = True
        return self._run([], now)

    def close(self, now: float) -> list[Action]:
        """The training thread has left the loop for good."""
        return self._run(self.steps.close(), now)

    def set_final(self, final: bool, now: float) -> list[Action]:
        return self._run(self.member.set_final(final, now), now)

    def set_staying(self, chief: int, now: float) -> list[Action]:
        return self._run(self.member.set_staying(chief, now), now)

    def loaded(self, step: int, now: float, view: int | None = None) -> list[Action]:
        return self._run(self.steps.loaded(step, view), now)

    def founds(self, foundation: Foundation, now: float) -> list[Action]:
        """This replica has found what the lineage begins with; `MayBegin` follows if it may begin."""
        return self._run(self.member.set_foundation(foundation, now), now)

    def founded(self, step: int, now: float) -> list[Action]:
        return self._run(self.steps.founded(step), now)

    # Checkpoints.

    def save_decided(
        self,
        step: int,
        completed_in: int,
        now: float,
        *,
        gated: bool = False,
        kept: Kept | None = None,
        later: int = 0,
    ) -> list[Action]:
        return self._run(self.saves.decided(step, completed_in, gated=gated, kept=kept, later=later), now)

    def saves_final(self, step: int, now: float) -> list[Action]:
        """All members have left the loop of steps. What is saved from here on has numbers up to this one."""
        return self._run(self.saves.stable(step), now)

    def save_alone(self, step: int, now: float, *, gated: bool = False) -> list[Action]:
        return self._run(self.saves.alone(step, gated=gated), now)

    def stripe_written(self, step: int, payload: bytes, now: float) -> list[Action]:
        return self._run(self.saves.written(step, payload), now)

    def save_failed(self, step: int, reason: str, now: float) -> list[Action]:
        return self._run(self.saves.unable(step, reason), now)

    def intends(self, intent: Intent, now: float) -> list[Action]:
        return self._run(self.member.set_intent(intent, now), now)

    def allowed(self, intent: Intent, now: float) -> list[Action]:
        """For one who is alone: there is nobody who could object."""
        return self._run([Recorded(intent)], now)

    def save_committed(self, step: int, now: float) -> list[Action]:
        return self._run(self.saves.committed(step), now)

    def _run(self, events: Sequence[MemberAction | StepAction | SaveAction], now: float) -> list[Action]:
        done: list[Action] = []
        waiting: list[MemberAction | StepAction | SaveAction] = list(events)
        while waiting or (waiting := self._out_of_step(now)):
            action = waiting.pop(0)
            match action:
                case Adopt():
                    if action.view.planned_since != self.steps.view.planned_since:
                        self._lost = frozenset()
                    done.append(action)
                    waiting[:0] = [
                        *self.saves.adopt(action.view),
                        *self.steps.adopt(action.view, in_band=action.in_band),
                    ]
                case Stable():
                    done.append(action)
                    waiting[:0] = self.saves.stable(action.step)
                case Verified():
                    done.append(action)
                    waiting[:0] = self.saves.verified(action.step)
                case Dropped():
                    done.append(action)
                    waiting[:0] = self.saves.dropped(action.step)
                case GoBack():
                    done.append(action)
                    self._is_blank_after(action)
                    waiting[:0] = self.saves.go_back(action.fork.step)
                case Differ() if action.again:
                    # Who can say what it is that differs, makes the charge.
                    done.append(action)
                case Differ():
                    done.append(action)
                    for after in waiting:
                        # It is a part of what is said.
                        self._is_blank_after(after)
                    waiting[:0] = self.member.charge(self._charges(action), now)
                case Accused():
                    done.append(action)
                    waiting[:0] = self.member.charge(self._accusation(action), now)
                case Recorded():
                    waiting[:0] = self.saves.recorded(action.intent.step)
                case Planned() if self.steps.leads_to(action.view):
                    self.steps.knows(action.view.number)
                case Planned():
                    pass
                case Deliver():
                    # The driver takes what the frame carries before it does what follows from it.
                    done.append(action)
                    body = action.frame.body
                    waiting[:0] = (
                        self.saves.received(
                            action.frame.sender, body, settled=self.steps.mode is not Mode.RECONCILING
                        )
                        if isinstance(body, SaveBody)
                        else self.steps.received(action.frame.sender, cast(Body, body))
                    )
                case FencedOff():
                    done.append(action)
                    waiting[:0] = self.saves.abandon("this replica was evicted")
                case Ended():
                    done.append(action)
                    if self.member.intent is not None and self.member.intent.step == action.save.step:
                        self.member.intent = None
                case Follow() if action.number in self.member.planned:
                    waiting[:0] = self.member.switch(action.number, now)
                case Follow():
                    # So many planned views came after it that it is forgotten here; the others are there now.
                    waiting[:0] = [Lost(f"it knows nothing of view {action.number} any more")]
                case _:
                    done.append(action)
            self.member.hold_planned = self.steps.holds_planned_views
        if self.member.catching_up and self.steps.mode in (Mode.RUNNING, Mode.PAUSED):
            # Who leaves, or is suspected, can be done without from now on; so that is news.
            self.member.catching_up = False
            done += cast(list[Action], self.member.tell(now))
        return done

    def _is_blank_after(self, action: object) -> None:
        """One that goes back and has no copy has no more to go on from than one that was never given any."""
        if isinstance(action, GoBack) and action.step == BLANK:
            self.member.catching_up = True

    def _charges(self, differ: Differ) -> list[Charge]:
        """What members hold against those whose state differs, or against nobody."""
        view = self.member.view
        back = f"all go back to step {differ.back_to}"
        accused = [member for member in view.members if member.replica in differ.members]
        if not accused:
            what = "buffers" if differ.buffers else "states"
            reason = f"the {what} of members differ, and there is no majority; {back}"
            return [Charge(view=view.number, step=differ.step, reason=reason, back_to=differ.back_to)]
        what = "buffers differ from those" if differ.buffers else "state differs from that"
        reason = f"its {what} of the others; {back}"
        return [
            Charge(
                view=view.number,
                step=differ.step,
                reason=reason,
                replica=member.replica,
                incarnation=member.incarnation,
                back_to=differ.back_to,
            )
            for member in accused
        ]

    def _accusation(self, accused: Accused) -> list[Charge]:
        view = self.member.view
        member = view.member(accused.member)
        if member is None:
            return []
        reason = "it was wrong here when the states differed; done again, the step gave something else"
        return [
            Charge(
                view=view.number,
                step=accused.step,
                reason=reason,
                replica=member.replica,
                incarnation=member.incarnation,
            )
        ]

    def _out_of_step(self, now: float) -> list[MemberAction | StepAction | SaveAction]:
        """Follow the newest planned view at once, if nothing will ever switch to it."""
        if not self.member.planned:
            return []
        newest = max(self.member.planned)
        planned = self.member.planned[newest]
        in_vain = self.steps.follows_at_once(planned) or self.steps.abandons(planned, self._lost)
        return list(self.member.follow(newest, now)) if in_vain else []
