"""A training thread in the simulator: it asks its driver what to do, takes a while over it, and asks again.

It looks when it is woken, and not otherwise. What it has computed for a step stays good in the next view,
where it computes only what has been added to its own share. The state is a number, the chain of all records
that were applied; see `truth.py` for what can be wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from outlast.errors import DivergedError
from outlast.protocol import todos
from outlast.protocol.seams import Described, Digested, Gave, Said
from outlast.protocol.step_words import BLANK, Check, Trial
from outlast.protocol.todos import Stage, Todo
from outlast.sim import bulk
from outlast.sim.checkers import require
from outlast.sim.ending import Ending

if TYPE_CHECKING:
    from outlast.sim.replica import ReplicaNode

HOW_LONG = {
    todos.GoBack: (0.001, 0.05),
    todos.Give: (0.001, 0.02),
    todos.Load: (0.005, 0.1),
    todos.Apply: (0.001, 0.01),
    todos.Digest: (0.0, 0.001),
    todos.Copy: (0.0, 0.001),
}


class Thread:
    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._sim = node.sim
        self.digest = 0
        """Of the whole state: the chain of all records applied."""
        self.bent = False
        """Whether the state is not what the records say."""
        self.warp = 0
        """What a flip has made of the buffers, until the next record sets them anew; 0 if they are right."""
        self.chief = -1
        """Part of the state: the chief of the last step, or who began the lineage."""
        self.copies: dict[int, tuple[int, bool, int]] = {}
        """States that were copied to be compared, whether they were bent, and their chief."""
        self.void = False
        """Whether the state was found to be wrong, and there was none to go back to."""
        self.ending = Ending(self)
        self._busy = self._woken = False
        self._started = False
        self._computed = BLANK
        self.computed_at = self._sim.world.now
        """When it began to compute the present step; what it has of it may be as old."""
        self._final: bulk.Image | None = None

    @property
    def node(self) -> ReplicaNode:
        return self._node

    @property
    def applied(self) -> int:
        return self._node.driver.applied

    @property
    def goes_back(self) -> bool:
        """Whether the state is void, and an earlier one about to be loaded."""
        return self._node.driver.life.back is not None

    @property
    def stands_at(self) -> int:
        """The step whose state the model holds when the thread has done what it has to."""
        back = self._node.driver.life.back
        return self.applied if back is None else back.step

    # When it looks.

    def wake(self) -> None:
        failure = self._node.driver.failure
        if failure is not None:
            self._fail(failure)
        elif not self._woken:
            self._woken = True
            self._sim.world.after(0.0, self._node, self._look)

    def _fail(self, failure: Exception) -> None:
        if not isinstance(failure, DivergedError):
            raise failure
        self._sim.world.note(self._node.name, f"fails: {failure}")
        self._sim.world.after(0.0, self._node, self._node.kill, "failed")

    def _look(self) -> None:
        self._woken = False
        node = self._node
        if self.ending.beside:
            self.ending.look()
            return
        if self._busy or node.hanging:
            return
        if self.ending.comes_back():
            return
        stage = self._stage()
        if stage is Stage.ENDING:
            self.keep()
            if node.driver.copies is None:
                self._finish_stage()
                return
        todo = node.driver.next(stage, self._sim.world.now)
        if todo is not None and node.driver.failure is None:
            self._begin(todo)

    def _stage(self) -> Stage:
        if self.ending.closing:
            return Stage.CLOSING
        if not self._started:
            return Stage.STARTING
        return Stage.ENDING if self.applied >= self._sim.last_step else Stage.STEPPING

    def _begin(self, todo: Todo) -> None:
        match todo:
            case todos.Leave():
                self._node.leaves()
            case todos.GoBack():
                require(
                    not self.ending.closing,
                    f"{self._node.name} has left the loop of steps, and states were found to differ then",
                )
                self._work(HOW_LONG[todos.GoBack], todo)
            case todos.JobEnded():
                self._busy = True
            case todos.Finished():
                self._finish_stage()
            case todos.Found():
                self._busy = True
                self._node.saver.found(todo)
            case todos.Compute():
                begun = self._computed == todo.at.step
                takes = (0.0, 0.06) if todo.at.trial == Trial.HEARING else (0.02, 0.12)
                self._work((0.0, 0.03) if begun else takes, todo)
            case _:
                self._work(HOW_LONG[type(todo)], todo)

    def _finish_stage(self) -> None:
        if self.ending.closing:
            self.ending.all_done()
        elif not self._started:
            self._started = True
            self.wake()
        elif self.ending.leaving:
            self.ending.close()
        else:
            self.ending.rest()

    def _work(self, takes: tuple[float, float], todo: Todo) -> None:
        self._busy = True
        delay_s = self._sim.world.chance.uniform(*takes)
        self._sim.world.after(delay_s, self._node, self._worked, todo)

    def _worked(self, todo: Todo) -> None:
        if self._node.hanging:
            return
        self._busy = False
        self._do(todo)
        self.wake()

    def founded(self, todo: todos.Found, step: int, digest: int = 0, view: int = 0) -> None:
        """What the lineage begins with is found, or it is not on this replica any more."""
        if self._node.hanging:
            return
        self._busy = False
        if step != BLANK:
            self._set(digest)
            self.chief, self.void = self._node.replica, False
            self._sim.truth.begins(self._node, step, digest)
        self._stand(lambda: self._node.driver.founded(todo, self._sim.world.now, step=step, view=view))
        self.wake()

    # What it does.

    def _did(self, todo: Todo, said: Said | None = None) -> None:
        self._stand(lambda: self._node.driver.did(todo, self._sim.world.now, said=said))

    def _stand(self, tell: Callable[[], None]) -> None:
        """Tell the driver of something that may change where the thread stands."""
        before = self.applied
        tell()
        if self.applied != before and self.applied != BLANK:
            self._sim.truth.stands_at(self._node, self.digest)
            self._sim.history.stands_at(self._node, self.applied, self.digest)

    def _do(self, todo: Todo) -> None:
        match todo:
            case todos.Compute():
                self._compute(todo)
            case todos.Apply():
                self._apply(todo)
            case todos.Give():
                self._give(todo)
            case todos.Copy():
                self._node.saver.copy(todo.save)
            case todos.Digest():
                self._copy(todo)
            case todos.GoBack():
                self._go_back(todo)
            case todos.Load():
                self._load(todo)
            case _:
                raise AssertionError(f"{todo} is not done here")

    def _apply(self, todo: todos.Apply) -> None:
        if self.goes_back:
            # What it has made of the state is void, and about to be overwritten.
            self._node.driver.did(todo, self._sim.world.now)
            return
        record = cast(bulk.Record, todo.record)
        self.chief = min(record.note.shards)
        self._set(self._sim.truth.after(self.digest, record.number), bent=self.bent)
        self._did(todo)
        self._node.keeper.applied(record.step, record.number, self.digest)

    def _set(self, digest: int, *, bent: bool = False, warp: int = 0) -> None:
        self.digest, self.bent, self.warp = digest, bent, warp

    def _compute(self, todo: todos.Compute) -> None:
        if self._node.driver.life.computes is not todo:
            return
        said = None
        if todo.at.trial == Trial.FIRST:
            self._node.doubts.compute(todo.at.step, self._node.view, afresh=todo.afresh)
            if self._computed != todo.at.step or todo.afresh:
                self._computed, self.computed_at = todo.at.step, self._sim.world.now
            checksum = self._sim.truth.checksum(self.digest)
            said = Said(check=Check(checksum=checksum, buffers=b"buffers %d" % self.warp))
        self._did(todo, said=said)

    def _give(self, todo: todos.Give) -> None:
        node, now = self._node, self._sim.world.now
        life, image = node.driver.life, self.image()
        node.driver.done(Described(life, todo.pin.to, todo.header, image.image), now)
        pieces = image.share(todo.pin, node.replica)
        node.driver.done(Gave(life, todo.pin.to, todo.header, pieces), now)

    def image(self) -> bulk.Image:
        """The state as it is given to others."""
        return bulk.Image(
            self.applied,
            digest=self.digest,
            claim=self._node.saver.claim,
            bent=self.bent,
            warp=self.warp,
            chief=self.chief,
        )

    def keep(self) -> None:
        """What is given to others from here on is a copy: nothing that the script does later is in it."""
        if self._final is None or self._final.step != self.applied:
            self._final = self.image()
            self._node.driver.keep_final(self._final)

    def rest(self) -> None:
        self._node.driver.rest(self._final, self._sim.world.now)

    def _copy(self, todo: todos.Digest) -> None:
        node = self._node
        verifying = node.steps.verifying
        kept = verifying.verified if verifying is not None else BLANK
        self.copies = {one: copy for one, copy in self.copies.items() if one == kept}
        self.copies[todo.step] = (self.digest, self.bent, self.chief)
        self._sim.truth.copies(node, todo.step)
        whole = hash((self.digest, self.warp)) if self.warp else self.digest
        digest = (whole & (1 << 64) - 1).to_bytes(8, "big")
        delay_s = self._sim.world.chance.choice([0.002, 0.02, 0.2])
        done = Digested(todo.life, todo.fork, todo.step, digest)
        self._sim.world.after(delay_s, node, self._digested, done)

    def _digested(self, done: Digested) -> None:
        self._node.driver.done(done, self._sim.world.now)

    def _go_back(self, todo: todos.GoBack) -> None:
        self._final, self._computed = None, BLANK
        if todo.back is not self._node.driver.life.back:
            return
        # What was copied after that step is void, too.
        self.copies = {step: copy for step, copy in self.copies.items() if step <= todo.back.step}
        if todo.back.step == BLANK:
            self.void = True
            self._set(0)
        else:
            digest, bent, self.chief = self.copies[todo.back.step]
            self._set(digest, bent=bent)
        self._did(todo)

    def _load(self, todo: todos.Load) -> None:
        self._final, self._computed = None, BLANK
        pieces = cast(bulk.Pieces, todo.arrival.assembly).states()
        states = {digest for digest, *_ in pieces}
        bent = any(piece[2] for piece in pieces)
        if bent:
            self._sim.truth.was_given_wrong(self._node)
        else:
            self._sim.history.pinned(self._node, {(todo.arrival.step, digest) for digest in states})
        digest = self._sim.truth.mixes(states) if len(states) > 1 else pieces[0][0]
        self._set(digest, bent=bent, warp=max(piece[3] for piece in pieces))
        self._node.saver.claim, self.chief = pieces[0][1], pieces[0][4]
        self._did(todo)
        if self.applied == todo.arrival.step:
            self.void = False

    def check_loop(self, last: int) -> None:
        require(
            self.applied == last,
            f"{self._node.name} left the loop after step {last}, and came back to step {self.applied}",
        )
