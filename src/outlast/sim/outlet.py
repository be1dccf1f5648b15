"""What leaves a replica's driver in the simulator, and what the checkers are told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from outlast.protocol import member
from outlast.protocol import step_words as words
from outlast.protocol.events import AnyEvent
from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind, Way
from outlast.protocol.life import Life
from outlast.protocol.lines import Line
from outlast.protocol.messages import Message, Phase
from outlast.protocol.participant import Action
from outlast.protocol.seams import Noted, Record
from outlast.protocol.views import Member, Outcome, View
from outlast.sim import bulk
from outlast.sim.checkers import require

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

WARNING = 30


class SimOutlet:
    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._sim = node.sim
        self._unwritten: set[tuple[object, int]] = set()
        """Steps that became stable in a life, and are not in this process's ledger yet."""
        self._written_at = 0.0

    def reach(self, own: int, peers: Sequence[Member]) -> None:
        self._sim.mesh.reach(self._node, own, peers)

    def send(
        self,
        line: Line,
        header: Header,
        payload: memoryview | bytes,
        keep: object = None,  # noqa: ARG002
        *,
        more: bool = False,  # noqa: ARG002
        droppable: bool = False,  # noqa: ARG002
    ) -> bool:
        fed = header.kind in (Kind.NOTE, Kind.SHARE) and header.flags == Way.STABLE
        require(
            not fed or (self._node.driver.life, header.step) not in self._unwritten,
            f"{self._node.name} feeds step {header.step}, which is not in its ledger yet",
        )
        return self._sim.mesh.send(line, header, payload)

    def drop(self, line: Line, why: str) -> None:
        self._sim.world.note(self._node.name, f"drops its connection with {line.peer.replica}: {why}")
        self._sim.mesh.drop(line)

    def tell(self, message: Message) -> None:
        self._node.call.tell(message)

    def adopted(self, view: View) -> None:
        self._sim.checkers.adopted(self._node, view)
        self._sim.world.note(self._node.name, f"adopts view {view.number}, holding {self._node.steps.newest}")

    def over(self, outcome: Outcome) -> None:
        """Its agent ends it."""

    def wake(self) -> None:
        self._node.thread.wake()

    def enter(self, phase: Phase) -> None:
        self._node.enter(phase)

    def take_part(self, view: int) -> None:
        self._node.take_part(view)

    def stands_at(self, step: int) -> None:
        self._node.advance(step)

    def completed(self, record: Record, *, made: bool) -> None:
        made_of = cast(bulk.Record, record)
        if made:
            self._sim.truth.notes(self._node, made_of)
        self._sim.history.completed(self._node, record.step, made_of.number, by_attempt=made)
        self._node.advance(record.step)

    def stable(self, record: Record, noted: Noted) -> bool:
        self._sim.history.stable(self._node, record.step)
        if self._sim.ledger_takes_s is None:
            return True
        self._unwritten.add((noted.life, noted.step))
        delay_s = self._sim.world.chance.uniform(0.0, self._sim.ledger_takes_s)
        # One line after the other.
        self._written_at = max(self._written_at, self._sim.world.now + delay_s)
        self._sim.world.after(self._written_at - self._sim.world.now, self._node, self._write, noted)
        return False

    def _write(self, noted: Noted) -> None:
        self._unwritten.discard((noted.life, noted.step))
        self._node.driver.done(noted, self._sim.world.now)

    def saved(self, step: int, *, just_now: bool) -> None:
        """Nobody asks."""

    def emit(self, event: AnyEvent) -> None:
        """The checkers see more than that."""

    def note(self, level: int, text: str) -> None:
        if level >= WARNING:
            self._sim.world.note(self._node.name, text)

    def passes(self, point: str, step: int) -> None:
        """Nobody strikes here."""

    def watch(self, _: Life, action: Action) -> None:
        """Everything that is carried out."""
        node, sim = self._node, self._sim
        match action:
            case member.Deliver():
                sim.checkers.delivered(node, action.frame)
            case member.FencedOff():
                sim.world.note(node.name, f"is fenced: {action.reason}")
                sim.checkers.fenced(node)
                node.saver.view_changes()
            case member.MayBegin():
                node.saver.may_begin(action.foundation)
            case member.Adopt():
                node.saver.view_changes()
            case words.Attempt() if action.trial == words.Trial.FIRST:
                sim.history.attempts(node, action.step)
            case words.Differ():
                sim.truth.differs(node, action)
            case words.Verified() if action.kept:
                sim.truth.verified(node, action.step)
            case words.GoBack():
                sim.truth.goes_back(node, action.fork, action.step)
                sim.history.goes_back(node, action.step)
            case words.Accused():
                sim.truth.accuses(node, action.member, action.step)
            case words.Pin() if node.replica in action.servers:
                sim.history.pins(node, action, node.thread.stands_at)
            case words.Feed() if action.step in node.driver.life.records:
                sim.history.feeds(node, action.step)
            case words.FeedAgain():
                for step in range(action.first, action.last + 1):
                    if step in node.driver.life.records:
                        sim.history.feeds(node, step)
            case words.HandOver() if node.replica in action.servers and sim.on_hand_over is not None:
                sim.on_hand_over(action.servers)
            case words.LeftAlone():
                sim.history.left_alone(node, action.others)
            case words.Lost():
                sim.world.note(node.name, f"gives this life up: {action.reason}")
                sim.history.gives_up(node)
                sim.fell_behind |= "nobody keeps" in action.reason
            case _:
                pass
