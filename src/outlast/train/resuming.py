"""Going on from a checkpoint: what the script may have changed since, and what the user is told.

A run that goes on is the same run, so what the script says has to be what it said. What differs is refused,
with the checkpoint and the ways out; some of it may be changed on purpose, and `join(changed=…)` says so.
What training itself changes, such as learning rates, is loaded and not compared: there the checkpoint counts,
and if the script says something else, the user hears of it.

Whoever begins the lineage loads the checkpoint, and gives what comes of it to the others. So it is also the
one who speaks, once.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from torch import Tensor

from outlast.errors import ConfigError
from outlast.state.structure import changed_constants, constants_of, decode_structure
from outlast.state.training import SAME_FOR_ALL, UNFIT, TrainingState
from outlast.state.vault.ages import age_text
from outlast.state.vault.manifest import Manifest
from outlast.train import seeding
from outlast.train.data import CHANGEABLE as OF_DATA
from outlast.train.data import Data

SHARDS = "shards"
END = "end"
"""That the script has ended the run before its total."""


class RunFacts(Protocol):
    """What a resumed run has to know beside its state; see `assembly.Facts`."""

    seed: int
    shards: int
    resuming: bool
    changed: frozenset[str]
    ended: int


class Resuming:
    """One replica's part in it."""

    def __init__(
        self,
        state: TrainingState,
        facts: RunFacts,
        data: Data | None,
        url: str,
        changed: Collection[str],
    ) -> None:
        self._state = state
        self._facts = facts
        self._data = data
        self._url = url
        self._changed = frozenset(changed)
        self._constants = {
            name
            for o in state.optimizers.values()
            for group in o.param_groups
            for name in constants_of(group)
        }
        self._manifest: Manifest | None = None
        """What this replica has gone on from, until the user has been told."""
        self._notes: list[str] = []
        self._check_names(changed)

    def _check_names(self, changed: Collection[str]) -> None:
        known = sorted({END, SHARDS, *OF_DATA, *self._constants})
        for name in changed:
            if name not in known:
                raise ConfigError(
                    f"changed = {tuple(changed)!r}: {name!r} is nothing that can be changed when a run goes "
                    f"on. Take from: {', '.join(known)}."
                )

    def load(self, manifest: Manifest, tensors: Sequence[Tensor], *, ended: bool) -> None:
        """Become the state of this checkpoint. `ended`: the script had ended the run with it."""
        facts, rates, settings = self._facts, self._rates(), self._settings()
        facts.resuming, facts.changed = True, self._changed
        if self._data is not None:
            self._data.may_change(self._changed)
        try:
            self._state.load(manifest.image, tensors, changed=self._changed)
        except ConfigError as error:
            raise self._refusal(manifest, error) from error
        finally:
            facts.resuming, facts.changed = False, frozenset()
            if self._data is not None:
                self._data.may_change(())
        for group, values in settings:
            group.update(values)
        facts.ended = manifest.step if ended and END not in self._changed else 0
        self._manifest, self._notes = manifest, self._overridden(rates)

    def tell(self, total: int) -> None:
        """The script asks for its steps: say what it has gone on from, and what is left to do."""
        manifest, self._manifest = self._manifest, None
        if manifest is None:
            return
        what = f"resumed from step {manifest.step} of {self._url}, saved {age_text(manifest.saved_at)} ago"
        left = total - manifest.step
        if self._facts.ended:
            _say(
                f"this run ended at step {manifest.step}, as the script decided; nothing left to do "
                f"({what}). To train on: outlast.join(changed=({END!r},))"
            )
        elif left > 0:
            _say(f"{what}; {left} step{'s' if left > 1 else ''} to go")
        else:
            _say(f"{what}; nothing left to do")
        for note in self._notes:
            _say(note)

    def _refusal(self, manifest: Manifest, error: ConfigError) -> ConfigError:
        ours, theirs = decode_structure(self._state.structure()), decode_structure(manifest.image.structure)
        names = sorted(changed_constants(theirs, ours) & self._constants)
        names += list(self._data.changed) if self._data is not None else []
        names += [SHARDS] if manifest.shards != self._facts.shards else []
        on_purpose = ""
        if names:
            named = ", ".join(map(repr, names))
            on_purpose = f"if it was changed on purpose, say outlast.join(changed=({named},)); "
        what = str(error).removeprefix(UNFIT).removesuffix(SAME_FOR_ALL)
        where = f"the checkpoint of step {manifest.step} at {self._url}"
        return ConfigError(
            f"This script cannot go on from {where}: {what} Ways out: undo the change; {on_purpose}give "
            "the run another URL, to begin anew; or choose another checkpoint there: outlast checkpoints ls "
            "shows them, and outlast rewind goes back to one."
        )

    def _settings(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """What the script's optimizers say where that is changed on purpose, by group."""
        return [
            (group, {name: group[name] for name in self._constants & self._changed & group.keys()})
            for optimizer in self._state.optimizers.values()
            for group in optimizer.param_groups
        ]

    def _rates(self) -> list[float]:
        """The learning rates that the script, or its schedule, begins with."""
        return [
            float(group.get("initial_lr", group.get("lr", 0.0)))
            for optimizer in self._state.optimizers.values()
            for group in optimizer.param_groups
        ]

    def _overridden(self, before: list[float]) -> list[str]:
        """What the script says, and the checkpoint says otherwise."""
        found = []
        pairs = [(mine, saved) for mine, saved in zip(before, self._rates(), strict=True) if mine != saved]
        if pairs:
            mine, saved = pairs[0]
            found.append(f"learning rate {saved:g} (the script says {mine:g})")
        if seeding.chosen not in (0, self._facts.seed):
            found.append(f"seed {self._facts.seed} (the script says {seeding.chosen})")
        return [f"taken from the checkpoint, not from the script: {', '.join(found)}"] if found else []


def _say(text: str) -> None:
    print(f"outlast: {text}", file=sys.stderr, flush=True)
