"""What the committer does after a commit: it makes room, and fills the other tiers.

No save begins meanwhile: what is deleted must not be what a save counts on. If something goes wrong that is
said, and the checkpoint stands all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from outlast.errors import SaveGivenUp
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.names import Era
from outlast.state.vault.pruning import prune
from outlast.state.vault.retention import Keep
from outlast.state.vault.vault import Vault
from outlast.train.saving_thread import SavingThread
from outlast.train.tiers import Tiers

log = logging.getLogger(__name__)


class Tending:
    def __init__(
        self,
        tiers: Tiers,
        keep: Keep,
        thread: SavingThread,
        changed: threading.Condition,
        wanted: Callable[[], bool],
    ) -> None:
        """`wanted` says whether this replica is still the one to write: nobody else deletes or copies."""
        self._tiers = tiers
        self._keep = keep
        self._thread = thread
        self._changed = changed
        self._wanted = wanted
        self._unfinished = 0

    @property
    def busy(self) -> bool:
        return self._unfinished > 0

    def begin(self, manifest: Manifest, era: Era) -> None:
        """Under the lock: this has been committed."""

        def work() -> None:
            try:
                for vault in self._tiers.vaults:
                    self._tend(vault, manifest, era)
            finally:
                with self._changed:
                    self._unfinished -= 1
                    self._changed.notify_all()

        self._unfinished += 1
        self._thread.do(work)

    def _tend(self, vault: Vault, manifest: Manifest, era: Era) -> None:
        try:
            if vault is not self._tiers.first:
                self._tiers.replicate_named(vault, self._wanted)
                self._tiers.replicate(manifest, vault, self._wanted)
            prune(vault, self._keep, claim=manifest.claim, era=era, wanted=self._wanted)
        except SaveGivenUp:
            pass
        except Exception as error:
            where = vault.storage.url
            log.warning("after the checkpoint of step %d, at %s: %s", manifest.step, where, error)
