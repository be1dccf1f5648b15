"""A checkpoint in a script that does not train, for evaluation, export and looking.

    best = outlast.load("s3://bucket/run", "best")
    model.load_state_dict(best.model)
    print(best.step, best.state["sched"])

Nothing is unpickled, and every byte is compared with its hash. Only what is used is read: the model at once,
optimizers and the rest when they are first asked for.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import ConfigError, NoCheckpoint
from outlast.state.parts import holds_weights_only, model_tensors, parts_of
from outlast.state.storage.opening import open_storage
from outlast.state.structure import decode_structure
from outlast.state.tree import unflatten
from outlast.state.vault.exporting import load_tensors
from outlast.state.vault.finding import find_checkpoint, which_of
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.vault import Vault
from outlast.state.weights import check_weights, plan_weights

RESERVED = "outlast."


class Checkpoint:
    """The training state after one step, as `outlast.load` gives it."""

    def __init__(self, vault: Vault, manifest: Manifest) -> None:
        self._vault = vault
        self._manifest = manifest
        self.step = manifest.step
        """After which step it was saved."""
        self.saved_at = manifest.saved_at
        self.model: dict[str, Tensor] = load_tensors(vault, manifest, model_tensors(manifest.image))
        """Parameters and buffers by name, for `model.load_state_dict`. A parameter with two names is there
        once, and buffers that are not persistent are there as well: `load_into` knows about both."""

    def __repr__(self) -> str:
        return f"<checkpoint of step {self.step} of {self._vault.storage.url}>"

    def load_into(self, model: nn.Module) -> None:
        """Give the model these weights; an error says what does not fit."""
        image, indices = self._manifest.image, model_tensors(self._manifest.image)
        check_weights(model, image)
        tensors: list[Any] = [None] * len(image.entries)
        for name, index in indices.items():
            tensors[index] = self.model[name]
        with torch.no_grad():
            for target, source in plan_weights(model, image, tensors):
                target.copy_(source)

    @property
    def optimizer(self) -> dict[str, Any]:
        """The state dict of the only optimizer, for `optimizer.load_state_dict`."""
        if len(self.optimizers) != 1:
            names = ", ".join(map(repr, self.optimizers)) or "none"
            raise ConfigError(
                f"{self!r} has {len(self.optimizers)} optimizers ({names}): take one by its name from "
                "`optimizers`."
            )
        return next(iter(self.optimizers.values()))

    @cached_property
    def optimizers(self) -> dict[str, dict[str, Any]]:
        """The state dicts of all optimizers, by the names that they have in `outlast.join`."""
        saved = self._rest["optimizers"]
        shapes = {shape.key: shape for shape in decode_structure(self._manifest.image.structure).optimizers}
        found = {}
        for key, values in saved.items():
            groups, first = [], 0
            for group, shape in zip(values["groups"], shapes[key].groups, strict=True):
                params = list(range(first, first + len(shape.parameters)))
                groups.append({**group, "params": params})
                first += len(params)
            found[key] = {"state": values["state"], "param_groups": groups}
        return found

    @cached_property
    def state(self) -> dict[str, Any]:
        """What was handed to `outlast.join(state=…)`: the state dict of each, by name."""
        extras = self._rest["extras"]
        return {key: value for key, value in extras.items() if not key.startswith(RESERVED)}

    @cached_property
    def _rest(self) -> dict[str, Any]:
        image = self._manifest.image
        if holds_weights_only(image):
            return {"optimizers": {}, "extras": {}}
        known = set(model_tensors(image).values())
        indices = {str(index): index for index in range(len(image.entries)) if index not in known}
        loaded = load_tensors(self._vault, self._manifest, indices)
        tensors: list[Any] = [loaded.get(str(index)) for index in range(len(image.entries))]
        parts = parts_of(image.plain)
        return {part: unflatten(parts[part], tensors) for part in ("optimizers", "extras")}


def load(url: str | os.PathLike[str], which: str | int | None = None) -> Checkpoint:
    """A checkpoint under this URL: the newest good one, the one of a step (a number), or the one that
    `job.save` has given a name. Any number of processes may do so, also while a run saves there."""
    vault = Vault(open_storage(url))
    if not vault.manifests():
        raise NoCheckpoint(
            f"There are no checkpoints in {vault.storage.url}. Give the URL that the run saves to."
        )
    if isinstance(which, bool) or not isinstance(which, str | int | None):
        raise ConfigError(f"which = {which!r}: give a step, a name, or nothing for the newest checkpoint.")
    _, manifest = find_checkpoint(vault, which_of(which))
    return Checkpoint(vault, manifest)
