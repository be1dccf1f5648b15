"""What a life gives to others: snapshots of its state, and records.

A snapshot is of the state after one step, so it is begun when the training thread stands there (`Give`); who
is a member already and waits for the state keeps everybody waiting, and is given its share at once. From the
end of the loop of steps on, a copy of the final state is given, whatever the training thread does then.

Records are sent in shares, each member some of them; whoever gets them holds them in their own memory, and a
slow receiver is dropped rather than waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, Way
from outlast.protocol.post import Post
from outlast.protocol.seams import Final, Record
from outlast.protocol.step_words import FeedAgain, HandOver, Pin
from outlast.protocol.views import Member, View


class Giving:
    """That of one life."""

    def __init__(self, replica: int, post: Post, passes: Callable[[str, int], None]) -> None:
        self._replica = replica
        self._post = post
        self._passes = passes
        self._pins: list[tuple[Pin, Header]] = []
        self.promised: set[Member] = set()
        """Those that have been told what they are given, and not been given all of it."""
        self.final: Final | None = None
        """The state at the end of the loop, while the training thread is beside the steps."""
        self.final_is_known = False
        """Whether all have compared that one, so that it is what the run ends with."""

    def owed(self, applied: int) -> list[Member]:
        """Those that wait for a share of the state from this replica. It comes at the end of a step, which
        may take minutes, so they have to be told that it comes."""
        owed = self.promised | {pin.to for pin, _ in self._pins if pin.step >= applied}
        # In an order that is the same in every process: a seed of the simulator has to mean something.
        return sorted(owed, key=lambda member: (member.replica, member.incarnation))

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
            self._pins.append((pin, header._replace(kind=Kind.IMAGE, step=pin.step)))

    def due(self, applied: int) -> tuple[Pin, Header] | None:
        """A snapshot to be made now, while the model holds the result of that step."""
        for entry in self._pins:
            if entry[0].step == applied:
                self._pins.remove(entry)
                return entry
        return None

    def give_final(self) -> None:
        """Give the final state to whoever waits for it, whatever the training thread does."""
        while self.final is not None and (due := self.due(self.final.step)) is not None:
            pin, header = due
            self._passes("serving", pin.step)
            header = header._replace(flags=int(self.final_is_known))
            self._post.send(pin.to, header, self.final.image)
            for index, memory in self.final.share(pin, self._replica):
                self._post.send(pin.to, header._replace(kind=Kind.PIECE, lo=index), memory)

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
            self._post.record(peer, record, header, Way.WHOLE, 0, 1)

    def _share(
        self, record: Record, to: Iterable[Member], servers: tuple[int, ...], header: Header, way: Way
    ) -> None:
        if self._replica not in servers:
            return
        place = servers.index(self._replica)
        for peer in to:
            self._post.record(peer, record, header, way, place, len(servers))
