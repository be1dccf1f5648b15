"""A replica's side of checkpoints in the simulator: what `train/saving.py` does, without bytes.

It copies the state when the training thread stands after the right step, puts its stripe, and as the
committer makes the manifest and puts that. It also finds out what a lineage begins with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.protocol import saving
from outlast.protocol.messages import Phase
from outlast.protocol.participant import Action
from outlast.protocol.step_words import Mode
from outlast.protocol.trunk import Checkpoint
from outlast.protocol.views import Foundation, Intent
from outlast.sim.vault import ClaimObject, ManifestObject, StripeObject

if TYPE_CHECKING:
    from outlast.sim.engine import Engine


INTENT_WITHIN_S = 4.0


class Saver:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sim = engine.node.sim
        self._vault = self._sim.vault
        self.claim = 0
        """Under which this lineage saves; learned with the state."""
        self.saves_since = math.inf
        """Since when the save that is under way is."""
        self._due: saving.Save | None = None
        self._looks = False
        """Whether it is looking for what the lineage begins with, be it for a view that is over."""
        self._found_in: ClaimObject | None = None
        """What it would begin with, if the coordinator says that it may."""
        self._intents: dict[int, ManifestObject] = {}

    def completed(self, step: int, record: int) -> None:
        """The record of this step is held: does it say that the state is saved? Not where a shadow does."""
        if self._vault.says_save(record) and not self._sim.spec.shadows:
            engine = self._engine
            made_in = self._vault.completed_in[record]
            gated = self._sim.truth.said(record).chosen
            engine.perform(engine.participant.save_decided(step, made_in, self._sim.world.now, gated=gated))
        elif (kept := self._sim.names.kept(record)) is not None:
            made_in, now = self._vault.completed_in[record], self._sim.world.now
            self._engine.perform(self._engine.participant.save_decided(step, made_in, now, kept=kept))

    def applied(self, step: int, record: int) -> None:
        """A shadow saves by itself what it has applied."""
        engine = self._engine
        follows = self._sim.spec.is_shadow(engine.node.replica) and self.claim > 0
        if follows and self._vault.says_save(record) and self.saves_since == math.inf:
            gated = self._sim.truth.said(record).chosen
            engine.perform(engine.participant.save_alone(step, self._sim.world.now, gated=gated))

    def do(self, action: saving.SaveAction) -> None:
        match action:
            case saving.Copy() if action.save.named:
                self.saves_since = self._sim.world.now
                self._put_kept(action.save)
            case saving.Copy():
                self._due, self.saves_since = action.save, self._sim.world.now
                self.look()
            case saving.Intend():
                self._intend(action.save, action.stripes)
            case saving.Commit():
                self._commit(action.save)
            case saving.Ended():
                self._due, self.saves_since = None, math.inf
                self._intents.pop(action.save.step, None)
                if action.committed and action.save.named:
                    self._engine.keeper.saved(action.save.step)
            case _:
                raise AssertionError(f"{action} is said, not done")

    def look(self) -> None:
        """Copy what is due, if the training thread stands there."""
        save, trainer = self._due, self._engine.trainer
        if save is None or (trainer.applied < save.step and not self.stands_right(save)):
            return
        self._due = None
        if not self.stands_right(save):
            self._failed(save, "the training thread has gone on")
            return
        place = save.writers.index(self._engine.node.replica)
        self.put(save, StripeObject(save.step, trainer.digest, place, len(save.writers)))

    def _put_kept(self, save: saving.Save) -> None:
        """The state is there, whatever the training thread does."""
        place = save.writers.index(self._engine.node.replica)
        state = self._engine.keeper.state(save.step)
        self.put(save, StripeObject(save.step, state, place, len(save.writers)))

    def stands_right(self, save: saving.Save) -> bool:
        """Whether the model holds the state that is to be saved."""
        return self._engine.trainer.applied == save.step

    def put(self, save: saving.Save, stripe: StripeObject) -> None:
        def answered(done: bool) -> None:
            if self._engine.participant.saves.save != save:
                # It was given up; and after members have gone back, another one may be at the same step.
                return
            if done:
                self.durable(save, stripe)
            else:
                self._failed(save, "its stripe could not be written")

        self._vault.put_stripe(self._engine.node, stripe, answered)

    def durable(self, save: saving.Save, stripe: StripeObject) -> None:
        payload = f"{stripe.digest} {stripe.place} {stripe.count}".encode()
        self._act(lambda now: self._engine.participant.stripe_written(save.at, payload, now))

    def _intend(self, save: saving.Save, payloads: dict[int, bytes]) -> None:
        found = [tuple(map(int, payload.split())) for payload in payloads.values()]
        stripes = frozenset(StripeObject(save.step, *numbers) for numbers in found)
        self._sim.history.saves(self._engine, save.step, {stripe.digest for stripe in stripes})
        seal = format(hash((save, stripes)) & (1 << 64) - 1, "x")
        intent = Intent(step=save.step, lineage=save.lineage, seal=seal, named=save.named)
        self._intents[save.step] = ManifestObject(Checkpoint(self.claim, save.step), intent, stripes)
        self._act(lambda now: self._engine.participant.intends(intent, now))
        self._sim.world.after(INTENT_WITHIN_S, self._engine.node, self._tire, save)

    def _tire(self, save: saving.Save) -> None:
        """No answer will do, too: members may have gone back behind a step whose intent is on record."""
        if self._engine.participant.saves.save == save and self._engine.participant.member.intent is not None:
            self._failed(save, "its intent is not recorded")

    def _commit(self, save: saving.Save) -> None:
        def answered(done: bool) -> None:
            if done:
                self._act(lambda now: self._engine.participant.save_committed(save.at, now))
            else:
                self._failed(save, "its manifest could not be put")

        self._vault.put_manifest(self._engine.node, self._intents[save.step], answered)

    def _failed(self, save: saving.Save, reason: str) -> None:
        self._act(lambda now: self._engine.participant.save_failed(save.at, reason, now))

    def _act(self, event: Callable[[float], list[Action]]) -> None:
        if not self._engine.over:
            self._engine.perform(event(self._sim.world.now))

    # What a lineage begins with.

    def found(self) -> None:
        """Claim the right to go on from the newest checkpoint."""
        if not self._vault.save_every:
            self.begin(0, None)
            return
        if self._looks:
            return
        self._looks, self._found_in = True, None
        self._engine.node.enter(Phase.ASIDE)
        self._vault.list_all(self._engine.node, self._listed)

    def _listed(self) -> None:
        engine = self._engine
        if engine.core.mode is not Mode.FOUNDING:
            # It is not on this replica any more; if it is again, it is asked again.
            self._looks = False
            return
        number = max(self._vault.claims, default=0) + 1
        claim = ClaimObject(self._vault.newest(engine.view.founded), engine.view.number)
        # Between the decision and the put, anything may happen to it.
        self._sim.world.after(0.001, engine.node, self._put_claim, number, claim)
        if self._sim.on_claim is not None:
            self._sim.on_claim(engine.node)

    def _put_claim(self, number: int, claim: ClaimObject) -> None:
        self._vault.put_claim(
            self._engine.node, number, claim, lambda done: self._claimed(number, claim, done)
        )

    def _claimed(self, number: int, claim: ClaimObject, done: bool) -> None:
        if self._engine.over:
            return
        if not done:
            self._vault.list_all(self._engine.node, self._listed)
        else:
            self._vault.list_all(self._engine.node, lambda: self.look_again(number, claim))

    def look_again(self, number: int, claim: ClaimObject) -> None:
        if self._engine.over:
            return
        view = self._engine.view
        too_late = self._vault.is_void(number) or view.number != claim.view
        if too_late or self._vault.newest_before(number, view.founded) != claim.base:
            self._listed()
        else:
            self.ask(number, claim)

    def ask(self, number: int, claim: ClaimObject) -> None:
        """Have it recorded. If another view comes first, it is on whoever founds in that one."""
        self._looks, self._found_in = False, claim
        foundation = Foundation(lineage=self._engine.view.lineage, view=claim.view, claim=number)
        self._act(lambda now: self._engine.participant.founds(foundation, now))

    def may_begin(self, foundation: Foundation) -> None:
        claim, self._found_in = self._found_in, None
        if claim is not None and claim.view == foundation.view:
            self.begin(foundation.claim, claim.base)

    def begin(self, claim: int, base: Checkpoint | None) -> None:
        engine = self._engine
        self.claim, self._looks = claim, False
        if base is None and engine.trainer.void:
            # What it began with is gone; a new process has that.
            engine.node.kill("has no state to go back to")
            return
        # Each founder's own fresh model is unlike any other's.
        fresh = hash((engine.me.replica, engine.me.incarnation, self._sim.world.seed))
        digest = self._vault.manifests[base].digest if base is not None else fresh
        step = base.step if base is not None else 0
        if claim:
            self._vault.begins(engine.node.name, claim, base, digest)
        engine.begin(step, digest)
