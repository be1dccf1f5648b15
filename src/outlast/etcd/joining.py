"""How a running cluster gets another member, and how one that is lost with its data is replaced.

What to do next is decided anew from the cluster's own list each time (`next_step`), so whoever was killed on
the way, or does not know whether its wish was heard, begins again and goes on where it was.

A new member has no vote until it holds everything that the others do: added with a vote at once, one that
never comes up (a typing error in its address is enough) would count as lost, and a cluster of one would stand
still. etcd calls it a learner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from outlast.coordinator.store.gateway import Refused
from outlast.errors import ConfigError, StoreError
from outlast.etcd.cluster import Cluster, Member, Picture, short
from outlast.etcd.metrics import read_metrics
from outlast.etcd.places import Place

PATIENCE_S = 60.0
"""etcd itself wants members to have been in touch for five seconds before it changes their number."""
AGAIN_S = 0.5
LOOKS = 3
"""A member that is to be replaced is looked for so often before it counts as lost."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Remove:
    """The one of this name is lost."""

    member: Member


@dataclass(frozen=True)
class Add:
    pass


@dataclass(frozen=True)
class Ready:
    """It is in the list, and only has to be started."""

    member: Member


def next_step(
    picture: Picture, *, name: str, place: Place, replace: bool, in_touch: Collection[str] = ()
) -> Remove | Add | Ready:
    """`in_touch`: the numbers of members that others are in touch with, whatever we see of them."""
    at = next((member for member in picture.members if place.peer_url in member.peer_urls), None)
    named = next((member for member in picture.members if member.name == name), None)
    if at is not None and not at.name:
        return Ready(at)
    if at is not None and at is not named:
        raise ConfigError(f"{place} is where member {at.name} of this cluster is: choose another address")
    if named is None:
        _check_majority(picture, f"{name} cannot be added")
        return Add()
    where = ", ".join(map(str, named.clients))
    if not replace:
        raise ConfigError(
            f"the cluster has a member {name} already, at {where}. If that is this one and its data is lost, "
            "say --replace; if it is another one, choose another --name"
        )
    if named.id in picture.statuses or named.id in in_touch:
        whom = "answers" if named.id in picture.statuses else "is in touch with the others"
        raise ConfigError(
            f"{name}, which is to be replaced, {whom} at {where}: end it there first, or leave it"
        )
    _check_majority(picture, f"{name} cannot be replaced")
    return Remove(named)


def _check_majority(picture: Picture, what: str) -> None:
    if not picture.majority:
        missing = ", ".join(member.title for member in picture.voters if member not in picture.answering)
        raise StoreError(
            f"{what}, since only {len(picture.answering)} of {len(picture.voters)} members answer, and only "
            f"a majority can change who they are: start {missing} again first"
        )


async def join(cluster: Cluster, *, name: str, place: Place, replace: bool, say: Say) -> dict[str, str]:
    """Have the cluster expect this member; returns the peers' URLs of all of them, by their names."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    told = ""
    if replace:
        await _look_for(cluster, name)
    while True:
        picture = await cluster.picture()
        in_touch = await _in_touch(picture) if replace else frozenset[str]()
        step = next_step(picture, name=name, place=place, replace=replace, in_touch=in_touch)
        if isinstance(step, Ready):
            return _peers(picture, step.member, name)
        try:
            if isinstance(step, Remove):
                why_lost = picture.silent.get(step.member.id, "")
                say(f"{name} is lost ({why_lost}) and is removed from the cluster")
                await cluster.ask_any("/v3/cluster/member/remove", {"ID": step.member.id}, once=True)
                continue
            body = {"peerURLs": [place.peer_url], "isLearner": True}
            await cluster.ask_any("/v3/cluster/member/add", body, once=True)
            say(f"{name} is added; it votes as soon as it has caught up")
        except Refused as refused:
            if "too many learner" in refused.message:
                raise StoreError(
                    f"another member joins this cluster just now, and one at a time may: start {name} again "
                    "when that one votes (`outlast etcd check` shows it)"
                ) from None
            why: StoreError = refused
        except StoreError as error:
            why = error
        else:
            continue
        if loop.time() > deadline:
            silent = [one.title for one in picture.voters if one not in picture.answering]
            and_silent = f". Start {', '.join(silent)} again first, or replace it" if silent else ""
            raise StoreError(f"{name} could not be added within {PATIENCE_S:.0f} s: {why}{and_silent}")
        reason = (
            "etcd wants all of them to have been in touch for five seconds"
            if "unhealthy cluster" in str(why)
            else short(why)
        )
        if reason != told:
            told = reason
            say(f"the members cannot be changed yet ({reason}); trying again")
        await asyncio.sleep(AGAIN_S)


async def promote(cluster: Cluster, picture: Picture, learner: Member) -> bool:
    """Have its leader give it a vote; False while it has not caught up."""
    leader = picture.leader
    if leader is None or not leader.clients:
        return False
    try:
        await cluster.ask(leader.clients[0], "/v3/cluster/member/promote", {"ID": learner.id}, once=True)
    except StoreError:
        return False
    return True


async def _look_for(cluster: Cluster, name: str) -> None:
    """A moment's silence is no death: give it time to answer."""
    for _ in range(LOOKS - 1):
        picture = await cluster.picture()
        if any(member.name == name and member.id in picture.statuses for member in picture.members):
            return
        await asyncio.sleep(AGAIN_S)


async def _in_touch(picture: Picture) -> frozenset[str]:
    """Whom the members that answer say they are in touch with: a network may be cut between us and one."""
    asked = [member.clients[0] for member in picture.members if member.id in picture.statuses]
    answers = await asyncio.gather(*map(read_metrics, asked))
    return frozenset(str(int(peer, 16)) for one in answers if one for peer in one.active_peers if peer)


def _peers(picture: Picture, own: Member, name: str) -> dict[str, str]:
    # One that was never started has no name yet, and etcd does not mind which it is called by others.
    return {
        (name if member is own else member.name or f"unnamed-{member.id}"): url
        for member in picture.members
        for url in member.peer_urls[:1]
    }
