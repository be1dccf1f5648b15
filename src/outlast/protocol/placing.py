"""Which machines take part, and which replica runs where.

Pure, like the roster that it is a part of: from what was agreed and what has been learned since to what
should be agreed next. Only for jobs whose spec says how many replicas a machine has room for; elsewhere each
agent knows its replicas from the start.

Two things are numbered from one counter, and never again with the same number: each start of an agent, and
each time that a replica is given a place. A process bears the newer one of the two that it was started under.
So whatever happens on however many machines, a later life of a replica has a higher number than every earlier
one, and nobody but the agent that was given a number uses it.

A replica stays where it is as long as its machine is there. It is given another place when its agent has
left, or has been silent for so long that it is taken for lost, and only then if nobody counts on the life
that it may still have there: silence is no proof, and the last one that holds the training state may be the
one that is not heard. (It is given up later, see `Timing.given_up_after_s`.) Where no machine has room, it
keeps the place it had, and comes back with its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from outlast.protocol.messages import Enlist
from outlast.protocol.views import Host, Membership, Place, Standing


class Learned(Protocol):
    """What of a change matters here."""

    @property
    def enlists(self) -> Mapping[str, Enlist]: ...
    @property
    def lost(self) -> set[str]: ...
    @property
    def left(self) -> set[str]: ...
    @property
    def staying(self) -> set[int]: ...
    @property
    def chief(self) -> int: ...


def placed(membership: Membership, learned: Learned) -> Membership:
    """The same, with those taken on who asked for it, and every replica where it should run."""
    if not membership.spec.is_placed:
        return membership
    return _with_places(_with_hosts(membership, learned), learned)


def _with_hosts(membership: Membership, learned: Learned) -> Membership:
    boots, hosts, left = membership.boots, dict(membership.hosts), set(membership.left)
    for name, enlist in sorted(learned.enlists.items()):
        known = hosts.get(name)
        if known is None or known.start != enlist.start:
            boots += 1
            hosts[name] = Host(boot=boots, start=enlist.start, home=enlist.home, room=enlist.room)
            # It may have left before, and come back.
            left.discard(name)
    left |= learned.left
    if hosts == membership.hosts and left == set(membership.left):
        return membership
    return msgspec.structs.replace(membership, boots=boots, hosts=hosts, left=tuple(sorted(left)))


def _with_places(membership: Membership, learned: Learned) -> Membership:
    boots, places = membership.boots, dict(membership.places)
    there = membership.hosts.keys() - set(membership.left) - learned.lost
    room = {name: membership.hosts[name].room for name in there}
    for place in places.values():
        if place.agent in room:
            room[place.agent] -= 1
    for replica in range(membership.spec.processes):
        known = places.get(replica)
        if (known is not None and known.agent in there) or not _may_move(membership, replica):
            continue
        # All wait for what the chief does in the end, so it is not put off for want of room.
        least = 0 if replica != learned.chief or not learned.staying else -membership.spec.processes
        roomy = [name for name in sorted(room) if room[name] > least]
        if not roomy:
            continue
        chosen = max(roomy, key=lambda name: room[name])
        room[chosen] -= 1
        boots += 1
        places[replica] = Place(chosen, boots)
    if boots == membership.boots:
        return membership
    return msgspec.structs.replace(membership, boots=boots, places=places)


def _may_move(membership: Membership, replica: int) -> bool:
    seat = membership.seats.get(replica)
    if seat is None:
        return True
    over = seat.standing is Standing.FINISHED or seat.barred
    return not over and not seat.present and not membership.counts_on(seat)
