"""What a member gives to others: snapshots of its state, and records.

A snapshot is of the state after one step, so it is begun when the training thread stands there, and is
complete before it applies the next record, or as soon as it has nothing else to do. Who is a member already
and waits for the state keeps everybody waiting: it is given its share at once.

Records are sent in shares, each member some of them; whoever gets them holds them in their own memory, and a
slow receiver is dropped rather than waited for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from outlast import crashpoints as crash
from outlast.errors import CheckpointError
from outlast.mesh.frames import Header
from outlast.mesh.kinds import Kind, Way
from outlast.protocol.step_words import FeedAgain, HandOver, Pin
from outlast.protocol.views import Member, View
from outlast.state.training import TrainingState
from outlast.train.final import FinalState
from outlast.train.gradients import Gradients
from outlast.train.post import Post
from outlast.train.records import Record
from outlast.train.snapshots import Gift

log = logging.getLogger(__name__)


class Giving:
    def __init__(
        self,
        replica: int,
        state: TrainingState,
        gradients: Gradients,
        post: Post,
        changed: threading.Condition,
    ) -> None:
        self._changed = changed
        self._replica = replica
        self._state = state
        self._gradients = gradients
        self._post = post
        self._pins: list[tuple[Pin, Header]] = []
        self.final: FinalState | None = None
        """The state at the end of the loop, while the training thread is beside the steps."""
        self.final_is_known = False
        """Whether all have compared that one, so that it is what the run ends with."""
        self._gifts: list[tuple[Gift, Member, Header]] = []
        """What is being copied; only the training thread touches it."""
        self._promised: set[Member] = set()
        """Those that have been told what they are given, and not been given all of it."""
        self._at_once = False
        """Whether the script changes the state in the middle of steps, so that nothing can be copied then."""

    def clear(self) -> None:
        self._pins.clear()
        self._promised.clear()
        self.forget_final()

    def owed(self, applied: int) -> set[Member]:
        """Those that wait for a share of the state from this replica. It comes at the end of a step, which
        may take minutes, so they have to be told that it comes."""
        return self._promised | {pin.to for pin, _ in self._pins if pin.step >= applied}

    def forget_final(self) -> None:
        """It was not the end, or not the right one."""
        self.final, self.final_is_known = None, False

    def go_back(self, step: int) -> None:
        """States after this step are void."""
        self.forget_final()
        self._pins = [entry for entry in self._pins if entry[0].step <= step]

    def pin(self, pin: Pin, header: Header) -> None:
        """Remember whom to give the state after which step; the header names the view that decided it."""
        if self._replica in pin.servers:
            self._pins.append((pin, header))

    def give_final(self) -> None:
        """Under the lock: give the final state to whoever waits for it, whatever the training thread does."""
        while self.final is not None and (due := self.due(self.final.step)) is not None:
            pin, header = due
            crash.reach("serving", pin.step)
            header = header._replace(step=pin.step, flags=int(self.final_is_known))
            self._post.send(pin.to, header._replace(kind=Kind.IMAGE), self.final.image)
            for index, memory in self.final.share(pin, self._replica):
                self._post.send(pin.to, header._replace(kind=Kind.PIECE, lo=index), memory)

    def due(self, applied: int) -> tuple[Pin, Header] | None:
        """A snapshot to be made now, while the model holds the result of that step."""
        for entry in self._pins:
            if entry[0].step == applied:
                self._pins.remove(entry)
                return entry
        return None

    def serve(self, pin: Pin, header: Header, *, at_once: bool) -> None:
        """In the training thread, without the lock: copying takes a while."""
        crash.reach("serving", pin.step)
        gift = Gift(self._state, pin, self._replica, self._gradients.step_buffers())
        header = header._replace(kind=Kind.IMAGE, step=pin.step)
        with self._changed:
            self._post.send(pin.to, header, gift.image)
            self._promised.add(pin.to)
        self._gifts.append((gift, pin.to, header))
        if at_once or self._at_once:
            self.settle()
        else:
            gift.start()

    @property
    def idle(self) -> bool:
        """Whether nothing is being copied."""
        return not self._gifts

    def settle(self) -> None:
        """In the training thread, without the lock: complete what is being copied, and send it."""
        gifts, self._gifts = self._gifts, []
        for gift, to, header in gifts:
            try:
                pieces = gift.settle()
            except CheckpointError as error:
                # It misses the pieces, and asks again.
                self._at_once = True
                with self._changed:
                    self._promised.discard(to)
                log.warning("replica %d is not given the state after this step: %s", to.replica, error)
                continue
            with self._changed:
                self._promised.discard(to)
                for index, memory in pieces:
                    self._post.send(to, header._replace(kind=Kind.PIECE, lo=index), memory)

    def feed(self, record: Record | None, view: View, header: Header) -> None:
        """A stable record, to all learners."""
        if record is not None:
            servers = tuple(member.replica for member in view.members)
            self._share(record, view.learners, servers, header, Way.STABLE)

    def feed_again(self, again: FeedAgain, records: Mapping[int, Record], view: View, header: Header) -> None:
        """Everything that is kept and stable, to all learners; first of all, from where on that is."""
        steps = [step for step in range(again.first, again.last + 1) if step in records]
        first = min(steps, default=again.last + 1)
        for learner in view.learners:
            self._post.send(learner, header._replace(kind=Kind.FEED_FROM, step=first, offset=again.top))
        for step in steps:
            self.feed(records[step], view, header)

    def hand_over(self, action: HandOver, record: Record, view: View, header: Header) -> None:
        """The record of a switch, to those whom the switch has made members."""
        new = [member for member in view.members if member.replica in action.to]
        self._share(record, new, action.servers, header, Way.HANDED)

    def answer(self, peers: Iterable[Member], record: Record, header: Header) -> None:
        """All of a record, to those who lack it."""
        for peer in peers:
            self._post.record(peer, record, header._replace(step=record.step), Way.WHOLE, 0, 1)

    def _share(
        self, record: Record, to: Iterable[Member], servers: tuple[int, ...], header: Header, way: Way
    ) -> None:
        if self._replica not in servers:
            return
        place = servers.index(self._replica)
        for peer in to:
            self._post.record(peer, record, header._replace(step=record.step), way, place, len(servers))
