"""A storage for checkpoints: what is put in it stays, and may arrive late, after its sender is dead.

The promises of checkpoints are checked where they are made:

- *Nothing points to what is not durable*: when a manifest arrives, every stripe that it names is there, and
  all of them are of one state.
- *Nobody commits who may not*: when it arrives, its intent is in the coordinator's document.
- *Only what is stable is saved*: see `History.saves`.
- *Nothing is lost that was committed*: a checkpoint that was committed while nobody else had claimed the
  right to is in the past of everybody who begins under a later claim.
- *A run does not shut itself out*: a replica that is in the view is never refused to commit.
- *Nobody begins who may not*: when a lineage begins, its claim has been in the coordinator's document.
- *At most one lineage goes on*: what was committed when somebody had begun under a later claim is not gone on
  from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlast.protocol.trunk import Base, Checkpoint, Origin, before_claim, comes_too_late, walk_trunk
from outlast.protocol.views import Intent
from outlast.sim.checkers import require
from outlast.sim.world import Node

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode
    from outlast.sim.simulation import Simulation


@dataclass(frozen=True)
class StripeObject:
    """One writer's share of the state after a step."""

    step: int
    digest: int
    place: int
    count: int


@dataclass(frozen=True)
class ClaimObject:
    base: Checkpoint | None
    view: int
    """In which its maker was to say what the lineage begins with."""


@dataclass(frozen=True)
class ManifestObject:
    checkpoint: Checkpoint
    intent: Intent
    stripes: frozenset[StripeObject]

    @property
    def digest(self) -> int:
        return next(iter(self.stripes)).digest


class SimVault:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        chance = sim.world.chance
        self.slowness_s = chance.choice([0.01, 0.05, 0.5])
        self.failures = chance.choice([0.0, 0.0, 0.1])
        self.save_every = chance.choice([0, 2, 5, 20])
        """The state after about one step in so many is saved; 0 for a job without any."""
        self.stripes: set[StripeObject] = set()
        self.claims: dict[int, ClaimObject] = {}
        self.manifests: dict[Checkpoint, ManifestObject] = {}
        self.commits = 0
        self.resumes = 0
        """Beginnings of a lineage from a checkpoint."""
        self.detained_s = 0.0
        """How much later than others the next manifest arrives."""
        self._lawful: list[Checkpoint] = []
        """What was committed while there was no newer claim than its own."""
        self._before: dict[int, tuple[Checkpoint, ...]] = {}
        """Claim → what was lawful when it was made."""
        self._begun: dict[int, Checkpoint | None] = {}
        """Claim → what its holder began to train from."""
        self._late: set[Checkpoint] = set()
        """What was committed when somebody had begun under a later claim."""

    def wants(self, step: int) -> bool:
        """Whether it is time to save the state after this step; the same for all who ask."""
        return self.save_every > 0 and hash((self._sim.world.seed, step)) % self.save_every == 0

    def base_of(self, number: int) -> Base:
        return self.claims[number].base

    def superseded(self, number: int) -> bool:
        """Whether the holder of this claim may commit nothing any more."""
        return any(later > number and not self._too_late(later, number) for later in self.claims)

    def is_void(self, number: int) -> bool:
        """Whether this claim was made for a view that was over by then."""
        return any(earlier < number and self._too_late(number, earlier) for earlier in self.claims)

    def _too_late(self, number: int, earlier: int) -> bool:
        return comes_too_late(Origin("", self.claims[number].view), Origin("", self.claims[earlier].view))

    def newest(self, founded: int) -> Checkpoint | None:
        """For one who begins, in whose view that claim is known to have been the last to begin under."""
        return next(walk_trunk(self.claims, self.manifests, self.base_of, founded=founded), None)

    def newest_before(self, number: int, founded: int) -> Checkpoint | None:
        return next(before_claim(number, self.claims, self.manifests, self.base_of, founded=founded), None)

    # Requests. Each arrives after a while, whatever has become of its sender; the answer comes later.

    def put_stripe(self, node: Node, stripe: StripeObject, answer: Callable[[bool], None]) -> None:
        self._call(node, lambda: self.stripes.add(stripe), answer)

    def put_manifest(
        self, node: ReplicaNode, manifest: ManifestObject, answer: Callable[[bool], None]
    ) -> None:
        if self.superseded(manifest.checkpoint.claim):
            # Looked at before the put; another claim may still come in between.
            document = self._sim.store.document
            # A shadow that followed a lineage which is over is about to find out.
            member = document.view.member(node.replica) if document is not None else None
            require(
                member is None or member.incarnation != node.core.incarnation,
                f"{node.name} is in the view, and may not commit any more: its run has claimed again",
            )
            self._sim.world.after(0.01, node, answer, False)
            return
        late_s, self.detained_s = self.detained_s, 0.0
        self._call(node, lambda: self._commit(manifest), answer, late_s)
        if self._sim.on_manifest_sent is not None:
            self._sim.on_manifest_sent()

    def put_claim(self, node: Node, number: int, claim: ClaimObject, answer: Callable[[bool], None]) -> None:
        def apply() -> bool:
            if number in self.claims:
                return False
            self.claims[number] = claim
            self._before[number] = tuple(self._lawful)
            self._sim.world.note("vault", f"has {claim} as number {number}")
            return True

        self._call(node, apply, answer)

    def list_all(self, node: Node, answer: Callable[[], None]) -> None:
        self._sim.world.after(self._delay(), node, answer)

    def _call(
        self, node: Node, apply: Callable[[], object], answer: Callable[[bool], None], late_s: float = 0.0
    ) -> None:
        chance = self._sim.world.chance
        fails = chance.random() < self.failures
        happens = not fails or chance.random() < 0.5
        outcome: list[object] = []
        if happens:
            self._sim.world.after(late_s + self._delay(), None, lambda: outcome.append(apply()))

        def answered() -> None:
            done = bool(outcome) and outcome[0] is not False
            answer(done and not fails)

        self._sim.world.after(2.5 * self.slowness_s + self._delay(), node, answered)

    def _delay(self) -> float:
        return self._sim.world.chance.uniform(0.001, 2 * self.slowness_s)

    # The promises.

    def _commit(self, manifest: ManifestObject) -> bool:
        step = manifest.checkpoint.step
        require(
            manifest.stripes <= self.stripes,
            f"the checkpoint of step {step} names stripes that are not durable",
        )
        require(
            len({(stripe.step, stripe.digest) for stripe in manifest.stripes}) == 1
            and all({s.place for s in manifest.stripes} == set(range(s.count)) for s in manifest.stripes),
            f"the checkpoint of step {step} is not one state: {manifest.stripes}",
        )
        document = self._sim.store.document
        require(
            document is not None and manifest.intent in document.intents,
            f"the checkpoint of step {step} is committed without its intent",
        )
        self._sim.truth.commits(step, manifest.digest)
        if manifest.checkpoint not in self.manifests:
            self.manifests[manifest.checkpoint] = manifest
            self.commits += 1
            if not self.superseded(manifest.checkpoint.claim):
                self._lawful.append(manifest.checkpoint)
            if any(claim > manifest.checkpoint.claim for claim in self._begun):
                self._late.add(manifest.checkpoint)
            self._sim.world.note("vault", f"{manifest.checkpoint} is committed")
        return self.manifests[manifest.checkpoint].digest == manifest.digest

    def begins(self, who: str, claim: int, base: Checkpoint | None, digest: int) -> None:
        """Somebody begins to train, under this claim, from that checkpoint."""
        self.resumes += base is not None
        require(
            claim in self._sim.checkers.founded,
            f"{who} begins under claim {claim}, of which the coordinator knows nothing",
        )
        require(base not in self._late, f"{who} goes on from {base}, when others had begun without it")
        self._begun[claim] = base
        past = self._past(base)
        for committed in self._before[claim]:
            require(
                committed in past,
                f"{who} goes on from {base} under claim {claim}, before which {committed} was committed",
            )
        require(
            base is None or self.manifests[base].digest == digest,
            f"{who} goes on from {base} in another state than was saved",
        )
        self._sim.world.note(
            who, f"begins from {base} under claim {claim} (the newest is {max(self.claims)})"
        )
        if self._sim.on_beginning is not None:
            self._sim.on_beginning()

    def _past(self, base: Checkpoint | None) -> set[Checkpoint]:
        """All that was gone through on the way to this checkpoint, as it happened."""
        past: set[Checkpoint] = set()
        while base is not None:
            past |= {c for c in self.manifests if c.claim == base.claim and c.step <= base.step}
            base = self._begun[base.claim]
        return past
