"""Virtual time: an event queue, a seeded source of chance, and a transcript.

Nodes can be crashed (what was scheduled for that life never happens) and paused (what is due waits until
they wake, as it would for a stopped process). Nothing here depends on the order of a set or a hash.
"""

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any


class Node:
    """Somebody to whom things happen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.up = False
        self.paused = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self._named: dict[str, random.Random] = {}
        self.transcript: list[tuple[float, str, str]] = []
        self._order = count()
        self._queue: list[tuple[float, int, Node | None, int, Callable[..., None], tuple[Any, ...]]] = []

    def drawn(self, what: str) -> random.Random:
        """Chance for one purpose alone: what is drawn there shifts nothing else."""
        if what not in self._named:
            self._named[what] = random.Random(f"{what}-{self.seed}")
        return self._named[what]

    def note(self, who: str, what: str) -> None:
        self.transcript.append((self.now, who, what))

    def after(self, delay_s: float, node: Node | None, action: Callable[..., None], *args: Any) -> None:
        """Do it later, to this life of the node, or to the world itself."""
        life = node.life if node is not None else 0
        entry = (self.now + delay_s, next(self._order), node, life, action, args)
        heapq.heappush(self._queue, entry)

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, node, life, action, args = heapq.heappop(self._queue)
            if node is None:
                action(*args)
            elif node.life == life and node.up:
                if node.paused:
                    node.backlog.append((action, args))
                else:
                    action(*args)
        self.now = max(self.now, end)

    def boot(self, node: Node) -> None:
        node.life += 1
        node.up, node.paused = True, False
        node.backlog.clear()

    def crash(self, node: Node) -> None:
        node.life += 1
        node.up = node.paused = False
        node.backlog.clear()

    def pause(self, node: Node) -> None:
        node.paused = True

    def resume(self, node: Node) -> None:
        if not node.paused:
            return
        node.paused = False
        backlog, node.backlog = node.backlog, []
        life = node.life
        for action, args in backlog:
            if node.life == life and node.up:
                if node.paused:
                    node.backlog.append((action, args))
                else:
                    action(*args)

    def story(self, last: int = 400) -> str:
        lines = [f"{at:9.3f}s  {who:<14} {what}" for at, who, what in self.transcript[-last:]]
        return "\n".join(lines)
