"""What people hear of a cluster while a member runs: each change once, in a sentence. Pure.

A look at a busy machine may find a member silent that is well. So a change is told when it was seen twice in
a row, except for the first good news, which somebody waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

from outlast.etcd.cluster import Picture

Seen = tuple[bool, str, tuple[str, ...], tuple[str, ...]]
"""Whether it is healthy, who leads, who is silent, and who has a vote."""


@final
class Account:
    def __init__(self) -> None:
        self.healthy = False
        """Whether a majority was there, and somebody led, when last looked at."""
        self.was_healthy = False
        self._told: Seen | None = None
        self._seen: Seen | None = None
        self._waiting = ""

    def look(self, picture: Picture) -> list[str]:
        """What there is to say about this look at it."""
        leader = picture.leader
        self.healthy = picture.majority and leader is not None
        silent = tuple(member.title for member in picture.voters if member not in picture.answering)
        everybody = tuple(sorted(member.title for member in picture.voters))
        seen = (self.healthy, leader.title if leader else "", silent, everybody)
        before, self._seen = self._seen, seen
        if seen == self._told or (seen != before and not (self.healthy and not self.was_healthy)):
            return []
        told, self._told = self._told, seen
        self.was_healthy |= self.healthy
        return [_sentence(picture, told, seen)]

    def wait(self, up: Collection[str], places: Mapping[str, str], hindrance: str) -> list[str]:
        """The member does not serve yet. `up` are those that can be reached, `places` all of them."""
        missing = [f"{name} ({place})" for name, place in places.items() if name not in up]
        needed = len(places) // 2 + 1
        if self.was_healthy:
            text = "this member does not answer"
        elif len(up) < needed:
            text = (
                f"waiting for a majority, which is {needed} of {len(places)} members: {len(up)} can be "
                f"reached; start {_list(missing)} as well"
            )
        else:
            text = f"{len(up)} of {len(places)} members can be reached, and begin" if len(places) > 1 else ""
        text = f"{text}. {hindrance}" if hindrance else text
        if text in ("", self._waiting):
            return []
        self._waiting = text
        return [text]


def _sentence(picture: Picture, told: Seen | None, seen: Seen) -> str:
    healthy, leader, silent, everybody = seen
    number = len(picture.answering)
    answer = f"{number} of {len(picture.voters)} members answer{'s' if number == 1 else ''}"
    why = {member.title: picture.silent.get(member.id, "") for member in picture.members}
    lost = [f"{name} ({why[name]})" if why.get(name) else name for name in silent]
    if not healthy and picture.majority:
        return f"{answer}, and nobody leads: they elect somebody, or do not reach each other"
    if not healthy:
        who = f"; start {_list(lost)} again" if lost else ""
        return f"no majority: {answer}, and nothing can be agreed on until more do{who}. Nothing is lost"
    parts = []
    if told is not None:
        parts += [f"{name} is back" for name in told[2] if name not in silent and name in everybody]
        parts += [f"{name} is there" for name in everybody if name not in told[3] and name not in silent]
        parts += [f"{name} is gone from the cluster" for name in told[3] if name not in everybody]
    parts += [f"{name} does not answer" for name in lost]
    parts.append(answer)
    if told is None or leader != told[1]:
        parts.append(f"{leader} leads")
    if told is None or not told[0]:
        parts.append("the cluster is healthy" if not silent else "that is a majority, and it works")
    return "; ".join(parts)


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
