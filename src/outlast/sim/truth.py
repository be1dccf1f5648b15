"""What only the simulator knows: whose state is wrong, and what has come of it.

A *flip* changes the state of one replica. From then on that replica is *bent*: its state is not what its
records say. What it contributes is *tainted*, and so is every record and every state that it reaches, on all
replicas. Digests can tell who is bent, and nothing else; so these are the promises:

- *Found*: no state is verified that is tainted, none is committed, and none is what a run ends with.
- *Nobody else is blamed*: whoever is named as differing from the others is bent, and of two that differ it is
  the one that was.
- *Only what is void is undone*: members go back only where states were found to differ, and only to what was
  verified, or to what their lineage began with.
- *Liveness*: when faults stop, nobody stays bent.

A flip may also *warp* the buffers of one replica. That does not last: the next record sets them anew, on all
replicas alike, and has in it what the warped ones have made of it. So no comparison of states can find it
afterwards, and the promise is another one:

- *Right buffers*: no record is made of contributions that began with different buffers.

Some flips cannot be found: when the bent one dies before its state was compared, or is the only one that is
left, or has given its state to all others. Then its state is the run's, and the taint is forgiven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.protocol.seams import At
from outlast.protocol.step_words import BLANK, Differ, Fork, Verdict
from outlast.protocol.views import Member
from outlast.sim.checkers import require

if TYPE_CHECKING:
    from outlast.protocol.life import Life
    from outlast.sim.bulk import Record
    from outlast.sim.replica import ReplicaNode
    from outlast.sim.simulation import Simulation


FLIP = 7919


class Truth:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._tainted: set[int] = set()
        self._mixed: set[int] = set()
        """States that were put together from different ones, and what came of them."""
        self._forgiven: set[int] = set()
        """States that were the only ones left, and so are the run's."""
        self._spoiled: set[tuple[int, int]] = set()
        """Attempts, (view, step), that something tainted was contributed to."""
        self._bent: tuple[ReplicaNode, Life] | None = None
        self._bent_life = (0, 0)
        self._notes: dict[int, Verdict] = {}
        self._forks: set[Fork] = set()
        self._sound: set[tuple[int, int]] = set()
        """Steps with states that were verified, or were the beginning of a lineage."""
        self._beginnings: set[tuple[ReplicaNode, int]] = set()
        """Who has begun a lineage after which step, and has not copied that state yet."""
        self._bent_copies: set[tuple[Member, int]] = set()
        self._ever_bent: set[int] = set()
        """Replicas that have had a bit flipped, or were given such a state. One that only learns may have,
        while others still look for who had the one before."""
        self._entered: dict[tuple[int, int], dict[int, int]] = {}
        """The warp of the buffers with which members began an attempt, (view, step)."""
        self._warps = 0
        self.returns = 0
        self.accused = 0

    def notes(self, node: ReplicaNode, record: Record) -> None:
        """A record was made."""
        step, verdict = record.step, record.note.verdict
        noted = self._notes.setdefault(record.number, verdict)
        require(noted == verdict, f"{node.name} has another verdict in step {step} than others")
        entered = self._entered.get((node.view.number, step), {})
        require(
            len(set(entered.values())) < 2,
            f"{node.name} completes step {step}, which members began with different buffers",
        )
        if (node.view.number, step) in self._spoiled:
            self._tainted.add(record.number)

    def flip(self, node: ReplicaNode) -> bool:
        """A bit of this replica's state changes. One at a time, or there might be no majority."""
        if not self._can_flip(node):
            return False
        trainer = node.thread
        trainer.digest, trainer.bent = hash((trainer.digest, FLIP)), True
        self._tainted.add(trainer.digest)
        self._bent = (node, node.driver.life)
        self._bent_life = (node.replica, node.core.incarnation)
        self._ever_bent.add(node.replica)
        return True

    def was_given_wrong(self, node: ReplicaNode) -> None:
        """Its state is wrong from the beginning; it may be accused of that, though others did it."""
        self._ever_bent.add(node.replica)

    def warp(self, node: ReplicaNode) -> bool:
        """A bit of this replica's buffers changes."""
        if not self._can_flip(node):
            return False
        self._warps += 1
        node.thread.warp = self._warps
        self._ever_bent.add(node.replica)
        return True

    def _can_flip(self, node: ReplicaNode) -> bool:
        self._forgive()
        # What is about to be overwritten cannot do any harm.
        harmless = node.thread.applied == BLANK or node.thread.goes_back
        warped = any(node.thread.warp for node in self._sim.replicas())
        return self._bent is None and not harmless and not warped and self.nobody_is_bent()

    def contributes(self, node: ReplicaNode, at: At) -> None:
        """A member contributes, from the buffers and the state that it has."""
        entered = self._entered.setdefault((at.view, at.step), {})
        entered[node.replica] = node.thread.warp
        if node.thread.digest in self._tainted and len(node.view.members) > 1:
            self._spoiled.add((at.view, at.step))

    def checksum(self, state: int) -> int:
        """Of what is computed from this state. Records are drawn anew in every pass, so there is nothing to
        compare but whether it is right."""
        return 2 if state in self._tainted else 1

    def copies(self, node: ReplicaNode, step: int) -> None:
        """A state is copied to be compared."""
        copy = (node.me, step)
        if (node, step) in self._beginnings:
            # What flips between the two is a part of what the lineage begins with.
            self._sound.add((step, node.thread.digest))
            self._beginnings.discard((node, step))
        if node.thread.bent or node.thread.warp:
            self._bent_copies.add(copy)
        else:
            self._bent_copies.discard(copy)

    def after(self, state: int, record: int) -> int:
        """The state that a record makes of this one."""
        result = hash((state, record))
        if (state in self._tainted or record in self._tainted) and result not in self._forgiven:
            self._tainted.add(result)
        if state in self._mixed:
            self._mixed.add(result)
        return result

    def mixes(self, states: set[int]) -> int:
        """A state that was put together from shares of these."""
        result = hash(tuple(sorted(states)))
        self._tainted.add(result)
        self._mixed.add(result)
        return result

    def stands_at(self, node: ReplicaNode, state: int) -> None:
        members = node.view.members
        if len(members) == 1 and node.view.member(node.replica) is not None:
            # There is nobody who could know better, now or when others follow the same records to it.
            self._tainted.discard(state)
            self._forgiven.add(state)
            if node.thread.bent:
                self._tainted.clear()

    def begins(self, node: ReplicaNode, step: int, state: int) -> None:
        self._sound.add((step, state))
        self._beginnings.add((node, step))

    def _forgive(self) -> None:
        document = self._sim.store.document
        if self._bent is None:
            return
        node, life = self._bent
        if life.over is None and node.driver.life is life:
            self._bent_life = (node.replica, node.core.incarnation)
        held = document is None or document.view.holds(*self._bent_life)
        gone = not held or life.over is not None or node.driver.life is not life or not node.up
        if node.thread.bent and not gone:
            return
        self._bent = None
        # One that is evicted for something else takes along what could have been found by comparing.
        convicted = document is not None and any(
            charge.life == self._bent_life and "of the others" in charge.reason for charge in document.charges
        )
        if not convicted and gone:
            self._tainted.clear()
            self._spoiled.clear()

    def _accept(self, right: ReplicaNode) -> None:
        """All members agree on a state that somebody bent has given them: it is they who are right now, and
        whoever had no part in that is wrong, or only in a part of it."""
        mixed = right.thread.digest in self._mixed
        self._tainted.clear()
        self._spoiled.clear()
        self._sim.history.forget_states()
        for node in self._sim.replicas():
            node.thread.bent = not node.thread.bent or (node.thread.digest in self._mixed) != mixed

    def is_clean(self, state: int) -> bool:
        self._forgive()
        return state not in self._tainted

    # The promises.

    def verified(self, node: ReplicaNode, step: int) -> None:
        state = node.thread.copies[step][0]
        members = [self._sim.replica_node(m.replica) for m in node.view.members]
        if node.thread.bent and all(node is None or node.thread.bent for node in members):
            self._accept(node)
        require(self.is_clean(state), f"{node.name} takes a tainted state after step {step} for right")
        self._sound.add((step, state))

    def differs(self, node: ReplicaNode, differ: Differ) -> None:
        who = node.name
        require(not differ.again, f"{who} takes a flip after step {differ.step} for a mistake of the script")
        self._sim.world.note(who, f"finds that states differ after step {differ.step}: {differ.members}")
        fork = Fork(node.steps.fork.view, node.steps.fork.step)
        self.returns += fork not in self._forks
        self._forks.add(fork)
        bent = {m.replica for m in node.view.members if (m, differ.step) in self._bent_copies}
        if differ.buffers:
            entered = self._entered[node.view.number, differ.step + 1]
            bent = {replica for replica, warp in entered.items() if warp}
            require(bool(bent), f"{who} finds that buffers differ, and nobody's do")
        known = 2 * len(bent) < len(node.view.members)
        require(
            not known or (self._bent is None and not differ.buffers) or set(differ.members) <= bent,
            f"{who} blames {differ.members} for what {sorted(bent)} did",
        )

    def accuses(self, node: ReplicaNode, replica: int, step: int) -> None:
        self._sim.world.note(node.name, f"accuses replica {replica} of step {step}")
        self.accused += 1
        bent = sorted(self._ever_bent)
        require(
            replica in bent,
            f"{node.name} accuses replica {replica} of what replica {bent} did",
        )

    def goes_back(self, node: ReplicaNode, fork: Fork, step: int) -> None:
        who = node.name
        self._sim.world.note(who, f"goes back to step {step}")
        require(fork in self._forks, f"{who} goes back to step {step}, and nobody found that states differ")
        if step != BLANK:
            kept = node.thread.copies.get(step)
            require(kept is not None, f"{who} shall go back to step {step}, of which it has no copy")
            assert kept is not None
            require((step, kept[0]) in self._sound, f"{who} goes back to step {step}, which was not verified")

    def commits(self, step: int, state: int) -> None:
        require(self.is_clean(state), f"the checkpoint of step {step} is of a tainted state")

    def ends(self, node: ReplicaNode) -> None:
        """What flips after it was compared for the last time is nobody's to find."""
        trainer = node.thread
        state = trainer.copies.get(trainer.applied, (trainer.digest,))[0]
        require(self.is_clean(state), f"{node.name} ends with a tainted state")

    def all_is_found(self) -> bool:
        """Nobody has another state than the others. (One that trains alone has nobody who could tell it that
        it is bent, and everybody who is given its state has the same one then.)"""
        trainers = [node.thread for node in self._sim.replicas()]
        bent = [trainer for trainer in trainers if trainer.bent]
        return not any(
            one.applied == other.applied and one.digest != other.digest for one in bent for other in trainers
        )

    def nobody_is_bent(self) -> bool:
        return not any(node.thread.bent for node in self._sim.replicas())
