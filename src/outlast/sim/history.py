"""The promises about steps, checked at every event of a simulated run.

A *life* is a replica in one incarnation. It is *present* while the newest committed view holds it; whatever a
life does that is not present any more is void, and nobody can come to depend on it.

- *Agreement*: at any time, all members that hold the record of a step hold the same one, and all that have
  applied a step are in the same state after it; whoever learns is given no other, and comes to no other.
  (A record that only void lives held may be replaced; who has learned it hears of that a moment later.)
- *Nothing is lost*: a step that was called stable keeps its record for as long as one of the lives that were
  members then has been present ever since. No life goes back behind a record that it holds.
- *One judgement*: all who reduce a slice of an attempt do so by the same surveys, one of each member.
- *Nothing bad counts*: no record is made of wrong numbers. What is left out has bad data, unless those who
  could have told were all wrong, too.
- *One active view*: once a step was completed in a view, no present member completes one in an older view.
- *In step*: the newest records of two members that train in the same view differ by at most one. (One that
  was promoted and still catches up does not train yet.)
- *Stable means held*: when a member calls a step stable, or feeds it to learners, every member of its view
  holds that record at that very time.
- *Only what is stable is saved*: whoever asks to commit a checkpoint holds a record of its step that was
  called stable, and the state that is saved is the one after it.
- *Pins agree*: all servers of a snapshot copy the same state, and nobody is asked for one that it has left.
- *Planned changes interrupt nobody*: where nothing fails, no attempt is ever repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlast.protocol.step_words import BLANK, Mode, Pin
from outlast.protocol.views import Member
from outlast.sim.checkers import Violation, require
from outlast.sim.doubts import GOOD

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode
    from outlast.sim.simulation import Simulation

Life = tuple[int, int]


@dataclass
class Past:
    """All that one life has done."""

    newest: int = BLANK
    records: dict[int, int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    attempted: int = BLANK
    fork: int = 0
    """The view of the newest fork behind what it holds."""


class History:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._pasts: dict[Life, Past] = {}
        self._told: dict[tuple[int, int], tuple[int, frozenset[Life]]] = {}
        """Stable steps, with the fork behind them: the record, and who was a member then."""
        self._ever_stable: set[tuple[int, int]] = set()
        """Steps with the records that were called stable, also by lives that are over."""
        self._given_up: set[Life] = set()
        self._judged: dict[tuple[int, int, int], dict[int, int]] = {}
        """Attempts, (view, step, trial), and the surveys by which they were reduced."""
        self._newest_acted = 0
        self.steps = 0
        self.left_out = 0

    def _past(self, life: Life) -> Past:
        return self._pasts.setdefault(life, Past())

    def _present(self) -> set[Life]:
        document = self._sim.store.document
        if document is None:
            return set()
        return {(m.replica, m.incarnation) for m in (*document.view.members, *document.view.learners)}

    def _members(self) -> set[Life]:
        document = self._sim.store.document
        return {(m.replica, m.incarnation) for m in document.view.members} if document is not None else set()

    def _compared(self) -> set[Life]:
        """With whom a life must agree. One that learns, or follows as a shadow, is no measure: it may have
        what somebody began who is gone, and is about to find that it is void. What it does itself is held
        against the members. Nor is one that is dead, and may have had what only the dead have made, before it
        could hear that it is void."""
        members = (self._members() & self._pasts.keys()) - self._given_up
        return {life for life in members if self._lives(life)}

    def _lives(self, life: Life) -> bool:
        node = self._sim.replica_node(life[0])
        return node is not None and node.up and node.core.incarnation == life[1]

    def attempts(self, node: ReplicaNode, step: int) -> None:
        past = self._past(_life(node))
        # A leader that has just taken over cannot know whether members still wait for one that left.
        # At the end there is nothing to interrupt: who was quickest is gone before the others have heard all.
        over = step > self._sim.last_step
        require(
            not self._sim.calm
            or self._sim.fell_behind
            or self._sim.store.lapsed
            or step > past.attempted
            or over,
            f"{node.name} attempts step {step} again, though nothing has failed",
        )
        past.attempted = max(past.attempted, step)

    def judges(self, node: ReplicaNode, step: int, trial: int, surveys: dict[int, int]) -> None:
        who, view = node.name, node.view
        members = {m.replica for m in view.members}
        require(surveys.keys() == members, f"{who} reduces step {step} by the surveys of {sorted(surveys)}")
        judged = self._judged.setdefault((view.number, step, trial), surveys)
        require(judged == surveys, f"{who} reduces step {step} by other surveys than others do")

    def counts(self, node: ReplicaNode, step: int, values: dict[int, int], left_out: frozenset[int]) -> None:
        """A record is made of the contributions with these numbers, without some of them."""
        who = node.name
        bad = sorted(shard for shard, value in values.items() if value != GOOD and shard not in left_out)
        require(not bad, f"{who} completes step {step} with the wrong numbers of shards {bad}")
        good = sorted(shard for shard in left_out if not self._sim.misfortune.spoils(step, shard))
        if good and not self._sim.many_wrong(node.view):
            raise Violation(f"{who} leaves shards {good} out of step {step}, whose data is not at fault")
        self.left_out += len(left_out)

    def completed(self, node: ReplicaNode, step: int, record: int, *, by_attempt: bool) -> None:
        life, view = _life(node), node.view
        who = node.name
        past = self._past(life)
        past.fork = node.steps.fork.view
        # The core may go on from a state that has come, and that the training thread has not loaded yet.
        before = past.newest if past.newest != BLANK else step - 1
        require(step == before + 1, f"{who} completes step {step} after step {before}")
        present = self._present()
        if life in present:
            for other in self._compared():
                same = self._pasts[other].fork == past.fork
                if same and self._pasts[other].records.get(step, record) != record:
                    raise Violation(
                        f"{who} holds another record of step {step} than replica {other[0]}, life {other[1]}"
                    )
            told, members = self._told.get((past.fork, step), (record, frozenset()))
            require(
                told == record or not members & present,
                f"{who} replaces the record of step {step}, which was stable",
            )
        past.newest = step
        past.records[step] = record
        way = "completes" if by_attempt else "is given"
        self._sim.world.note(who, f"{way} step {step} in view {view.number}")
        if by_attempt:
            self.steps += 1
            require(
                life not in present or view.number >= self._newest_acted,
                f"{who} completes step {step} in view {view.number} after others did in view "
                f"{self._newest_acted}",
            )
            self._newest_acted = max(self._newest_acted, view.number)
            self._check_in_step(node, step)

    def _check_in_step(self, node: ReplicaNode, step: int) -> None:
        for peer in self._sim.replicas():
            trains = peer.steps.mode is Mode.RUNNING and peer.steps.view.number == node.view.number
            if trains and peer.up and not peer.over and abs(peer.steps.newest - step) > 1:
                raise Violation(
                    f"{node.name} completes step {step}, but {peer.name} is at {peer.steps.newest}"
                )

    def _reconciles(self, replica: int) -> bool:
        """Whether it may have been given what is void, and has not heard yet from all that it is."""
        node = self._sim.replica_node(replica)
        return node is not None and node.steps.mode is Mode.RECONCILING

    def stands_at(self, node: ReplicaNode, step: int, digest: int) -> None:
        """A training thread has applied a step, or loaded the state after it."""
        life = _life(node)
        past = self._past(life)
        past.newest = max(past.newest, step)
        if node.thread.bent:
            return
        past.states[step] = digest
        present = self._present()
        if life not in present:
            return
        # Learners may have what somebody began who is gone; they are about to find that it is void. What they
        # do themselves is held against the members.
        for other in (self._members() & self._pasts.keys()) - self._given_up:
            same = self._pasts[other].fork == past.fork and not self._reconciles(other[0])
            if same and self._pasts[other].states.get(step, digest) != digest:
                raise Violation(
                    f"{node.name} is in another state after step {step} than replica {other[0]}, "
                    f"life {other[1]}"
                )

    def goes_back(self, node: ReplicaNode, step: int) -> None:
        """What this life holds after this step is void; see `truth.py` for when that may be."""
        past = self._past(_life(node))
        past.newest = past.attempted = step
        past.fork = node.steps.fork.view
        past.records = {one: record for one, record in past.records.items() if one <= step}
        past.states = {one: state for one, state in past.states.items() if one <= step}

    def forget_states(self) -> None:
        """The states that lives have been in, also those that are over, say nothing about others any more."""
        for past in self._pasts.values():
            past.states.clear()

    def gives_up(self, node: ReplicaNode) -> None:
        """A life knows that its state is void, though it has not said so to the coordinator yet."""
        self._given_up.add(_life(node))

    def stable(self, node: ReplicaNode, step: int) -> None:
        self._check_held(node, step, "calls step {} stable")
        members = frozenset((m.replica, m.incarnation) for m in node.view.members)
        record = self._past(_life(node)).records.get(step)
        if record is not None:
            self._ever_stable.add((step, record))
        if record is None or _life(node) not in self._present():
            return
        key = (self._past(_life(node)).fork, step)
        told, before = self._told.get(key, (record, frozenset()))
        require(
            told == record or not before & self._present(),
            f"{node.name} calls another record of step {step} stable than was told before",
        )
        self._told[key] = (record, members)

    def saves(self, node: ReplicaNode, step: int, digests: set[int]) -> None:
        """This committer has all stripes of a checkpoint, and asks for leave to commit it."""
        past = self._past(_life(node))
        record = past.records.get(step)
        # Who was given the state after a step has no record of it, and may keep it for a name all the same.
        stable = {known for at, known in self._ever_stable if at == step}
        require(
            bool(stable) if record is None else record in stable,
            f"{node.name} is about to commit step {step}, which is not stable",
        )
        require(
            digests <= {past.states.get(step, next(iter(digests)))},
            f"{node.name} is about to commit another state than the one after step {step}",
        )

    def feeds(self, node: ReplicaNode, step: int) -> None:
        self._check_held(node, step, "feeds step {}")
        # All members hold it, so it is stable, though who reconciles calls it so only at the next step.
        record = self._past(_life(node)).records.get(step)
        if record is not None:
            self._ever_stable.add((step, record))

    def _check_held(self, node: ReplicaNode, step: int, does: str) -> None:
        for m in node.view.members:
            past = self._past((m.replica, m.incarnation))
            newest = max(past.newest, self._held_by_core(m))
            if newest < step and past.fork <= node.steps.fork.view:
                raise Violation(
                    f"{node.name} {does.format(step)} in view {node.view.number}, but replica "
                    f"{m.replica} holds {newest}"
                )

    def _held_by_core(self, member: Member) -> int:
        """A state that has come counts, though the training thread has not loaded it yet."""
        peer = self._sim.replica_node(member.replica)
        if peer is None or peer.over or peer.core.incarnation != member.incarnation:
            return BLANK
        return peer.steps.newest

    def pins(self, node: ReplicaNode, pin: Pin, applied: int) -> None:
        require(
            applied <= pin.step,
            f"{node.name} shall copy the state after step {pin.step}, but is at step {applied}",
        )

    def pinned(self, node: ReplicaNode, states: set[tuple[int, int]]) -> None:
        require(len(states) == 1, f"{node.name} is given pieces of different states: {states}")

    def left_alone(self, node: ReplicaNode, others: tuple[int, ...]) -> None:
        require(False, f"{node.name} has left the loop of steps, but {others} have not")


def _life(node: ReplicaNode) -> Life:
    return node.me.replica, node.me.incarnation
