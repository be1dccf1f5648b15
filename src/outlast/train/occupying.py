"""Saying that a run holds its claim: the chief beats for all, so that no other job takes the vault meanwhile.

It does so in all places, since another job may have only one of them in common with this one.

Another view may have another chief, and another lineage another claim; then this replica's beating ends, or
begins, or goes on under the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from outlast.errors import StorageError
from outlast.state.storage.seam import Storage
from outlast.state.vault.manifest import Claim
from outlast.state.vault.occupancy import Beating, Process, note_end
from outlast.train.saving_thread import SavingThread


class Occupying:
    def __init__(self, storages: Sequence[Storage], process: Process, thread: SavingThread) -> None:
        self._storages = storages
        self._process = process
        self._thread = thread
        self._beating: list[Beating] = []
        self._beats_for: Claim | None = None

    def hold(self, claim: Claim | None) -> None:
        """Under the lock: beat for this claim from now on; None if it is on another replica to do so."""
        if self._thread.closed or claim == self._beats_for:
            return
        if self._beating:
            beating, self._beating = self._beating, []
            # Ending may take as long as the storage does.
            self._thread.do(lambda: _end(beating, clean=False))
        self._beats_for = claim
        if claim is not None:
            self._beating = [Beating(storage, claim, self._process) for storage in self._storages]

    def end(self, *, clean: bool, claimed: Claim | None) -> None:
        """Without the lock, once the saving thread is closed. `claimed`: by this process, which may live on;
        if nobody has begun under it, nobody will."""
        beating, self._beating = self._beating, []
        _end(beating, clean=clean)
        if beating or claimed is None:
            return
        for storage in self._storages:
            with contextlib.suppress(StorageError):
                note_end(storage, claimed)


def _end(beating: list[Beating], *, clean: bool) -> None:
    for one in beating:
        one.end(clean=clean)
