"""One seeded run: a stretch of misfortune, then quiet, then the question whether everybody is back."""

from __future__ import annotations

import math
import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from outlast.protocol import step_words as words
from outlast.protocol.coordinator import CoordinatorCore
from outlast.protocol.driver import Driver
from outlast.protocol.finding import Finder
from outlast.protocol.gaps import RENEWALS_MOST
from outlast.protocol.inbox import Inbox
from outlast.protocol.life import Life
from outlast.protocol.lines import Lines
from outlast.protocol.member import MemberCore
from outlast.protocol.post import Outgoing
from outlast.protocol.saving import SaveCore
from outlast.protocol.seams import Bulk
from outlast.protocol.steps import StepCore
from outlast.protocol.supervision import AgentCore
from outlast.protocol.timing import Timing
from outlast.protocol.verifying import Verifying
from outlast.protocol.views import JobSpec, Seat, View, barred
from outlast.sim.bulk import NumberBulk
from outlast.sim.checkers import Checkers, Violation
from outlast.sim.doubts import Doubts, Misfortune
from outlast.sim.faults import Faults
from outlast.sim.history import History
from outlast.sim.keepers import Keeper, Names
from outlast.sim.mesh import Mesh
from outlast.sim.network import Network
from outlast.sim.nodes import ANY_PROCESS, AgentNode, CoordinatorNode
from outlast.sim.replica import ReplicaNode
from outlast.sim.saver import Saver
from outlast.sim.store import SLOWEST_REQUEST_S, SimStore
from outlast.sim.truth import Truth
from outlast.sim.vault import SimVault
from outlast.sim.world import World

FAULTY_FOR_S = 8.0
ENDLESS = 10**9
BACK_WITHIN_S = 35.0
"""Longer than the slowest ordinary way back: a lease, a window of trust, a hang, a restart, a join."""

ONE_AFTER_THE_OTHER_S = 4.0
"""Longer by this for everyone who was to begin the lineage, and is to be started again for that."""

WRONG_LATELY_S = 5.0
"""What was computed wrongly may be kept this long before it is heard; longer where words are lost."""

EXCUSE_HOLDS_S = 2.5
"""A fault still explains an eviction this long after it is over: detection and commit."""
ON_ITS_WAY_S = 0.1
"""So old is what the coordinator knows, at the most, of connections that were made anew."""


SUSPICIOUS = partial(StepCore, judges=True)


@dataclass(frozen=True)
class Cast:
    """Which cores play; a planted mistake is another cast."""

    coordinator: Callable[..., CoordinatorCore] = CoordinatorCore
    agent: Callable[..., AgentCore] = AgentCore
    member: Callable[..., MemberCore] = MemberCore
    finder: Callable[..., Finder] = Finder
    steps: Callable[[int], StepCore] = SUSPICIOUS
    saves: Callable[[int], SaveCore] = SaveCore
    verifying: Callable[[], Verifying] = Verifying
    driver: Callable[..., Driver] = Driver
    life: Callable[..., Life] = Life
    lines: Callable[[], Lines[Outgoing]] = Lines
    inbox: Callable[[Bulk], Inbox] = Inbox
    bulk: Callable[[ReplicaNode], NumberBulk] = NumberBulk
    doubts: Callable[[ReplicaNode], Doubts] = Doubts
    saver: Callable[[ReplicaNode], Saver] = Saver
    keeper: Callable[[ReplicaNode], Keeper] = Keeper
    vault: Callable[[Simulation], SimVault] = SimVault


@dataclass(frozen=True)
class Verdict:
    seed: int
    violation: str | None
    story: str
    views: int
    steps: int
    left_out: int
    charges: int
    commits: int
    resumes: int
    returns: int
    back_after_s: float

    @property
    def ok(self) -> bool:
        return self.violation is None


class Simulation:
    def __init__(self, seed: int, cast: Cast | None = None) -> None:
        self.cast = cast or Cast()
        self.world = World(seed)
        chance = self.world.chance
        self.timing = Timing(detect_within_s=1.0, form_within_s=3.0, cold_within_s=4.0)
        replicas = chance.randint(1, 6)
        self.spec = JobSpec(
            name=f"seed-{seed}",
            replicas=replicas,
            shards=chance.randint(1, 8),
            min_replicas=chance.randint(1, replicas) if chance.random() < 0.3 else 1,
            # Drawn apart, so that runs without a shadow are what they were before there were any.
            shadows=int(random.Random(f"shadow-{seed}").random() < 0.2),
        )
        self.calm = chance.random() < 0.15
        """Nothing fails in this run; replicas come and go, and nobody may be interrupted by that."""
        self.wrong_until: dict[int, float] = {}
        """Until when a process of this replica computes wrong numbers, or did."""
        self.misfortune = Misfortune(seed, happens=self.cast.steps(0).judges)
        self.network = Network(self.world)
        self.mesh = Mesh(self.world, self.network)
        self.store = SimStore(self.world, self.timing.lease_s)
        self.vault = self.cast.vault(self)
        self.names = Names(self, saves=self.vault.save_every > 0)
        self.checkers = Checkers(self)
        self.history = History(self)
        self.truth = Truth(self)
        # Drawn apart, too, like the shadows.
        self.compare_every = random.Random(f"verify-{seed}").choice([0, 1, 3, 10])
        """After so many steps states are compared; 0 for a job that compares none."""
        self.gathers = random.Random(f"gathers-{seed}").random() < 0.3
        """Whether the coordinators decide as in a large job: at their ticks, unless something presses."""
        self.store.on_commit = self.checkers.committed
        coordinators, machines = chance.randint(1, 3), chance.randint(1, min(3, replicas))
        # Drawn apart, too.
        places = random.Random(f"places-{seed}")
        if places.random() < 0.3:
            room = math.ceil(self.spec.processes / machines) + places.choice([0, 1, self.spec.processes])
            self.spec = msgspec.structs.replace(self.spec, per_machine=room)
        self.coordinators = [CoordinatorNode(self, f"coordinator-{i}") for i in range(coordinators)]
        self.agents = [
            AgentNode(self, f"agent-{i}", tuple(range(i, self.spec.processes, machines)))
            for i in range(machines)
        ]
        # Some runs go on for ever; others come to their end, in the middle of the trouble or after it.
        self.last_step = chance.randint(5, 80) if chance.random() < 0.3 else ENDLESS
        # Drawn apart, too.
        self.end_is_haunted = self.last_step < ENDLESS and random.Random(f"ends-{seed}").random() < 0.4
        """Whether replicas die one after the other once all have the final state, while the chief works."""
        self.ledger_takes_s = random.Random(f"ledger-{seed}").choice([None, None, 0.003, 0.05, 0.5])
        """How long it takes at the most to write down that a step is stable; None where nobody wants that."""
        self.on_hand_over: Callable[[tuple[int, ...]], None] | None = None
        self.on_manifest_sent: Callable[[], None] | None = None
        self.on_beginning: Callable[[], None] | None = None
        self.on_claim: Callable[[ReplicaNode], None] | None = None
        self.on_work: Callable[[ReplicaNode], bool] | None = None
        self.tears: list[tuple[float, frozenset[int]]] = []
        """When connections broke for no reason, and between whom."""
        self.may_stand_still = False
        """Whether a word was lost though nothing was wrong with its connection."""
        self.fell_behind = False
        """Whether one that was made a member lacked what nobody keeps any more: it was fed late, or what one
        that has left had to send never came. It begins again, and that interrupts the others."""
        self.had_no_beginning = 0
        """How often one that was to begin a lineage had no state to begin with any more."""
        self.returned_at: dict[int, float] = {}
        """When a connection with this replica was made anew."""
        self.kept_s = WRONG_LATELY_S
        self.asked_to_leave: set[tuple[int, int]] = set()
        self._excused_until: dict[tuple[int, int], float] = {}

    def everyone(self) -> list[ReplicaNode]:
        """All processes of replicas, with those that were left behind on a machine when others were started
        elsewhere in their place."""
        return [node for agent in self.agents for node in agent.running.values()]

    def replicas(self) -> list[ReplicaNode]:
        """The newest process of each replica."""
        if not self.spec.is_placed:
            return self.everyone()
        newest: dict[int, ReplicaNode] = {}
        for node in self.everyone():
            known = newest.get(node.replica)
            if known is None or node.process > known.process:
                newest[node.replica] = node
        return list(newest.values())

    def replica_node(self, replica: int) -> ReplicaNode | None:
        if not self.spec.is_placed:
            return self.agents[replica % len(self.agents)].running.get(replica)
        return next((node for node in self.replicas() if node.replica == replica), None)

    def excuse(self, replica: int, process: int, until: float) -> None:
        key = (replica, process)
        self._excused_until[key] = max(until, self._excused_until.get(key, 0.0))

    def excused(self, seat: Seat) -> bool:
        """Whether something has happened to this replica lately, or its process is dead anyway."""
        late_s = SLOWEST_REQUEST_S if self.world.now <= self.store.late_until else 0.0
        for process in (seat.process, ANY_PROCESS):
            until = self._excused_until.get((seat.replica, process), -1e9)
            if until + EXCUSE_HOLDS_S > self.store.vacant_since:
                # Nobody could decide then; whoever leads now finds it as it was left.
                until = max(until, self.store.led_since + self.timing.trust_for_s)
            if self.world.now <= until + EXCUSE_HOLDS_S + late_s:
                return True
        node = self.replica_node(seat.replica)
        if node is None or not node.up or node.process != seat.process:
            return True
        # One that has no state waits for those who give it, and looks like them if they hang.
        if node.steps.newest == words.BLANK and any(other.hanging for other in self.replicas()):
            return True
        # One that cannot be reached may be evicted for that, but not one whose connections are there again.
        cut_off = {n.replica: (n.driver.life.broken, n.driver.life.returned) for n in self.replicas()}
        missed = any(seat.replica in torn - back for torn, back in cut_off.values())
        just_now = self.world.now < self.returned_at.get(seat.replica, -1e9) + ON_ITS_WAY_S + late_s
        return (
            self._torn_again_and_again(seat.replica)
            or missed
            or just_now
            or bool(cut_off[seat.replica][0] - cut_off[seat.replica][1])
        )

    def _torn_again_and_again(self, replica: int) -> bool:
        """Whether a connection of this replica broke so often lately that it is none."""
        since = self.world.now - self.timing.standstill_s - EXCUSE_HOLDS_S
        lately = Counter(pair for at, pair in self.tears if at >= since and replica in pair)
        # One break may cost two views, where its ends hear of it in different ones.
        return any(2 * count > RENEWALS_MOST for count in lately.values())

    def many_wrong(self, view: View) -> bool:
        """Whether so many members compute wrongly, or did just now, that nobody may be left to tell."""
        lately = self.world.now - self.kept_s
        # What one contributes may have been computed long ago, if it slept since.
        since = {node.replica: min(lately, node.thread.computed_at) for node in self.replicas()}
        wrong = [
            m for m in view.members if self.wrong_until.get(m.replica, 0.0) > since.get(m.replica, lately)
        ]
        return len(wrong) >= min(2, len(view.members))

    def strikes_at_work(self, node: ReplicaNode) -> bool:
        """Whether a connection of this replica is torn while it works."""
        return self.on_work is not None and self.on_work(node)

    def is_due(self, step: int) -> bool:
        """Whether it is time to compare states, or to save one, which is compared, too."""
        return self.compare_every > 0 and step % self.compare_every == 0

    def leaves(self, seat: Seat) -> bool:
        return (seat.replica, seat.process) in self.asked_to_leave

    def run(self) -> Verdict:
        try:
            back_after_s = self._run()
        except Violation as violation:
            self.world.note("CHECKER", str(violation))
            return self._outcome(str(violation), 0.0)
        except Exception:
            # A core that raises has broken every promise at once; its seed is what we need.
            self.world.note("CHECKER", traceback.format_exc())
            return self._outcome("a core failed: " + traceback.format_exc(limit=-1), 0.0)
        return self._outcome(None, back_after_s)

    def _outcome(self, violation: str | None, back_after_s: float) -> Verdict:
        story = self.world.story() if violation is not None else ""
        return Verdict(
            seed=self.world.seed,
            violation=violation,
            story=story,
            views=self.checkers.views,
            steps=self.history.steps,
            left_out=self.history.left_out,
            charges=len(self.store.document.charges) if self.store.document is not None else 0,
            commits=self.vault.commits,
            resumes=self.vault.resumes,
            returns=self.truth.returns,
            back_after_s=back_after_s,
        )

    def _run(self) -> float:
        for coordinator in self.coordinators:
            coordinator.boot()
        for agent in self.agents:
            agent.boot()
        faults = Faults(self)
        faults.schedule(FAULTY_FOR_S)
        self.world.run_until(FAULTY_FOR_S)
        faults.end()
        quiet_since = self.world.now
        while self.world.now < quiet_since + BACK_WITHIN_S + ONE_AFTER_THE_OTHER_S * self.had_no_beginning:
            before = {node.replica: node.step for node in self.replicas()}
            self.world.run_until(self.world.now + 0.5)
            faults.step_in()
            if self._finished():
                return self.world.now - quiet_since
            moves = self._all_moved(before) and self._saves_move(quiet_since) and self.truth.all_is_found()
            if self.last_step == ENDLESS and self._all_back() and moves:
                return self.world.now - quiet_since
        back = "everybody is back" if self.last_step == ENDLESS else "the job has ended"
        waited_s = self.world.now - quiet_since
        raise Violation(f"not so {waited_s} s after faults stopped: {back}; {self._who_is_missing()}")

    def _finished(self) -> bool:
        outcome = self.store.document.outcome if self.store.document is not None else None
        return outcome is not None and all(agent.core.outcome == outcome for agent in self.agents)

    def _all_back(self) -> bool:
        document = self.store.document
        expected = self.spec.replicas
        if document is not None:
            expected -= barred(self.spec, document.seats.values())
        if document is None or len(document.view.members) != expected:
            return False
        view = document.view
        # Where a replica was moved, nothing of it is left behind.
        alone = len(self.everyone()) == len(self.replicas())
        return alone and all(
            node.up
            and node.core.view == view
            and (node.core.is_member or self.spec.is_shadow(node.replica))
            and not node.hanging
            for node in self.replicas()
        )

    def _all_moved(self, before: dict[int, int]) -> bool:
        return all(node.step > before.get(node.replica, 0) for node in self.replicas())

    def _saves_move(self, quiet_since: float) -> bool:
        """Whether every save has ended that was under way when the faults stopped."""
        return all(
            node.saver.saves_since > quiet_since and node.keeper.since > quiet_since
            for node in self.replicas()
        )

    def _who_is_missing(self) -> str:
        document = self.store.document
        number = document.view.number if document is not None else 0
        members = [m.replica for m in document.view.members] if document is not None else []
        leader = self.store.leadership.holder if self.store.leadership is not None else "nobody"
        states = [
            f"replica {node.replica} in view {node.core.view.number} at step {node.step}, "
            f"{node.participant.steps.mode.name} with {node.participant.steps.newest}"
            + (" fenced" if node.core.fenced else "")
            + (" hanging" if node.hanging else "")
            + (f" saves step {save.step}" if (save := node.participant.saves.save) else "")
            for node in self.replicas()
        ]
        return f"view {number} has {members}, {leader} leads; " + "; ".join(states)
