"""One save in this process: how far it is, what it has made and cost, and when it has waited too long.

Nobody waits for ever: neither for the coordinator's leave to commit, nor at the end of a run for the others.
"""

from __future__ import annotations

import threading
import time

from outlast.protocol.saving import Save
from outlast.state.contents import Image
from outlast.state.vault.manifest import Chunk, Manifest
from outlast.state.vault.names import Era
from outlast.train.copying import Room, ShareCopy
from outlast.train.keepsakes import Share

INTENT_WITHIN_S = 60.0
"""A coordinator that is away comes back sooner. It does not answer at all where members went back behind a
step whose checkpoint is on record."""

OTHERS_WITHIN_S = 60.0
OTHERS_SLOWER = 3.0
"""At the end of a run, one whose share is durable waits so long for the others', or so many times as long as
its own took."""


class SaveJob:
    """Written by whichever thread does the work at hand, and read under the engine's lock."""

    def __init__(self, save: Save, replica: int) -> None:
        self.save = save
        self._replica = replica
        self.cancelled = threading.Event()
        self.room = Room()
        """Where the share is copied to."""
        self.share: ShareCopy | Share | None = None
        self.names: tuple[str, ...] = ()
        """Under which it was asked for."""
        self.image: Image | None = None
        self.rows: list[Chunk] = []
        self.manifest: Manifest | None = None
        self.new_bytes = 0
        self.held_s = 0.0
        """How long training was held for it."""
        self.worked_s = 0.0
        """CPU time that the saving thread took."""
        self.began_at = time.monotonic()
        self.written_at: float | None = None
        self.intended_at: float | None = None
        self.committing = False

    def era(self, claim: int) -> Era:
        """Under which chunks are written for it."""
        return Era(claim, self.save.view, self.save.committer)

    def give_up(self, reason: str) -> None:
        """Whoever still copies or writes for it need not."""
        self.cancelled.set()
        if self.share is not None:
            self.share.give_up(reason)

    def overdue(self, now: float, last_at: float | None) -> str:
        """Why it should be given up, if it would wait for ever. `last_at`: since when all are done with the
        last step of the run; None before that."""
        if self.intended_at is not None and self.manifest is not None and not self.committing:
            if now - self.intended_at > INTENT_WITHIN_S:
                return f"the coordinator did not allow it within {INTENT_WITHIN_S:g} s"
        elif self.written_at is not None and last_at is not None and self.intended_at is None:
            own_s = self.written_at - self.began_at
            if now - max(self.written_at, last_at) > max(OTHERS_WITHIN_S, OTHERS_SLOWER * own_s):
                return f"replica {self._replica} has waited too long for the others"
        return ""
