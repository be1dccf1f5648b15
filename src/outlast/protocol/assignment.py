"""Who computes which shard, and who reduces which slice of the gradient.

A step has a fixed number of shards, while members come and go. Each new view needs a map from shard to
member that

- everybody computes alike: a pure function of the shards, the members and the map before;
- is fair: every member gets the same number of shards, give or take one;
- moves little: a moved shard is a gradient to be computed again in the step that a failure interrupted, so
  no shard moves that fairness does not force to;
- costs little traffic: a member sends one partial sum for each node in the `cover` of its shards (see
  `tree`), so members should hold few large subtrees rather than many scattered shards.

The first two are easy, and the third has a closed form: who stays keeps the smaller of what it owns and its
quota, and the larger quotas go to those that own more. The fourth is a packing of subtrees into members, like
a buddy allocator's. Largest first, each free subtree goes whole to a member that has room for it, preferably
to the one that holds its sibling, as the two then travel as one. A subtree is split only when nobody has room
for all of it.

Each change adds at most about log2(V) nodes per member that gives or takes. The common case leaves no trace
at all: where equal shares are whole subtrees, and a member dies and a replacement joins, everybody holds one
whole subtree again. After a long random drift, though, a fair map that moved little is a scattered one. A
planned change interrupts no step and so recomputes nothing: it may lay the shards out afresh, with
`previous=None`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from outlast.errors import ConfigError
from outlast.protocol.tree import Node, children, cover, root, sibling


class Move(NamedTuple):
    shard: int
    source: int
    target: int


def assign(shard_count: int, members: Sequence[int], previous: Sequence[int] | None) -> tuple[int, ...]:
    """The member that computes each shard.

    `previous` is the map of the view before, some of whose owners may be gone; None lays out afresh.
    """
    root(shard_count)
    ranked = _distinct(members)
    if previous is None:
        return _blocks(shard_count, ranked)
    if len(previous) != shard_count:
        raise ConfigError(
            f"previous assignment has {len(previous)} shards and shards = {shard_count}: "
            "the number of shards is fixed for a run; pass previous=None to start afresh."
        )
    held = _holdings(ranked, previous)
    if not any(held.values()):
        return _blocks(shard_count, ranked)

    quotas = _quotas(shard_count, held)
    layout = _Layout(
        owners=[owner if owner in held else None for owner in previous],
        room={member: quotas[member] - _size(held[member]) for member in ranked},
    )
    for member in ranked:
        if layout.room[member] < 0:
            _give_up_surplus(layout, member, held[member])
    _hand_out(layout)
    return layout.complete()


def moves(before: Sequence[int], after: Sequence[int]) -> tuple[Move, ...]:
    """The shards whose owner differs between two assignments."""
    if len(before) != len(after):
        raise ConfigError(
            f"assignments of {len(before)} and of {len(after)} shards cannot be compared: "
            "the number of shards is fixed for a run; compare two assignments of the same run."
        )
    pairs = enumerate(zip(before, after, strict=True))
    return tuple(Move(shard, source, target) for shard, (source, target) in pairs if source != target)


def slices(members: Sequence[int], previous: Sequence[int] | None) -> tuple[int, ...]:
    """The members in the order of their slices: the i-th reduces slice i of the flat gradient.

    A member keeps its place whenever that place still exists. Vacated and new places are filled from the
    lowest, first by members whose own place is gone (there are fewer slices now), then by joiners in
    ascending order. So when a spare steps in for a dead member, it inherits that member's slice and all
    other slices stay as they are. Keeping the survivors' relative order instead would shift every slice
    behind the gap.
    """
    joiners = set(_distinct(members))
    places: list[int | None] = [None] * len(members)
    displaced: list[int] = []
    for place, member in enumerate(_distinct(previous, in_order=True) if previous else ()):
        if member not in joiners:
            continue
        joiners.remove(member)
        if place < len(places):
            places[place] = member
        else:
            displaced.append(member)
    waiting = iter([*displaced, *sorted(joiners)])
    return tuple(next(waiting) if member is None else member for member in places)


class _Layout:
    """An assignment in the making: each shard's owner, None while it is free, and each member's room.

    Room is the number of shards that a member may still take; it is negative while the member owns too many.
    """

    def __init__(self, *, owners: list[int | None], room: dict[int, int]) -> None:
        self.owners = owners
        self.room = room
        self.shard_count = len(owners)

    def release(self, node: Node, member: int) -> None:
        self.owners[node.lo : node.hi] = [None] * node.size
        self.room[member] += node.size

    def give(self, node: Node, member: int) -> None:
        self.owners[node.lo : node.hi] = [member] * node.size
        self.room[member] -= node.size

    def sibling_owners(self, node: Node) -> set[int | None]:
        beside = sibling(node, self.shard_count)
        return set() if beside is None else set(self.owners[beside.lo : beside.hi])

    def free_nodes(self) -> tuple[Node, ...]:
        return cover((shard for shard, owner in enumerate(self.owners) if owner is None), self.shard_count)

    def complete(self) -> tuple[int, ...]:
        done = tuple(owner for owner in self.owners if owner is not None)
        assert len(done) == self.shard_count, "a shard was left without an owner"
        assert not any(self.room.values()), "a member missed its quota"
        return done


def _blocks(shard_count: int, ranked: Sequence[int]) -> tuple[int, ...]:
    """Contiguous blocks, the larger ones first: where nobody holds anything, there is nothing to keep."""
    share, larger = divmod(shard_count, len(ranked))
    blocks = ([member] * (share + (rank < larger)) for rank, member in enumerate(ranked))
    return tuple(member for block in blocks for member in block)


def _holdings(members: Sequence[int], previous: Sequence[int]) -> dict[int, tuple[Node, ...]]:
    """The subtrees that each member holds now."""
    owned: dict[int, list[int]] = {member: [] for member in members}
    for shard, owner in enumerate(previous):
        if owner in owned:
            owned[owner].append(shard)
    return {member: cover(shards, len(previous)) for member, shards in owned.items()}


def _size(nodes: Sequence[Node]) -> int:
    return sum(node.size for node in nodes)


def _quotas(shard_count: int, held: Mapping[int, Sequence[Node]]) -> dict[int, int]:
    """Fair quotas; the larger ones go to those that own more, since they can keep one shard more for it.

    Among members that own equally many, those get less that have a small subtree to give up, and of these
    the ones furthest to the right: what neighbours give up together forms a larger subtree again.
    """

    def claim(member: int) -> tuple[int, int, int, int]:
        nodes = held[member]
        smallest = max(nodes, key=_keep_first) if nodes else Node(0, 0)
        return -_size(nodes), *_keep_first(smallest), member

    share, larger = divmod(shard_count, len(held))
    return {member: share + (rank < larger) for rank, member in enumerate(sorted(held, key=claim))}


def _keep_first(node: Node) -> tuple[int, int]:
    """The order in which a member keeps its subtrees: large ones first, then from left to right."""
    return -node.size, node.lo


def _give_up_surplus(layout: _Layout, member: int, nodes: Sequence[Node]) -> None:
    """Bring a member down to its quota: it keeps its largest subtrees whole and splits at most one."""

    def keep_first(node: Node) -> tuple[int, bool, int]:
        # Of equal subtrees, better give up one whose sibling is free already: the two are handed on as one.
        size, lo = _keep_first(node)
        return size, layout.sibling_owners(node) == {None}, lo

    quota = _size(nodes) + layout.room[member]
    given_up: list[Node] = []
    for node in sorted(nodes, key=keep_first):
        if node.size <= quota:
            quota -= node.size
        else:
            given_up.append(node)
    if quota:
        # The smallest of the others is split. Its first shards are kept, because a prefix of a subtree has
        # the smallest cover that its length allows.
        split = given_up.pop()
        given_up.extend(cover(range(split.lo + quota, split.hi), layout.shard_count))
    for node in given_up:
        layout.release(node, member)


def _hand_out(layout: _Layout) -> None:
    """Give every free shard to a member with room, in pieces as large as possible.

    Among subtrees whose sizes are powers of two, taking the largest first means that the choice of the taker
    never causes a split later: giving away a node of size s takes the place of exactly s/t nodes of any
    smaller size t. So the choice is free to follow the siblings.
    """
    free = [(-node.size, node) for node in layout.free_nodes()]
    heapq.heapify(free)
    takers = [(-room, member) for member, room in layout.room.items() if room > 0]
    heapq.heapify(takers)

    def give(node: Node, member: int) -> None:
        layout.give(node, member)
        heapq.heappush(takers, (-layout.room[member], member))

    while free:
        size = -free[0][0]
        without_match: list[Node] = []
        # All nodes of one size look for their sibling's owner before any goes elsewhere and takes that room.
        while free and free[0][0] == -size:
            _, node = heapq.heappop(free)
            owner = _sibling_owner_with_room(layout, node)
            if owner is None:
                without_match.append(node)
            else:
                give(node, owner)
        for node in without_match:
            owner = _sibling_owner_with_room(layout, node)
            if owner is None:
                owner = _roomiest(layout, takers)
            if layout.room[owner] >= size:
                give(node, owner)
            else:
                for child in children(node):
                    heapq.heappush(free, (-child.size, child))


def _sibling_owner_with_room(layout: _Layout, node: Node) -> int | None:
    """The member that holds the whole sibling of a node and has room for the node too."""
    beside = layout.sibling_owners(node)
    if len(beside) != 1:
        return None
    (owner,) = beside
    return owner if owner is not None and layout.room[owner] >= node.size else None


def _roomiest(layout: _Layout, takers: list[tuple[int, int]]) -> int:
    """The member with the most room, the lowest id among equals.

    The heap has one entry for each room that a member ever had; those that are out of date are dropped here.
    """
    while -takers[0][0] != layout.room[takers[0][1]]:
        heapq.heappop(takers)
    return takers[0][1]


def _distinct(members: Sequence[int], *, in_order: bool = False) -> list[int]:
    """The members in ascending order, or as given, once it is clear that there are some and no twins."""
    if not members:
        raise ConfigError("members = []: somebody has to hold the shards; a view needs at least one member.")
    ranked = sorted(members)
    twins = sorted({lower for lower, upper in pairwise(ranked) if lower == upper})
    if twins:
        raise ConfigError(
            f"members = {list(members)}: the ids {twins} occur more than once; name each replica once."
        )
    return list(members) if in_order else ranked
