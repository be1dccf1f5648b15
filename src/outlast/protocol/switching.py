"""Planned views, to which members switch *in band*: together, at the end of a step.

Most views are planned: a learner arrives or has caught up, a member leaves. They interrupt nothing. Members
say in their parts which planned view they know; when all name the same one in one step, all of them, by the
record of that step, switch to it at its end. There is nothing to reconcile then, since everybody who switches
holds the same newest record.

A planned view is followed out of step only when in-band will not happen: nobody trains in the present view
(it is paused), somebody has moved already (its `Holding` says so), or a member that leaves with the planned
view is gone before its last frames came. In a paused view nobody contributes, so nobody acknowledges: there
each says what it holds once it holds all, and goes on only when everybody has said so. Else one that leaves
could take the newest record with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from outlast.protocol.step_words import HandOver, Part, Pin, Say, StepAction, Switched
from outlast.protocol.views import View


def can_switch(view: View, planned: View) -> bool:
    """Whether members can switch to this view together: somebody has to stay, to hand on the record."""
    return not planned.members or any(m in planned.members for m in view.members)


def switch_in_vain(view: View, planned: View, parts: Mapping[int, Part], lost: Set[int]) -> bool:
    """Whether somebody who leaves with the planned view is gone already. One that has left the loop of steps
    has said its last word of this view with its part."""
    done = {replica for replica, part in parts.items() if part.closing}
    leaving = {m.replica for m in view.members if planned.member(m.replica) is None}
    return bool(leaving & lost - done)


def named_by_all(parts: Mapping[int, Part]) -> int:
    """The planned view that all parts of a step name; 0 for none."""
    named = {part.pending for part in parts.values()}
    return named.pop() if len(named) == 1 else 0


def hand_over(before: View, view: View, newest: int) -> list[StepAction]:
    """What those who stay give to those who come, who have not seen the switch after this step: the word of
    it, its record to new members, the state to new learners."""
    stayed = tuple(m.replica for m in view.members if m in before.members)
    new = tuple(m.replica for m in view.members if m not in before.members)
    learners = tuple(m.replica for m in view.learners)
    actions: list[StepAction] = []
    if new or learners:
        actions.append(Say((*new, *learners), Switched(view)))
    if new:
        actions.append(HandOver(newest, new, stayed))
    actions += [
        Pin(learner, newest, stayed)
        for learner in view.learners
        if learner not in before.learners and learner not in before.members
    ]
    return actions
