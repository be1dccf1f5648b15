"""Whom to believe when two members cannot reach each other.

A member that loses a peer says so. Mostly the peer's agent knows why (its process has exited) and the case
is closed. But when the agent vouches for the peer and the complaint goes on, the network between two healthy
members is broken: a *partial partition*. Training cannot go on with both, and waiting helps nobody, so the
side with more complaints against it leaves.

Complaints are edges of a graph; the fewest members have to go so that no edge is left. We take the member on
most edges first: one that is cut off from many touches many edges, whether it complains, is complained about,
or both. A case is opened by a complaint that has been upheld long enough, and decided by all there are: who
happened to complain first must not tip the scales. Ties fall on the one that more others accuse, then on the
one with more lives behind it (it may have been evicted for the same reason a moment ago), then on the higher
replica id, so that every leader that sees the same complaints decides the same. The last one that holds the
training state stays in any case: then those have to go that it cannot reach.
"""

from collections.abc import Collection, Iterable, Mapping


class Complaints:
    """The complaints that are currently upheld: accuser → accused."""

    def __init__(self, holds_s: float, counts_after_s: float) -> None:
        self._holds_s = holds_s
        self._counts_after_s = counts_after_s
        self._since: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], float] = {}

    def note(self, accuser: int, accused: Iterable[int], now: float) -> bool:
        """Take the full list of those that `accuser` cannot reach now; says whether one is new."""
        current = {(accuser, other) for other in accused if other != accuser}
        for edge in [edge for edge in self._since if edge[0] == accuser and edge not in current]:
            self._drop(edge)
        new = False
        for edge in sorted(current):
            if edge not in self._since:
                self._since[edge] = now
                new = True
            self._last[edge] = now
        return new

    def forget(self, replica: int) -> None:
        for edge in [edge for edge in self._since if replica in edge]:
            self._drop(edge)

    def clear(self) -> None:
        self._since.clear()
        self._last.clear()

    def concern(self, replica: int, lives: Collection[int]) -> bool:
        """Whether one of these members cannot reach this one, or the other way round."""
        return any(replica in edge and set(edge) <= set(lives) for edge in self._since)

    def verdict(self, lives: Mapping[int, int], now: float, holders: Collection[int] = ()) -> list[int]:
        """Who has to leave so that those who stay can all reach each other; `lives` are the members, each
        with its incarnation, and `holders` those that hold the training state."""
        for edge in [edge for edge, last in self._last.items() if now - last > self._holds_s]:
            self._drop(edge)
        edges = {edge for edge in self._since if edge[0] in lives and edge[1] in lives}
        due = {edge for edge in edges if now - self._since[edge] >= self._counts_after_s}
        leaving: list[int] = []
        while due:
            holding = {replica for replica in holders if replica not in leaving}
            last = holding if len(holding) == 1 else set[int]()
            candidates = {replica for edge in due for replica in edge} - last
            worst = max(candidates, key=lambda r: (_degree(edges, r), _accusers(edges, r), lives[r], r))
            leaving.append(worst)
            edges = {edge for edge in edges if worst not in edge}
            due &= edges
        return leaving

    def _drop(self, edge: tuple[int, int]) -> None:
        del self._since[edge]
        del self._last[edge]


def _degree(edges: set[tuple[int, int]], replica: int) -> int:
    return len({other for edge in edges if replica in edge for other in edge if other != replica})


def _accusers(edges: set[tuple[int, int]], replica: int) -> int:
    return sum(1 for edge in edges if edge[1] == replica)
