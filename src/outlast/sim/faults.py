"""Misfortune, drawn from the seed: crashes, sleep, hangs, partitions, slow disks.

Each fault says whom it touches and until when; that is the excuse which the eviction checker accepts. A
fault of a coordinator or of the store touches no replica: it must never cost one its place.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from outlast.protocol.header import Header
from outlast.protocol.kinds import Kind
from outlast.protocol.lines import Line
from outlast.sim.nodes import ANY_PROCESS, AgentNode
from outlast.sim.replica import ReplicaNode

if TYPE_CHECKING:
    from outlast.sim.simulation import Simulation


WORDS = frozenset(
    (Kind.PART, Kind.SUM, Kind.HOLDING, Kind.WANT, Kind.GONE, Kind.SWITCHED, Kind.SURVEY, Kind.ENDING)
)
TORN_BEHIND = (Kind.SCATTER, Kind.RESULT, Kind.PART, Kind.SUM, Kind.FEED_FROM, Kind.SHARE, Kind.PIECE)


class Faults:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._cuts: list[tuple[str, str]] = []
        kinds = [
            self._kill_replica,
            self._kill_replica,
            self._cut_power,
            self._stop_replica,
            self._hang_replica,
            self._kill_agent,
            self._stop_agent,
            self._stop_machine,
            self._kill_coordinator,
            self._stop_coordinator,
            self._cut_replicas,
            self._cut_replica_off,
            self._cut_control,
            self._slow_store,
            self._ask_to_leave,
            self._lie_in_wait,
            self._lie_in_wait_for_a_commit,
        ]
        if sim.compare_every:
            kinds += [self._flip_a_bit, self._flip_a_bit]
        # Each run has its own mixture, so that some runs are all of one kind and others a bit of everything.
        self._kinds = sim.world.chance.sample(kinds, sim.world.chance.randint(1, len(kinds)))
        if sim.calm:
            self._kinds = [self._ask_to_leave]
        elif sim.misfortune.faulty_processes:
            self._kinds += [self._compute_wrongly] * 3
        # Drawn apart, so that runs without it are what they were before there was such a thing.
        self._apart = random.Random(f"claims-{sim.world.seed}")
        self._swallows = random.Random(f"words-{sim.world.seed}")
        self._tears = random.Random(f"tears-{sim.world.seed}")
        self._warps = random.Random(f"buffers-{sim.world.seed}")
        self._exits = random.Random(f"exits-{sim.world.seed}")
        self._late = random.Random(f"late-{sim.world.seed}")
        self._haunts = random.Random(f"haunts-{sim.world.seed}")
        self._losses = random.Random(f"losses-{sim.world.seed}")

    def schedule(self, until_s: float) -> None:
        chance = self._sim.world.chance
        at = chance.uniform(0.0, 2.0)
        mean_gap = chance.choice([0.3, 0.8, 2.0])
        while at < until_s:
            self._sim.world.after(at, None, chance.choice(self._kinds))
            at += chance.expovariate(1 / mean_gap)
        if not self._sim.calm and self._apart.random() < 0.3:
            self._sim.world.after(self._apart.uniform(0.0, until_s), None, self._lie_in_wait_for_a_claim)
        if not self._sim.calm and self._tears.random() < 0.4:
            for _ in range(self._tears.choice([1, 3, 10])):
                tears = self._tears.choice(
                    [self._tear, self._lie_in_wait_for_a_frame, self._lie_in_wait_for_work]
                )
                self._sim.world.after(self._tears.uniform(0.0, until_s), None, tears)
        if not self._sim.calm and self._late.random() < 0.1:
            self._sim.world.after(
                self._late.uniform(0.0, until_s / 2), None, self._lie_in_wait_for_what_is_late
            )
        if not self._sim.calm and self._swallows.random() < 0.1:
            self._sim.world.after(self._swallows.uniform(0.0, until_s), None, self._swallow_a_word)
        if not self._sim.calm and self._sim.compare_every and self._warps.random() < 0.3:
            for _ in range(self._warps.randint(1, 4)):
                self._sim.world.after(self._warps.uniform(0.0, until_s), None, self._flip_a_buffer)
        if not self._sim.calm and self._sim.end_is_haunted:
            self._sim.world.after(0.0, None, self._haunt_the_end, self._haunts.randint(1, 6), until_s)
        if not self._sim.calm and self._sim.spec.is_placed and self._losses.random() < 0.7:
            for _ in range(self._losses.randint(1, 2)):
                self._sim.world.after(self._losses.uniform(0.0, 2.5), None, self._lose_machine)
        if not self._sim.calm and self._exits.random() < 0.15:
            for _ in range(self._exits.randint(1, 3)):
                self._sim.world.after(self._exits.uniform(0.0, until_s), None, self._exit_early)

    def end(self) -> None:
        """Everything heals; what is dead comes back."""
        sim = self._sim
        for one, other in self._cuts:
            self._heal(one, other)
        sim.store.slow_until = 0.0
        for replica in sim.everyone():
            replica.wrong_until = min(replica.wrong_until, sim.world.now)
        sim.on_claim = sim.on_hand_over = sim.on_manifest_sent = sim.on_beginning = None
        sim.mesh.on_send = sim.on_work = None
        for node in [*sim.coordinators, *sim.agents, *sim.everyone()]:
            sim.world.resume(node)
        self.step_in()
        for coordinator in sim.coordinators:
            if not coordinator.up:
                coordinator.boot()
        for agent in sim.agents:
            if not agent.up:
                agent.boot()
        sim.world.note("faults", "have stopped")

    def step_in(self) -> None:
        """A hang that no member waits for has no witness; there a person has to step in. In a paused view
        nobody waits, nor for a learner, and who has no training state yet is not asked: the others might be
        the last to have it. And what a script does after its last step may take as long as it likes.
        """
        document = self._sim.store.document
        members = document.view.members if document is not None and not document.view.paused else ()
        trains = {n.replica for n in self._sim.replicas() if n.trains and not n.hanging}
        waits = any(m.replica in trains for m in members)
        for node in self._sim.replicas():
            rests = node.thread.ending.begun
            if node.hanging and (node.starting or rests or not waits or not node.core.is_member):
                node.kill("was killed by its owner")

    def _some_replica(self) -> ReplicaNode | None:
        alive = [node for node in self._sim.replicas() if node.up]
        return self._sim.world.chance.choice(alive) if alive else None

    def _kill_replica(self) -> None:
        node = self._some_replica()
        if node is not None:
            self._touch(node, 0.0, "is killed")
            node.kill("was killed by SIGKILL")

    def _haunt_the_end(self, deaths: int, until_s: float) -> None:
        """One after the other dies, each as soon as all have the final state."""
        nodes = [node for node in self._sim.replicas() if not self._sim.spec.is_shadow(node.replica)]
        there = len(nodes) == self._sim.spec.replicas and all(
            node.up and node.thread.ending.begun and not node.over for node in nodes
        )
        if there:
            # Members first: those who were given the state by them are to be enough.
            members = [node for node in nodes if node.core.is_member]
            self._strike(self._haunts.choice(members or nodes))
        if self._sim.world.now < until_s and deaths > int(there):
            self._sim.world.after(0.2, None, self._haunt_the_end, deaths - int(there), until_s)

    def _flip_a_bit(self) -> None:
        """In the state of one that trains with others: nobody sees it happen."""
        node = self._some_replica()
        if node is None or not node.trains or len(node.view.members) < 2:
            return
        if self._sim.truth.flip(node):
            self._touch(node, 1e9, "has a bit flipped in its state")

    def _flip_a_buffer(self) -> None:
        """In the buffers of one that trains with others, which the next record sets anew."""
        nodes = [node for node in self._sim.replicas() if node.up and node.trains]
        several = [node for node in nodes if len(node.view.members) > 1]
        if several and self._sim.truth.warp(node := self._warps.choice(several)):
            self._touch(node, 1e9, "has a bit flipped in its buffers")

    def _cut_power(self) -> None:
        """All replicas die at once, and the training state with them: what is left is in the vault."""
        for node in self._sim.replicas():
            self._strike(node)

    def _stop_replica(self) -> None:
        node = self._some_replica()
        if node is not None:
            self._sleep(node, "is stopped")

    def _compute_wrongly(self) -> None:
        """A process computes numbers that nobody else comes to, for a while or until faults end."""
        node = self._some_replica()
        if node is not None:
            seconds = self._sim.world.chance.choice([0.1, 0.5, 10.0])
            self._touch(node, 1e9, f"computes wrong numbers for {seconds} s")
            node.wrong_until = self._sim.wrong_until[node.replica] = self._sim.world.now + seconds

    def _hang_replica(self) -> None:
        node = self._some_replica()
        # Nobody waits for a shadow, so nobody finds out that it hangs; members save again after a while.
        if node is not None and not self._sim.spec.is_shadow(node.replica):
            self._touch(node, 1e9, "hangs")
            node.hang()

    def _ask_to_leave(self) -> None:
        """It leaves in order, exits, and comes back as anybody does who is started again."""
        node = self._some_replica()
        document = self._sim.store.document
        # The last one takes the training state with it; that is not what leaving is for.
        if node is None or document is None or len(document.view.members) < 2 or node.has_begun_to_leave:
            return
        if node.core.is_member and not node.hanging and not node.paused:
            self._touch(node, 1e9, "is asked to leave")
            self._sim.asked_to_leave.add((node.replica, node.process))
            node.leave()

    def _lie_in_wait(self) -> None:
        """The worst moment to die: when a member is being made, and depends on all the others."""
        self._sim.on_hand_over = self._ambush

    def _ambush(self, servers: tuple[int, ...]) -> None:
        self._sim.on_hand_over = None
        doomed = self._sim.world.chance.random() < 0.5
        for node in self._sim.replicas():
            if node.replica in servers and (doomed or self._sim.world.chance.random() < 0.5):
                self._sim.world.after(self._sim.world.chance.uniform(0.0, 0.01), None, self._strike, node)

    def _lie_in_wait_for_a_commit(self) -> None:
        """The worst moment for the power to go: when a manifest is on its way, and nobody lives to hear."""
        self._sim.on_manifest_sent = self._ambush_all

    def _ambush_all(self) -> None:
        self._sim.on_manifest_sent = None
        self._sim.world.after(self._sim.world.chance.uniform(0.0, 0.01), None, self._cut_power)

    def _lie_in_wait_for_a_claim(self) -> None:
        """The worst moments of one who begins a lineage: between its decision to claim and the put, or just
        after the put, while the last manifest of the lineage before arrives."""
        self._sim.on_claim = self._ambush_founder
        if self._apart.random() < 0.5:
            self._sim.vault.detained_s = self._apart.uniform(0.3, 2.5)
            self._sim.on_manifest_sent = self._ambush_all

    def _ambush_founder(self, node: ReplicaNode) -> None:
        if self._apart.random() < 0.5:
            self._sleep(node, "is stopped before its claim", self._apart.uniform(1.0, 4.0))
        else:
            self._sim.world.after(self._apart.uniform(0.0, 1.5), None, self._strike, node)
        if self._apart.random() < 0.3:
            self._sim.on_claim = None

    def _lie_in_wait_for_what_is_late(self) -> None:
        """The power goes while a manifest is on its way, and again when somebody has begun without it."""
        self._sim.vault.detained_s = self._late.uniform(1.0, 4.0)
        self._sim.on_manifest_sent = self._ambush_all
        self._sim.on_beginning = self._ambush_who_begins

    def _ambush_who_begins(self) -> None:
        if self._sim.on_manifest_sent is None:
            self._sim.on_beginning = None
            self._sim.world.after(self._late.uniform(0.0, 3.0), None, self._cut_power)

    def _swallow_a_word(self) -> None:
        """What should not happen: one of the next words between replicas is lost, and nobody sees it."""
        spared = self._swallows.randrange(40)

        def swallow(sender: ReplicaNode, line: Line, header: Header) -> str:
            nonlocal spared
            if header.kind not in WORDS:
                return ""
            spared -= 1
            if spared >= 0:
                return ""
            self._sim.mesh.on_send = None
            self._sim.may_stand_still = True
            self._sim.world.note(
                sender.name, f"says {Kind(header.kind).name} to replica {line.peer.replica}, and it is lost"
            )
            # Whoever depends on the one that did not hear it waits in the past, and may be evicted for that:
            # one that was just made a member, for the record that all the others have to hand over.
            for replica in range(self._sim.spec.processes):
                self._sim.excuse(replica, ANY_PROCESS, 1e9)
            # And what it has contributed, right or wrong, is heard when they are set going again.
            self._sim.kept_s = 1e9
            return "lose"

        self._sim.mesh.on_send = swallow

    def _lie_in_wait_for_a_frame(self) -> None:
        """The worst moment for a connection to break: right behind a frame that others of its kind follow."""
        kind, spared = self._tears.choice(TORN_BEHIND), self._tears.randrange(20)

        def tear(sender: ReplicaNode, line: Line, header: Header) -> str:
            nonlocal spared
            if header.kind != kind:
                return ""
            spared -= 1
            if spared >= 0:
                return ""
            self._sim.mesh.on_send = None
            other = line.peer.replica
            self._sim.world.note(
                sender.name, f"loses its connection with replica-{other} behind a {kind.name}"
            )
            self._sim.tears.append((self._sim.world.now, frozenset((sender.replica, other))))
            if self._tears.random() < 0.5:
                return "tear"
            # The frame itself is lost as well, and for a while there is no other connection.
            peer = self._sim.replica_node(other)
            if peer is not None:
                seconds = self._tears.choice([0.0, 0.3, 1.0])
                self._sim.excuse(sender.replica, ANY_PROCESS, self._sim.world.now + seconds)
                self._sim.excuse(other, ANY_PROCESS, self._sim.world.now + seconds)
                self._sim.mesh.sever(sender, peer)
                self._sim.world.after(seconds, None, self._sim.mesh.heal, sender.name, peer.name)
            return "lose"

        self._sim.mesh.on_send = tear

    def _exit_early(self) -> None:
        """The script of one replica, or of all, ends itself with status 0 before the work is done."""
        able = [n for n in self._sim.replicas() if n.up and n.begun and not n.hanging and not n.paused]
        able = [n for n in able if not n.has_begun_to_leave]
        ends = able if self._exits.random() < 0.3 else self._exits.sample(able, min(1, len(able)))
        for node in ends:
            self._touch(node, 0.0, "exits with status 0 in the middle of its work")
            node.exit_early()

    def _strike(self, node: ReplicaNode) -> None:
        if node.up:
            self._touch(node, 0.0, "is killed")
            node.kill("was killed by SIGKILL")

    def _some_agent(self) -> AgentNode | None:
        alive = [node for node in self._sim.agents if node.up]
        return self._sim.world.chance.choice(alive) if alive else None

    def _kill_agent(self) -> None:
        agent = self._some_agent()
        if agent is None:
            return
        seconds = self._sim.world.chance.uniform(0.1, 4.0)
        self._sim.world.note(agent.name, f"is killed for {seconds:.2f} s")
        for node in agent.running.values():
            self._touch(node, seconds, "dies with its agent")
        agent.crash()
        self._sim.world.after(seconds, None, self._revive_agent, agent)

    def _revive_agent(self, agent: AgentNode) -> None:
        if not agent.up:
            self._sim.world.note(agent.name, "is started again")
            agent.boot()

    def _stop_agent(self) -> None:
        """Only the supervisor sleeps; its replicas go on and speak for themselves."""
        agent = self._some_agent()
        if agent is not None:
            self._sleep(agent, "is stopped")

    def _stop_machine(self) -> None:
        agent = self._some_agent()
        if agent is None:
            return
        seconds = self._sim.world.chance.uniform(0.1, 4.0)
        for node in _machine(agent):
            self._sleep(node, "sleeps with its machine", seconds)

    def _lose_machine(self) -> None:
        """A machine dies, or is cut off from all coordinators, for so long that its replicas are started
        elsewhere; then it is there again, perhaps with those that were left behind on it."""
        alive = [node for node in self._sim.agents if node.up]
        if not alive:
            return
        agent, seconds = self._losses.choice(alive), self._losses.uniform(4.0, 9.0)
        nodes, dies = _machine(agent), self._losses.random() < 0.5
        if dies:
            self._sim.world.note(agent.name, f"is lost with its machine for {seconds:.2f} s")
            for replica in agent.running.values():
                self._touch(replica, seconds, "is lost with its machine")
            agent.crash()
            self._sim.world.after(seconds, None, self._revive_agent, agent)
            return
        for node in nodes:
            self._touch_wires(node, seconds, f"cannot reach any coordinator for {seconds:.2f} s")
            for coordinator in self._sim.coordinators:
                self._cut(node.name, coordinator.name, seconds, both_ways=True)

    def _kill_coordinator(self) -> None:
        coordinator = self._sim.world.chance.choice(self._sim.coordinators)
        if not coordinator.up:
            return
        self._sim.world.note(coordinator.name, "is killed")
        self._sim.world.crash(coordinator)

        def revive() -> None:
            if not coordinator.up:
                coordinator.boot()

        self._sim.world.after(self._sim.world.chance.uniform(0.05, 3.0), None, revive)

    def _stop_coordinator(self) -> None:
        coordinator = self._sim.world.chance.choice(self._sim.coordinators)
        if not coordinator.up:
            return
        seconds = self._sim.world.chance.choice([0.3, 1.0, 4.0])
        self._sim.world.note(coordinator.name, f"sleeps for {seconds} s")
        self._sim.world.pause(coordinator)
        self._sim.world.after(seconds, None, self._sim.world.resume, coordinator)

    def _cut_replicas(self) -> None:
        one, other = self._some_replica(), self._some_replica()
        if one is None or other is None or one is other:
            return
        seconds = self._sim.world.chance.uniform(0.05, 3.0)
        both = self._sim.world.chance.random() < 0.7
        self._touch_wires(one, seconds, f"is cut off from {other.name} for {seconds:.2f} s")
        self._touch_wires(other, seconds, f"is cut off from {one.name}")
        self._cut(one.name, other.name, seconds, both_ways=both)

    def _tear(self) -> None:
        """A connection between two that live breaks, and is made anew: nobody has to go for that."""
        alive = [node for node in self._sim.replicas() if node.up]
        if len(alive) >= 2:
            one, other = self._tears.sample(alive, 2)
            self._sim.world.note(one.name, f"loses its connection with {other.name}, and makes another")
            self._sim.tears.append((self._sim.world.now, frozenset((one.replica, other.replica))))
            self._sim.mesh.tear(one, other)

    def _lie_in_wait_for_work(self) -> None:
        """A view ends while something is being done for it, which goes on."""

        def strike(node: ReplicaNode) -> bool:
            others = [m.replica for m in node.view.members if m.replica != node.replica]
            peers = [peer for peer in map(self._sim.replica_node, others) if peer is not None and peer.up]
            if not peers:
                return False
            self._sim.on_work = None
            peer = self._tears.choice(peers)
            self._sim.world.note(node.name, f"is torn from {peer.name} while it works")
            self._sim.tears.append((self._sim.world.now, frozenset((node.replica, peer.replica))))
            self._sim.mesh.tear(node, peer)
            return True

        self._sim.on_work = strike

    def _cut_replica_off(self) -> None:
        node = self._some_replica()
        if node is None:
            return
        seconds = self._sim.world.chance.uniform(0.05, 3.0)
        self._touch_wires(node, seconds, f"is cut off from all peers for {seconds:.2f} s")
        peers = [peer for peer in self._sim.replicas() if peer is not node]
        # Between two, nobody can say which of them is cut off; among more, it has to be the right one.
        excused_s = seconds if len(peers) <= 2 else 0.0
        for peer in peers:
            self._touch_wires(peer, excused_s, f"loses {node.name}")
            self._cut(node.name, peer.name, seconds, both_ways=True)

    def _cut_control(self) -> None:
        agent = self._some_agent()
        if agent is None:
            return
        coordinator = self._sim.world.chance.choice(self._sim.coordinators)
        seconds = self._sim.world.chance.uniform(0.1, 4.0)
        for node in _machine(agent):
            self._touch_wires(node, seconds, f"cannot reach {coordinator.name} for {seconds:.2f} s")
            self._cut(node.name, coordinator.name, seconds, both_ways=True)

    def _slow_store(self) -> None:
        seconds = self._sim.world.chance.uniform(0.2, 3.0)
        self._sim.world.note("store", f"is slow for {seconds:.2f} s")
        self._sim.store.slow_down(seconds)

    def _cut(self, one: str, other: str, seconds: float, *, both_ways: bool) -> None:
        self._cuts.append((one, other))
        self._sim.network.cut(one, other, both_ways=both_ways)
        self._sim.world.after(seconds, None, self._heal, one, other)
        ends = [node for node in self._sim.replicas() if node.name in (one, other)]
        if len(ends) == 2 and self._sim.world.chance.random() < 0.6:
            self._sim.mesh.sever(*ends)

    def _heal(self, one: str, other: str) -> None:
        self._sim.network.heal(one, other)
        self._sim.mesh.heal(one, other)

    def _sleep(self, node: AgentNode | ReplicaNode, what: str, seconds: float | None = None) -> None:
        seconds = self._sim.world.chance.uniform(0.1, 4.0) if seconds is None else seconds
        self._touch(node, seconds, f"{what} for {seconds:.2f} s")
        self._sim.world.pause(node)
        self._sim.world.after(seconds, None, self._wake, node, node.life)

    def _wake(self, node: AgentNode | ReplicaNode, life: int) -> None:
        if node.life == life:
            self._sim.world.resume(node)

    def _touch(self, node: AgentNode | ReplicaNode, seconds: float, what: str) -> None:
        """Something happens to this process, and to none that follows it."""
        self._sim.world.note(node.name, what)
        if isinstance(node, ReplicaNode):
            self._sim.excuse(node.replica, node.process, self._sim.world.now + seconds)

    def _touch_wires(self, node: AgentNode | ReplicaNode, seconds: float, what: str) -> None:
        """Something happens to its connections, and so to every process that takes its place meanwhile."""
        self._sim.world.note(node.name, what)
        if isinstance(node, ReplicaNode):
            self._sim.excuse(node.replica, ANY_PROCESS, self._sim.world.now + seconds)


def _machine(agent: AgentNode) -> list[AgentNode | ReplicaNode]:
    return [agent, *agent.running.values()]
