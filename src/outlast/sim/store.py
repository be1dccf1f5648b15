"""The store as coordinators see it: agreed on, but far away, sometimes slow, and not always answering.

It keeps the two keys that coordinators use (leadership under a lease, the membership document) and tells the
checkers of every write. A request may take so long that the coordinator has given up on it, has been
replaced, or is dead when it arrives; an answer may be lost after the write has happened. The coordinator then
knows nothing, which is the case that naive code gets wrong. Watches break, and resume from the revision asked
for. In some worlds reads are answered with what was true some time ago, as those of some versions of etcd.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outlast.protocol.coordinator import Commit, Committed, Loaded, LoadFailed, Refused, Unknown
from outlast.protocol.election import (
    Campaigned,
    CampaignFailed,
    Renewed,
    RenewFailed,
    WatchBroken,
    WatchProgress,
)
from outlast.protocol.views import Membership
from outlast.sim.world import Node, World

ANY_TERM = -1
"""In a commit: do not compare leadership. Only planted mistakes do that."""

ANSWER_TIMEOUT_S = 0.5
SLOWEST_REQUEST_S = 4.0
PAST_KEPT = 3

Answer = Callable[[object], None]


@dataclass
class Leadership:
    holder: str
    created: int
    until: float


class SimStore:
    def __init__(self, world: World, lease_s: float) -> None:
        self._world = world
        self._lease_s = lease_s
        self.revision = 1
        self.leadership: Leadership | None = None
        self.document: Membership | None = None
        self.document_revision = 0
        self.on_commit: Callable[[str, Membership | None, Membership], None] = lambda *_: None
        self.slow_until = 0.0
        self.late_until = 0.0
        """Until then, a request that was sent while the store was slow may still arrive."""
        self.lapsed = False
        """Whether a lease has run out, of one that was slow to hear that it holds it, perhaps."""
        self.vacant_since = self.led_since = float("-inf")
        """From when on there may have been nobody who could decide, the last time; and since when somebody
        can again."""
        self.lost_answers = world.chance.choice([0.0, 0.0, 0.02, 0.1])
        drawn = random.Random(f"reads-{world.seed}")
        self.reads_newest = drawn.random() < 0.6
        self._reads = drawn
        self._past: deque[Loaded] = deque(maxlen=PAST_KEPT)
        """What was true before, and reads may still be answered with."""
        self._deletions: list[int] = []
        self._watchers: dict[str, tuple[Node, int, int, Answer]] = {}

    def campaign(self, node: Node, answer: Answer) -> None:
        def apply() -> object:
            if self.leadership is None:
                self._changes()
                self.leadership = Leadership(node.name, self.revision, self._world.now + self._lease_s)
                self.led_since = self._world.now
                self._expire_later(self.leadership)
                self._world.note("store", f"{node.name} becomes leader, term {self.revision}")
                self._tell_watchers(WatchProgress(self.revision, False, node.name))
                return Campaigned(True, self.revision, self.revision)
            return Campaigned(False, 0, self.revision, self.leadership.holder)

        self._call(node, apply, answer, CampaignFailed())

    def renew(self, node: Node, term: int, answer: Answer) -> None:
        def apply() -> object:
            held = self.leadership
            if held is None or held.created != term:
                return Renewed(False)
            held.until = self._world.now + self._lease_s
            return Renewed(True)

        self._call(node, apply, answer, RenewFailed())

    def load(self, node: Node, answer: Answer) -> None:
        def apply() -> object:
            if not self.reads_newest and self._past and self._reads.random() < 0.5:
                return self._reads.choice(self._past)
            return self._newest()

        self._call(node, apply, answer, LoadFailed())

    def _newest(self) -> Loaded:
        term = self.leadership.created if self.leadership is not None else 0
        return Loaded(self.document, self.document_revision, term, proven=self.reads_newest)

    def _changes(self) -> None:
        """What is true now will be the past."""
        self._past.append(self._newest())
        self.revision += 1

    def commit(self, node: Node, commit: Commit, answer: Answer) -> None:
        def apply() -> object:
            term = self.leadership.created if self.leadership is not None else 0
            led = commit.term in (term, ANY_TERM) and commit.term != 0
            if not led or commit.revision != self.document_revision:
                self._world.note("store", f"refuses {node.name}'s view {commit.membership.view.number}")
                return Refused(commit.ticket)
            self._changes()
            before = self.document
            self.document, self.document_revision = commit.membership, self.revision
            self.on_commit(node.name, before, commit.membership)
            return Committed(commit.ticket, self.revision)

        self._call(node, apply, answer, Unknown(commit.ticket))

    def watch(self, node: Node, after: int, answer: Answer) -> None:
        """Register after a delay; the watch may break at any time, and then says so a little later."""
        self._world.after(self._delay(), None, self._watch, node, node.life, after, answer)

    def _watch(self, node: Node, life: int, after: int, answer: Answer) -> None:
        if node.life != life or not node.up:
            return
        self._watchers[node.name] = (node, life, after, answer)
        missed = [revision for revision in self._deletions if revision > after]
        if missed:
            self._world.after(self._delay(), node, answer, WatchProgress(missed[-1], True))
        elif self.leadership is not None and self.leadership.created > after:
            led = WatchProgress(self.leadership.created, False, self.leadership.holder)
            self._world.after(self._delay(), node, answer, led)
        if self._world.chance.random() < 0.5:
            self._world.after(self._world.chance.uniform(0.1, 4.0), None, self._break, node, life, answer)

    def _break(self, node: Node, life: int, answer: Answer) -> None:
        watcher = self._watchers.get(node.name)
        if watcher is None or watcher[1] != life or watcher[3] is not answer:
            return
        del self._watchers[node.name]
        self._world.after(self._world.chance.uniform(0.05, 0.8), node, answer, WatchBroken())

    def _expire_later(self, held: Leadership) -> None:
        self._world.after(held.until - self._world.now, None, self._expire, held)

    def _expire(self, held: Leadership) -> None:
        if self.leadership is not held:
            return
        if held.until > self._world.now:
            self._expire_later(held)
            return
        self._changes()
        self.leadership, self.lapsed = None, True
        self.vacant_since = self._world.now - self._lease_s
        self._deletions.append(self.revision)
        self._world.note("store", f"the lease of {held.holder} has run out")
        self._tell_watchers(WatchProgress(self.revision, True))

    def _tell_watchers(self, progress: WatchProgress) -> None:
        for node, life, _, answer in list(self._watchers.values()):
            if node.life == life:
                self._world.after(self._delay(), node, answer, progress)

    def _call(self, node: Node, apply: Callable[[], object], answer: Answer, lost: object) -> None:
        there_s, back_s = self._delay(), self._delay()
        result: list[object] = []
        self._world.after(there_s, None, lambda: result.append(apply()))
        if there_s + back_s > ANSWER_TIMEOUT_S or self._world.chance.random() < self.lost_answers:
            self._world.after(ANSWER_TIMEOUT_S, node, answer, lost)
        else:
            self._world.after(there_s + back_s, node, lambda: answer(result[0]))

    def slow_down(self, seconds: float) -> None:
        self.slow_until = max(self.slow_until, self._world.now + seconds)
        self.late_until = self.slow_until + SLOWEST_REQUEST_S

    def _delay(self) -> float:
        chance = self._world.chance
        if self._world.now >= self.slow_until:
            return chance.uniform(0.0005, 0.003)
        return chance.uniform(0.05, 0.3) if chance.random() < 0.7 else chance.uniform(0.3, SLOWEST_REQUEST_S)
