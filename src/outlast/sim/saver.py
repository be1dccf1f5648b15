"""A replica's side of checkpoints in the simulator: what `train/saving.py` does, without bytes.

It says when a save is due, puts the own stripe when the training thread has copied it, and as the committer
makes the manifest and puts that. It also finds out what a lineage begins with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from outlast.protocol import saving, wishes
from outlast.protocol.messages import Phase
from outlast.protocol.seams import Committed, Decided, Done, GaveUp, Sealed, Written
from outlast.protocol.step_words import BLANK, Mode
from outlast.protocol.todos import Found
from outlast.protocol.trunk import Checkpoint
from outlast.protocol.views import Foundation, Intent, View
from outlast.sim.checkers import require
from outlast.sim.vault import ClaimObject, ManifestObject, StripeObject

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

INTENT_WITHIN_S = 4.0


class Saver:
    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._sim = node.sim
        self._vault = node.sim.vault
        self.claim = 0
        """Under which this lineage saves; learned with the state."""
        self.saves_since = math.inf
        """Since when the save that is under way is."""
        self.saved_step = BLANK
        self._due: saving.Save | None = None
        self._intents: dict[int, ManifestObject] = {}
        self._todo: Found | None = None
        """It is looking for what the lineage begins with."""
        self._asked: tuple[Foundation, ClaimObject] | None = None
        """What it would begin with, if the coordinator says that it may."""

    # What the driver asks.

    @property
    def idle(self) -> bool:
        return self.saves_since == math.inf

    @property
    def _shadow(self) -> bool:
        return self._sim.spec.is_shadow(self._node.replica)

    def heard(self, now: float) -> None:
        """The coordinator's word changes nothing here."""

    def adopt(self, view: View) -> None:
        """Nor does a view."""

    def finish(self, step: int, keeps: Mapping[int, Iterable[int]]) -> None:
        """The last state is not saved here."""

    def stands(self, step: int) -> None:
        self.saved_step = step
        self._node.keeper.clear()

    def was_given(self, step: int) -> None:
        self.stands(step)

    def wish(self, step: int) -> int:
        if not self.idle:
            return wishes.NOT_NOW
        return wishes.YES if self._vault.wants(step) and not self._sim.spec.shadows else 0

    def named(self, step: int, *, last: bool = False) -> tuple[tuple[str, ...] | None, tuple[int, ...]]:  # noqa: ARG002
        return None, self._node.keeper.kept

    def waits_for_comparison(self, verified: int) -> bool:
        return max(self._node.keeper.kept, default=BLANK) > verified

    def keep_due(self, applied: int) -> bool:  # noqa: ARG002 - a copy of a number takes no time.
        return False

    def go_back(self, step: int) -> None:
        self._node.keeper.go_back(step)

    def due(self, applied: int, now: float, *, chosen: bool | None) -> saving.Save | None:
        follows = self._shadow and self.claim > 0 and self.idle and applied > self.saved_step
        if follows and chosen is not False and self._vault.wants(applied):
            self._node.driver.done(Decided(applied, alone=True, gated=bool(chosen)), now)
        save = self._due
        if save is None or (applied < save.step and not self.stands_right(save)):
            return None
        self._due = None
        if not self.stands_right(save):
            self._done(GaveUp(save, "the training thread has gone on"))
            return None
        return save

    def stands_right(self, save: saving.Save) -> bool:
        """Whether the model holds the state that is to be saved."""
        return self._node.driver.applied == save.step

    def do(self, action: saving.SaveAction) -> None:
        match action:
            case saving.Copy() if action.save.named:
                self.saves_since = self._sim.world.now
                self._put_kept(action.save)
            case saving.Copy():
                self._due, self.saves_since = action.save, self._sim.world.now
            case saving.Intend():
                self._intend(action.save, action.stripes)
            case saving.Commit():
                self._commit(action.save)
            case saving.Ended():
                self._due, self.saves_since = None, math.inf
                self._intents.pop(action.save.step, None)
                if action.committed:
                    self.saved_step = max(self.saved_step, action.save.step)
                    if action.save.named:
                        self._node.keeper.saved(action.save.step)
            case saving.SavedByOther():
                self.saved_step = max(self.saved_step, action.step)
            case _:
                raise AssertionError(f"{action} is said, not done")

    # One save.

    def copy(self, save: saving.Save) -> None:
        """The training thread has copied its share."""
        place = save.writers.index(self._node.replica)
        self.put(save, StripeObject(save.step, self._node.thread.digest, place, len(save.writers)))

    def _put_kept(self, save: saving.Save) -> None:
        """The state is there, whatever the training thread does."""
        state = self._node.keeper.state(save.step)
        if state is None:
            self._done(GaveUp(save, "the state is not kept any more"))
            return
        place = save.writers.index(self._node.replica)
        self.put(save, StripeObject(save.step, state, place, len(save.writers)))

    def put(self, save: saving.Save, stripe: StripeObject) -> None:
        def answered(done: bool) -> None:
            if done:
                self.durable(save, stripe)
            else:
                self._done(GaveUp(save, "its stripe could not be written"))

        self._vault.put_stripe(self._node, stripe, answered)

    def durable(self, save: saving.Save, stripe: StripeObject) -> None:
        self._done(Written(save, f"{stripe.digest} {stripe.place} {stripe.count}".encode()))

    def _intend(self, save: saving.Save, payloads: dict[int, bytes]) -> None:
        found = [tuple(map(int, payload.split())) for payload in payloads.values()]
        stripes = frozenset(StripeObject(save.step, *numbers) for numbers in found)
        self._sim.history.saves(self._node, save.step, {stripe.digest for stripe in stripes})
        seal = format(hash((save, stripes)) & (1 << 64) - 1, "x")
        intent = Intent(step=save.step, lineage=save.lineage, seal=seal, named=save.named)
        self._intents[save.step] = ManifestObject(Checkpoint(self.claim, save.step), intent, stripes)
        self._done(Sealed(save, intent))
        self._sim.world.after(INTENT_WITHIN_S, self._node, self._tire, save)

    def _tire(self, save: saving.Save) -> None:
        """No answer will do, too: members may have gone back behind a step whose intent is on record."""
        if self._node.core.intent is not None:
            self._done(GaveUp(save, "its intent is not recorded"))

    def _commit(self, save: saving.Save) -> None:
        def answered(done: bool) -> None:
            self._done(Committed(save) if done else GaveUp(save, "its manifest could not be put"))

        require(
            save.step in self._intents, f"{self._node.name}: step {save.step} is committed without its intent"
        )
        self._vault.put_manifest(self._node, self._intents[save.step], answered)

    def _done(self, what: Done) -> None:
        self._node.driver.done(what, self._sim.world.now)

    # What a lineage begins with.

    def found(self, todo: Found) -> None:
        """Claim the right to go on from the newest checkpoint."""
        self._todo, self._asked = todo, None
        if not self._vault.save_every:
            self.begin(0, None, todo.view)
            return
        self._node.enter(Phase.ASIDE)
        self._vault.list_all(self._node, self._listed)

    @property
    def _is_mine(self) -> bool:
        driver = self._node.driver
        return driver.steps.mode is Mode.FOUNDING and driver.life.over is None

    def _listed(self) -> None:
        node = self._node
        if not self._is_mine:
            self._give_up()
            return
        number = max(self._vault.claims, default=0) + 1
        claim = ClaimObject(self._vault.newest(node.view.founded), node.view.number)
        # Between the decision and the put, anything may happen to it.
        self._sim.world.after(0.001, node, self._put_claim, number, claim)
        if self._sim.on_claim is not None:
            self._sim.on_claim(node)

    def _put_claim(self, number: int, claim: ClaimObject) -> None:
        self._vault.put_claim(self._node, number, claim, lambda done: self._claimed(number, claim, done))

    def _claimed(self, number: int, claim: ClaimObject, done: bool) -> None:
        if not done:
            self._vault.list_all(self._node, self._listed)
        else:
            self._vault.list_all(self._node, lambda: self.look_again(number, claim))

    def look_again(self, number: int, claim: ClaimObject) -> None:
        view = self._node.view
        too_late = self._vault.is_void(number) or view.number != claim.view
        if too_late or self._vault.newest_before(number, view.founded) != claim.base:
            self._listed()
        elif not self._is_mine:
            self._give_up()
        else:
            self.ask(number, claim)

    def ask(self, number: int, claim: ClaimObject) -> None:
        """Have it recorded. If another view comes first, it is on whoever founds in that one."""
        foundation = Foundation(lineage=self._node.view.lineage, view=claim.view, claim=number)
        self._asked = (foundation, claim)
        self._node.driver.founds(foundation, self._sim.world.now)
        self.view_changes()

    def view_changes(self) -> None:
        """What was asked for in a view that is over is not answered any more."""
        if self._asked is not None and self._node.core.foundation != self._asked[0]:
            foundation, self._asked = self._asked[0], None
            if self._node.driver.may_begin != foundation:
                self._sim.world.after(0.0, self._node, self._give_up)

    def may_begin(self, foundation: Foundation) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] == foundation:
            # The training thread finds out a moment later.
            view = foundation.view
            self._sim.world.after(0.0, self._node, self.begin, foundation.claim, asked[1].base, view)

    def _give_up(self) -> None:
        todo, self._todo = self._todo, None
        if todo is not None:
            self._node.enter(Phase.STARTING)
            self._node.thread.founded(todo, BLANK)

    def begin(self, claim: int, base: Checkpoint | None, view: int) -> None:
        node = self._node
        todo, self._todo = self._todo, None
        if todo is None:
            return
        self.claim = claim
        if base is None and node.thread.void:
            # What it began with is gone; a new process has that.
            self._sim.had_no_beginning += 1
            node.kill("has no state to go back to")
            return
        # Each founder's own fresh model is unlike any other's.
        fresh = hash((node.replica, node.core.incarnation, self._sim.world.seed))
        digest = self._vault.manifests[base].digest if base is not None else fresh
        step = base.step if base is not None else 0
        if claim:
            self._vault.begins(node.name, claim, base, digest)
        node.enter(Phase.STARTING)
        node.thread.founded(todo, step, digest, view)
