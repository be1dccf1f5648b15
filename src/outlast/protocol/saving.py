"""Agreeing on checkpoints: how the members of a view come to commit one, or give it up together.

That the state after step k is saved is part of the record of k (members flag the wish in their parts), so all
who hold the record know it. Each of the *writers*, the members that completed k, copies its own share of the
state, writes it, and tells the *committer*, the lowest of them, once it is durable:

    decided ──▶ Copy ──▶ written ──Stripe──▶ committer: all stripes are in, and k is stable
                                             ──▶ Intend ──coordinator──▶ recorded ──▶ Commit ──▶ Saved to all

Nothing points to what is not durable: a writer speaks only after its stripe is. Nothing is committed that may
still be undone: the committer waits until k is stable. Nobody commits who is not a member any more: the
intent is recorded by the coordinator, in the document that holds the view. From there on there is nothing to
decide, so the put of the manifest is the commit, and to do it twice does no harm.

A save is given up, never repaired: training has moved on, and the state after k exists only in the writers'
copies. So it ends when a writer says that it is unable to, or is out of the view before its stripe was
durable, or when the committer is gone. The next save is due at once then. What has been written stays as
garbage for the next pruning, and mostly as chunks that the next save need not write again.

Where members compare their states (`verifying.py`), the state that is saved is one that they compare, and the
committer also waits until it is verified. So members never go back behind what is committed.

Nobody waits for ever: words may be lost with a view, so writers repeat theirs in the next one, also that
they are unable to, and a committer that is done with the save says again how it ended. Words that come before
their step is complete here are kept until it is.

What a script wants saved *by name* (`naming.py`) is decided by a later record: by then every writer has a
copy of the whole state, so an attempt that is given up is followed by another one, with whoever is left.

Where a *shadow* follows the training (a learner that is never promoted), it saves instead, all by itself: it
has only what is stable, and is the one writer and the committer of its saves. Members are told of them.

The core decides; copies, chunks and manifests are whoever drives it (`train/saving.py`, the simulator).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.protocol.naming import Kept
from outlast.protocol.views import View


@dataclass(frozen=True)
class Save:
    """One attempt to commit a checkpoint."""

    step: int
    lineage: int
    view: int
    """The view in which the step was completed."""
    writers: tuple[int, ...]
    later: int = 0
    """By how many steps the decision came later than the state."""
    named: bool = False
    """Whether the script has asked for it, by a name: then writers have copies of the whole state already."""

    @property
    def committer(self) -> int:
        return self.writers[0]

    @property
    def at(self) -> int:
        """The step whose record has decided it. Of several attempts at one state, each has its own."""
        return self.step + self.later


# What members say to each other.


@dataclass(frozen=True)
class Stripe:
    """My share of the state is durable, for the save that was decided at this step; where, is in the
    payload."""

    step: int
    lineage: int
    payload: bytes = b""


@dataclass(frozen=True)
class Unable:
    """I can not write my share, or can not commit."""

    step: int
    reason: str = ""
    again: bool = False
    """A change of views is at fault, so the next try may well succeed."""


@dataclass(frozen=True)
class Saved:
    """The save that was decided at this step is committed."""

    step: int
    later: int = 0
    """By how many steps that was later than the state."""


SaveBody = Stripe | Unable | Saved


# What the core wants done.


@dataclass(frozen=True)
class SaySave:
    to: tuple[int, ...]
    body: SaveBody


@dataclass(frozen=True)
class Copy:
    """Copy the own share of the state after `save.step` when the model stands there, write it, and say
    `written` or `unable`."""

    save: Save


@dataclass(frozen=True)
class Intend:
    """All stripes are durable: make the manifest of them, have the intent recorded, and say `recorded`."""

    save: Save
    stripes: dict[int, bytes] = field(hash=False)


@dataclass(frozen=True)
class Commit:
    """Put the manifest, and say `committed` or `unable`."""

    save: Save


@dataclass(frozen=True)
class Ended:
    """This save is over: committed, or given up for that reason. What is still being done for it stops."""

    save: Save
    committed: bool
    reason: str = ""
    again: bool = False
    """Given up because views changed, and not because something could not be done."""


@dataclass(frozen=True)
class SavedByOther:
    """A shadow, or others who kept the state, have committed the checkpoint of this step."""

    step: int


SaveAction = SaySave | Copy | Intend | Commit | Ended | SavedByOther


class SaveCore:
    """One life of a replica. At most one save is under way."""

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.save: Save | None = None
        self._view = View()
        self._mine: Stripe | None = None
        self._unable: Unable | None = None
        """What this replica has said of the newest save, if it has given that up itself."""
        self._stripes: dict[int, bytes] = {}
        self._early: dict[int, Stripe | Unable] = {}
        """What was said of a step that is not complete here yet: its writer was quicker."""
        self._decided = -1
        """The newest step that a save was decided for."""
        self._saved = Saved(-1)
        """The newest save that is known to be committed."""
        self._stable = -1
        self._verified = -1
        self._gated = False
        """Whether the state that is saved is also compared, and has to be verified first."""
        self._intended = False
        self._committing = False

    def adopt(self, view: View) -> list[SaveAction]:
        """This view is in force."""
        # Whoever still means what it said will say it again. Its step may have been undone with its life.
        self._early.clear()
        if view.lineage != self._view.lineage:
            self._decided, self._saved = -1, Saved(-1)
            self._unable = None
        self._view = view
        save = self.save
        # What was said in the view before may have been dropped.
        if save is None:
            return self._say_again()
        present = {member.replica for member in view.members}
        if save.writers == (self.replica,):
            present |= {learner.replica for learner in view.learners}
        # One that is gone before its state was compared may have written anything.
        trusted = () if self._gated and self._verified < save.step else self._stripes
        missing = [w for w in save.writers if w not in present and w not in trusted]
        if view.lineage != save.lineage or self.replica not in present:
            return self._end("this replica has no part in the job any more")
        if save.committer not in present:
            return self._end(f"replica {save.committer}, which was to commit it, is gone")
        if self.replica == save.committer and missing:
            reason = f"replica {missing[0]} is gone before its stripe was durable, or its state compared"
            return self._give_up(reason, again=True)
        return self._tell() if self._mine is not None else []

    def decided(
        self, step: int, completed_in: int, *, gated: bool = False, kept: Kept | None = None, later: int = 0
    ) -> list[SaveAction]:
        """The record of this step, completed in that view, says that the state after it is to be saved; and
        if it is `gated`, that it is to be compared, too. Or that the state which is `kept` is. After the last
        step there are no records: this is a number then, and the state is so many steps older."""
        actions = self.abandon("a newer one began")
        self._decided, self._unable = step, None
        self._early = {sender: body for sender, body in self._early.items() if body.step >= step}
        writers = tuple(m.replica for m in self._view.members if kept is None or m.replica in kept.by)
        if self.replica not in writers:
            return actions
        if completed_in != self._view.number:
            # Others completed it, in a view that is over, and count on this replica for a stripe.
            reason = f"replica {self.replica} took no part in the step"
            self._unable = Unable(step, reason, again=True)
            return [*actions, *_say(tuple(w for w in writers if w != self.replica), self._unable)]
        lineage, of = self._view.lineage, step - later if kept is None else kept.step
        self.save = Save(of, lineage, completed_in, writers, step - of, named=kept is not None)
        self._mine, self._stripes, self._gated = None, {}, gated
        self._intended = self._committing = False
        actions.append(Copy(self.save))
        early, self._early = self._early, {}
        for sender, body in early.items():
            actions += self.received(sender, body)
        return actions

    def alone(self, step: int, *, gated: bool = False) -> list[SaveAction]:
        """A shadow, which has been told of stable steps only, saves the state after this one by itself."""
        actions = self.abandon("a newer one began")
        self._decided, self._unable, self._stable = step, None, max(self._stable, step)
        self.save = Save(step, self._view.lineage, self._view.number, (self.replica,))
        self._mine, self._stripes, self._gated = None, {}, gated
        self._intended = self._committing = False
        return [*actions, Copy(self.save)]

    def abandon(self, reason: str) -> list[SaveAction]:
        """This replica has no part in the save any more, and the others know that or will."""
        return self._end(reason) if self.save is not None else []

    def stable(self, step: int) -> list[SaveAction]:
        """All members hold the record of this step."""
        self._stable = max(self._stable, step)
        return self._progress()

    def verified(self, step: int) -> list[SaveAction]:
        """All members have the same state after this step."""
        self._verified = max(self._verified, step)
        return self._progress()

    def dropped(self, step: int) -> list[SaveAction]:
        """The states after this step are not compared any more."""
        waits = self.save is not None and self.save.step == step and self._gated and self._verified < step
        return self._give_up("nobody is left to compare its state with", again=True) if waits else []

    def go_back(self, step: int) -> list[SaveAction]:
        """Members have gone back to the state after this step, all of them; so what they did since is void.
        What was committed was verified, so it is not newer than that."""
        self._decided, self._stable = min(self._decided, step), min(self._stable, step)
        self._early.clear()
        if self._unable is not None and self._unable.step > step:
            self._unable = None
        if self.save is None or self.save.at <= step:
            return []
        return self._end("the states of members differ, and they go back behind it")

    def written(self, step: int, payload: bytes) -> list[SaveAction]:
        """The own stripe of the save that was decided at this step is durable."""
        if self.save is None or self.save.at != step or self._mine is not None:
            return []
        self._mine = Stripe(step, self.save.lineage, payload)
        return self._tell()

    def unable(self, step: int, reason: str) -> list[SaveAction]:
        """The own stripe can not be written, or the manifest not be put."""
        if self.save is None or self.save.at != step:
            return []
        return self._give_up(reason, again=False)

    def recorded(self, step: int) -> list[SaveAction]:
        """The coordinator has recorded the intent to commit the state after this step."""
        if self.save is None or self.save.step != step or not self._intended or self._committing:
            return []
        self._committing = True
        return [Commit(self.save)]

    def committed(self, step: int) -> list[SaveAction]:
        """The manifest is there."""
        if self.save is None or self.save.at != step:
            return []
        save, self.save = self.save, None
        self._saved = Saved(step, save.later)
        return [*_say(self._others, self._saved), Ended(save, True)]

    def received(self, sender: int, body: SaveBody, *, settled: bool = True) -> list[SaveAction]:
        """A frame of the present view from one of its members. Before it is `settled` from where they go on
        nobody can be ahead: what sounds like it is about a step that others have gone back behind."""
        save = self.save
        if isinstance(body, Stripe | Unable) and body.step > self._decided:
            if settled:
                self._early[sender] = body
            return []
        if isinstance(body, Saved) and (save is None or sender not in save.writers):
            self._saved = body if body.step > self._saved.step else self._saved
            return [SavedByOther(body.step - body.later)]
        if save is None or body.step != save.at:
            return self._again(sender, body)
        match body:
            case Stripe() if sender in save.writers and body.lineage == save.lineage:
                self._stripes[sender] = body.payload
                return self._progress()
            case Unable():
                return self._end(body.reason, again=body.again)
            case Saved():
                self.save, self._saved = None, body
                return [Ended(save, True)]
        return []

    def _again(self, sender: int, body: SaveBody) -> list[SaveAction]:
        """One that still waits for the end of a save has not heard of it."""
        if not isinstance(body, Stripe) or body.lineage != self._view.lineage:
            return []
        if body.step == self._saved.step:
            return [SaySave((sender,), self._saved)]
        return [SaySave((sender,), Unable(body.step, "it was given up in an earlier view", again=True))]

    def _say_again(self) -> list[SaveAction]:
        """How the newest save ended here: others may count on it for another one until they know."""
        if self._unable is not None:
            return _say(self._others, self._unable)
        return _say(self._others, self._saved) if self._saved.step >= 0 else []

    def _tell(self) -> list[SaveAction]:
        assert self.save is not None and self._mine is not None
        if self.save.committer != self.replica:
            return [SaySave((self.save.committer,), self._mine)]
        self._stripes[self.replica] = self._mine.payload
        return self._progress()

    def _progress(self) -> list[SaveAction]:
        save = self.save
        if save is None or save.committer != self.replica or self._intended:
            return []
        if set(save.writers) - self._stripes.keys() or self._stable < save.at:
            return []
        if self._gated and self._verified < save.step:
            return []
        self._intended = True
        return [Intend(save, dict(self._stripes))]

    def _give_up(self, reason: str, *, again: bool) -> list[SaveAction]:
        assert self.save is not None
        self._unable = Unable(self.save.at, reason, again)
        return [*_say(self._others, self._unable), *self._end(reason, again=again)]

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(m.replica for m in self._view.members if m.replica != self.replica)

    def _end(self, reason: str, *, again: bool = True) -> list[SaveAction]:
        assert self.save is not None
        save, self.save = self.save, None
        return [Ended(save, False, reason, again)]


def _say(to: tuple[int, ...], body: SaveBody) -> list[SaveAction]:
    return [SaySave(to, body)] if to else []
